"""tvmopt itself as an engine: an artifact, or a model compiled to one first, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvmopt.bench.runners.base import Array, Runner, version
from tvmopt.errors import InputError


class Tvmopt(Runner):
    """`tvmopt.compile` and `tvmopt.load`, called as users do: named NumPy arrays in and out."""

    builds = True
    options: Mapping[str, str] = {
        "target": "default cpu",
        "records": "on (default), off: no tuning records",
        "kv_cache": "of a decoder: fp32 (default), bf16, int8",
    }

    def build(self, path: Path) -> None:
        import tvmopt
        from tvmopt.targets import Machine

        records = self.job.options.get("records", "on")
        if records not in ("on", "off"):
            raise InputError(f"records={records}: it is on or off", where="tvmopt")
        machine = Machine.load(self.job.options.get("target", "cpu")).with_threads(self.job.threads)
        compile_ = tvmopt.compile
        shape = self.job.shapes or None
        compile_(
            self.job.model,
            target=machine,
            precision="fp32" if self.job.precision == "int8" else self.job.precision,  # int8 is in the model (Q/DQ)
            shape=shape,
            verify=False,  # the bench compares outputs itself
            records=records == "on",
            kv_cache=self.job.options.get("kv_cache", "fp32"),
            output=path,
        )

    def load(self) -> dict[str, str]:
        import tvmopt

        path = self.job.prepared
        if not path:
            raise InputError("no artifact to load", where="tvmopt")
        self.model: Any = tvmopt.load(path, threads=self.job.threads)
        manifest = self.model.manifest
        return {
            "version": version("tvmopt"),
            "target": str(getattr(manifest, "target", "")),
            "threads": str(self.model.threads),
            "precision": str(getattr(manifest, "precision", self.job.precision)),
            "tuning records": str(len(manifest.records)),
            "transfers": "none: NumPy in, NumPy out",
        }

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.feeds = dict(inputs)

    def run(self) -> None:
        self.found: dict[str, Array] = self.model.run(self.feeds)

    def outputs(self) -> dict[str, Array]:
        return self.found

    def caller(self) -> Callable[[], None]:
        model, feeds = self.model, self.feeds  # one virtual machine a thread, made by the model itself
        return lambda: model.run(feeds)
