"""Compile a model and run it as a user would, with guard pages round its tensors - inside a worker.

It is `tvmopt.compile` and `Model`, but for four things: the C source that is linked into every library is compiled
once for all of them, the steps that an import runs in forks run in this process
where the model is known to be valid (two forks of a large process cost as much as half a compile), TVM's virtual
machine allocates each tensor by itself instead of from a pool (so that a guard page stands behind each), and weights
are copied between guard pages.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np

from fuzz import guard
from fuzz.inputs import Array, Feeds

CALLS = [0]
"""How often compiled code was entered."""


def prepare_process(forks: bool) -> None:
    """Import the compiler and set up this process; `forks`: untrusted models, so keep the importer's forks."""
    os.environ["TVMOPT_CACHE"] = "off"  # kernels of random graphs are of no use to anybody later
    sys.meta_path.insert(0, _WithoutTorch())
    from fuzz.arms import install
    from tvmopt.debug.forks import warm
    from tvmopt.runtime.library import Session

    warm()
    install()
    model, linking = import_module("tvmopt.runtime.model"), import_module("tvmopt.toolchain.linking")
    linking.SOURCE = guard.built(linking.SOURCE, ".o", "-c", "-O2", "-pthread")

    class Unpooled(Session):
        """A virtual machine that asks for the memory of each tensor, and gives it back."""

        def __init__(self, library: Any, *, cuda: bool = False) -> None:
            super().__init__(library, cuda=cuda)
            self.module["vm_initialization"](1, 0, 1)
            main = self.main

            def counted(*tensors: Any) -> Any:
                CALLS[0] += 1
                return main(*tensors)

            self.main = counted

    model.Session = Unpooled  # type: ignore[attr-defined]
    if not forks:
        for name in ("tvmopt.importer.prepare", "tvmopt.importer.check"):
            module: Any = import_module(name)
            if hasattr(module, "isolated"):
                module.isolated = lambda step, *_, **__: step()


class _WithoutTorch(MetaPathFinder):
    """Nobody imports torch: TVM would where it can, and forks would copy its memory."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("torch is not wanted here", name=name)


@cache
def machine(target: str, threads: int) -> Any:
    """The machine that is compiled for."""
    from tvmopt.targets import Machine

    found = Machine.load(target)
    return found if found.kind == "cuda" else found.with_threads(threads)


@dataclasses.dataclass
class Engine:
    """One compiled model.

    Attributes:
        side: where the guard pages touch inputs, results and what lies between; each run turns it round.
    """

    model: Any
    side: int = guard.BEHIND

    @property
    def symbols(self) -> Any:
        """The ranges of the open sizes."""
        return self.model.symbols

    @property
    def calls(self) -> int:
        """How often compiled code was entered in this process."""
        return CALLS[0]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Outputs by name, copied.

        Raises:
            Overwritten: something beside a buffer was written.
            TvmoptError, Exception: what the model raises.
        """
        before = guard.violations()
        side, self.side = self.side, guard.BEFORE + guard.BEHIND - self.side
        given = {name: guard.guarded(array, side) for name, array in feeds.items()}
        with guard.armed(side):
            results = self.model.run(given)
        copies = {name: np.array(array) for name, array in results.items()}
        changed = sorted(n for n, a in feeds.items() if a.tobytes() != given[n].tobytes())
        del results, given
        if changed:
            raise guard.Overwritten(f"the call changes its input {changed[0]}")
        if guard.violations() > before:
            raise guard.Overwritten("bytes beside a tensor were written")
        return copies


def compiled(
    data: bytes, target: str, precision: str, threads: int, side: int, say: Callable[[str], None],
    shapes: dict[str, str] | None = None,
) -> Any:  # fmt: skip
    """Compile the bytes of a model: an :class:`Engine`, or what runs like one.

    Args:
        side: where the guard pages touch its weights, and in the first run the rest.
        shapes: the ranges of its open sizes.
    """
    from tvmopt.compiler.driver import compile_model
    from tvmopt.compiler.request import Request
    from tvmopt.runtime.model import Model

    asked = machine(target, threads)
    if asked.kind == "cuda":
        from fuzz.gpu import emulated_model

        return emulated_model(data, asked, precision, side, say, shapes)
    request = Request(data, asked, precision, shapes=shapes or {}, records=False)
    artifact, _ = compile_model(request, lambda stage: say(f"compile: {stage}"))
    say("load")
    weights = tuple(guard.guarded(w, side) for w in artifact.weights)
    return Engine(Model(dataclasses.replace(artifact, weights=weights), threads=1), side)
