"""The module behind stages of the pipeline, and the code of single kernels, as files - for `tvmopt compile --dump-...`.

tvmopt compile m.onnx --dump-after FuseLayerNorm DIR    DIR/07-FuseLayerNorm.py, TVMScript
tvmopt compile m.onnx --dump-all DIR                    a file a stage, in their order
tvmopt compile m.onnx --dump-code fused_conv2d_relu DIR the kernel as scheduled, as TVM's passes leave it, as LLVM IR
                                                        and assembly; for a GPU as CUDA C++, PTX and SASS
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError
from tvmopt.files import check_writable, make_folder, write_text
from tvmopt.targets import Machine


@dataclass(frozen=True)
class Dumps:
    """What is wanted.

    Attributes:
        after: names of stages, and folders.
        everything: the folder for the modules behind all stages; "" for none.
        code: names of kernels, and folders.
    """

    after: tuple[tuple[str, str], ...] = ()
    everything: str = ""
    code: tuple[tuple[str, str], ...] = ()

    def make_folders(self) -> None:
        """The folders, made where they are missing.

        Raises:
            InputError: those that cannot be made or written.
        """
        for folder in sorted({*(folder for _, folder in (*self.after, *self.code)), self.everything} - {""}):
            make_folder(folder)
            check_writable(Path(folder) / "dump")

    def __bool__(self) -> bool:
        return bool(self.after or self.everything or self.code)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; the folders whole, because another process may work elsewhere."""
        return {
            "after": [[name, str(Path(folder).absolute())] for name, folder in self.after],
            "everything": str(Path(self.everything).absolute()) if self.everything else "",
            "code": [[name, str(Path(folder).absolute())] for name, folder in self.code],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Dumps:
        """What :meth:`to_dict` wrote."""
        after, code = (tuple((str(n), str(f)) for n, f in data[key]) for key in ("after", "code"))
        return cls(after, data["everything"], code)


@dataclass
class Dumper:
    """A `tvmopt.passes.stages.Watch` that writes what is wanted.

    Attributes:
        scheduled: the kernels behind their schedules, by name.
        last: all kernels behind the last stage.
    """

    dumps: Dumps
    machine: Machine
    scheduled: dict[str, Any] = field(default_factory=dict)
    last: Any = None

    def check(self) -> None:
        """The stages exist.

        Raises:
            InputError: one does not, with the names there are.
        """
        from tvmopt import pipeline
        from tvmopt.passes.stages import check_names

        check_names(pipeline.stages(pipeline.Job(self.machine, lift=True)), [name for name, _ in self.dumps.after])

    def __call__(self, number: int, name: str, module: Any) -> None:
        short = name.rpartition(".")[2]
        folders = [folder for wanted, folder in self.dumps.after if wanted in (name, short)]
        for folder in dict.fromkeys([*folders, *([self.dumps.everything] if self.dumps.everything else [])]):
            write_text(Path(folder) / f"{number:03d}-{short}.py", module.script())
        if short == "LiftConstants" and self.dumps.code:
            self._keep(module)
        self.last = module

    def finish(self) -> None:
        """Write the texts of single kernels; the machine's compiler is called for them."""
        for kernel, folder in self.dumps.code:
            self._write_code(kernel, Path(folder))

    def _keep(self, module: Any) -> None:
        """Keep the scheduled kernels.

        Raises:
            InputError: a wanted kernel is not there.
        """
        from tvm import tirx

        self.scheduled = {g.name_hint: f for g, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
        for kernel, _ in self.dumps.code:
            if kernel not in self.scheduled:
                near = difflib.get_close_matches(kernel, self.scheduled, n=3, cutoff=0.5)
                guess = f"did you mean {' or '.join(near)}? " if near else ""
                raise InputError(
                    f"there is no kernel {kernel!r}.", fix=f"{guess}The kernels are {', '.join(self.scheduled)}"
                )

    def _write_code(self, kernel: str, folder: Path) -> None:
        import tvm

        write_text(folder / f"{kernel}.tir.py", self.scheduled[kernel].script())
        mine = re.compile(re.escape(kernel) + r"(_kernel(_\d+)?)?")  # on a GPU: the host's part, and what it launches
        functions = {g: f for g, f in self.last.functions_items() if mine.fullmatch(g.name_hint)}
        alone = tvm.IRModule(functions, attrs=self.last.attrs)
        write_text(folder / f"{kernel}.lowered.py", alone.script())
        for suffix, text in (_cuda if self.machine.kind == "cuda" else _llvm)(alone, self.machine).items():
            write_text(folder / f"{kernel}.{suffix}", text)


def _llvm(module: Any, machine: Machine) -> dict[str, str]:
    from tvmopt import pipeline

    code = pipeline.generate(module, machine)
    return {"ll": code.inspect_source("ll"), "s": code.inspect_source("s")}


def _cuda(module: Any, machine: Machine) -> dict[str, str]:
    from tvmopt import pipeline
    from tvmopt.toolchain.cuda import compiler
    from tvmopt.toolchain.ptxas import listings, recording

    with recording(machine, compiler()) as recorder:
        pipeline.generate(module, machine)
    (source,) = recorder.sources
    return {"cu": source, **listings(source, machine.mcpu, compiler())}
