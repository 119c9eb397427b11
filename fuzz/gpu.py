"""A model for a GPU, without one: its CUDA kernels in the emulator of the tests, under guard pages.

The kernels are those that nvcc would get; the emulator compiles them for this processor and runs their threads in
several orders. TVM's virtual machine and its host code run as they are, on tensors of the CPU. There is no artifact, so
that the judge has nothing to look into: the outputs alone are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz import guard
from fuzz.inputs import Array, Feeds


@dataclass
class Emulated:
    """One model's program.

    Attributes:
        symbols: the ranges of the open sizes.
        side: where the guard pages touch inputs, results and what lies between; each run turns it round.
    """

    executable: Any
    emulation: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: dict[str, Any]
    side: int = guard.BEHIND
    model: None = None

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Outputs by name.

        Raises:
            Overwritten: something beside a buffer was written.
            AssertionError: threads race, or a GPU would trap.
        """
        import tvm
        from tests.cuda.emulator import MODES, Race
        from tvm import relax

        before, results = guard.violations(), []
        for mode in (MODES[0], MODES[-1]):
            self.emulation.mode = mode
            self.side = guard.BEFORE + guard.BEHIND - self.side
            with guard.armed(self.side):
                machine = relax.VirtualMachine(self.executable, tvm.cpu(), memory_cfg="naive")
                given = [tvm.runtime.tensor(np.array(feeds[name], order="C")) for name in self.inputs]
                out = machine["main"](*given)
            tensors = [out] if hasattr(out, "numpy") else list(out)
            results.append({n: np.array(t.numpy()) for n, t in zip(self.outputs, tensors, strict=True)})
            del machine, given, out, tensors
        if guard.violations() > before:
            raise guard.Overwritten("bytes beside a tensor were written")
        for name, array in results[0].items():
            if array.tobytes() != results[1][name].tobytes():
                raise Race(f"{name} differs between two orders of the threads")
        return results[0]


def emulated_model(
    data: bytes, machine: Any, precision: str, side: int, say: Callable[[str], None],
    shapes: dict[str, str] | None = None,
) -> Emulated:  # fmt: skip
    """Compile the bytes of a model for a GPU's machine description; `shapes`: the ranges of its open sizes."""
    import onnx
    from tests.cuda.emulator import emulated

    from tvmopt import pipeline
    from tvmopt.importer import import_model
    from tvmopt.report import DecisionLog
    from tvmopt.targets import devices

    devices.load()
    say("compile: importing")
    imported = import_model(onnx.ModelProto.FromString(data), dict(shapes or {}))
    say("compile: optimizing")
    lowered = pipeline.lower(imported.module, machine, DecisionLog(), precision=precision)
    say("compile: generating code")
    with emulated() as emulation:
        executable = pipeline.build(lowered, machine, cuda_graph=False)
    names = [tuple(info.name for info in infos) for infos in (imported.inputs, imported.outputs)]
    return Emulated(executable, emulation, *names, dict(imported.ranges), side)
