"""A board that stands in for a GPU: candidates are compiled by nvcc, and refused, as for a real one; what runs on the
board is the kernel's loops on its CPU, and fewer stages take less time. Imported by the fork server."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.targets import Machine
from tvmopt.tuning import gpu
from tvmopt.tuning.kernel import Sample, compiled_module
from tvmopt.tuning.record import Candidate


@dataclass
class StandIn(gpu.RemoteGpuBench):
    """In place of `gpu.RemoteGpuBench`."""

    stages: dict[str, int] = field(default_factory=dict)

    def build(self, candidate: Candidate) -> None:
        super().build(candidate)
        self.stages[candidate.id] = candidate.knobs["stages"]

    def _compiled(self, func: Any) -> Any:
        self._module_of(func)
        folder = Path(tempfile.mkdtemp(dir=Path(self.kernel.folder).parent))
        path = folder / f"{folder.name}.tar"
        compiled_module(self.func, Machine.load("cpu").with_cores(1)).export_library(str(path))
        return str(path)

    def _timed(self, ident: str, flush: str) -> Sample:
        self._load()
        self._module(self.built[ident])["main"](*self._inputs, *self._empty_outputs())
        return lambda: (1e-5 * self.stages[ident], True)

    @property
    def device(self) -> Any:
        return self._session.cpu(0)

    @property
    def host(self) -> str:
        return "a GPU on paper"


gpu.RemoteGpuBench = StandIn  # type: ignore[misc]
