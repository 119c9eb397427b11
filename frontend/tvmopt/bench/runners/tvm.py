"""Stock TVM as an engine: its importer, `zero` pipeline and default CPU lowering - the baseline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.bench.runners.base import Array, Runner, version


class StockTvm(Runner):
    """`from_onnx`, `get_pipeline("zero")`, `tvm.compile`; names made safe, nothing else helped."""

    builds = True

    def build(self, path: Path) -> None:
        os.environ.setdefault("TVM_NUM_THREADS", str(self.job.threads))
        import onnx
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        from tvmopt.targets import Machine

        model = onnx.load(self.job.model)
        shapes = {name: list(shape) for name, shape in self.job.shapes.items()}
        module = from_onnx(model, shape_dict=shapes or None, keep_params_in_input=False)
        target = Machine.load("cpu").with_cores(self.job.threads).tvm_target()
        with target:
            module = relax.get_pipeline("zero")(module)
            tvm.compile(module, target).export_library(str(path.with_suffix(".so")))
        import json

        stored = {t.name for t in model.graph.initializer}
        names = [
            [i.name for i in model.graph.input if i.name not in stored],
            [o.name for o in model.graph.output],
        ]
        path.write_text(json.dumps(names))

    def load(self) -> dict[str, str]:
        import json

        import tvm
        from tvm import relax

        path = Path(self.job.prepared)
        self.input_names, self.output_names = json.loads(path.read_text())
        library = tvm.runtime.load_module(str(path.with_suffix(".so")))
        self.vm: Any = relax.VirtualMachine(library, tvm.cpu())
        self.tvm = tvm
        return {
            "version": version("apache-tvm"),
            "threads": os.environ.get("TVM_NUM_THREADS", "default"),
            "precision": "as in the model",
            "transfers": "none: tensors in, tensors out",
        }

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.feeds = [self.tvm.runtime.tensor(np.ascontiguousarray(inputs[name])) for name in self.input_names]

    def run(self) -> None:
        self.found: Any = self.vm["main"](*self.feeds)

    def outputs(self) -> dict[str, Array]:
        found = self.found
        tensors = [found] if hasattr(found, "numpy") else list(found)
        return {name: t.numpy() for name, t in zip(self.output_names, tensors, strict=True)}
