"""OpenVINO as an engine: CPU plug-in, latency hint, precision asked for by name and read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvmopt.bench.runners.base import Array, Runner, bound_model, require
from tvmopt.errors import InputError

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}  # int8 is in the model (Q/DQ)


class OpenVino(Runner):
    """`read_model`, `compile_model` for latency, one infer request with shared host memory."""

    options: Mapping[str, str] = {
        "device": "OpenVINO device, default CPU",
        "hint": "LATENCY (default) or THROUGHPUT",
    }

    def load(self) -> dict[str, str]:
        ov = require("openvino", "openvino")
        if self.job.precision not in PRECISIONS:
            raise InputError(
                f"precision {self.job.precision!r}", where="openvino", fix=f"one of {', '.join(PRECISIONS)}"
            )
        core = ov.Core()
        source = bound_model(self.job)
        model = core.read_model(source)
        device = self.job.options.get("device", "CPU")
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": self.job.options.get("hint", "LATENCY"),
            "INFERENCE_NUM_THREADS": self.job.threads,
            "INFERENCE_PRECISION_HINT": PRECISIONS[self.job.precision],
        }
        if self.job.streams > 1:
            config["NUM_STREAMS"] = self.job.streams
        self.compiled = core.compile_model(model, device, config)
        self.request = self.compiled.create_infer_request()
        self.names = [self._name(output) for output in self.compiled.outputs]
        used = self.compiled.get_property("INFERENCE_PRECISION_HINT")
        return {
            "version": str(ov.get_version()),
            "device": device,
            "hint": str(config["PERFORMANCE_HINT"]),
            "threads": str(self.compiled.get_property("INFERENCE_NUM_THREADS")),
            "precision": used.get_type_name() if hasattr(used, "get_type_name") else str(used),
            "transfers": "none: shared host memory",
        }

    @staticmethod
    def _name(output: Any) -> str:
        names = sorted(output.get_names())
        return str(names[0]) if names else str(output)

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.feeds = dict(inputs)

    def run(self) -> None:
        self.found = self.request.infer(self.feeds, share_inputs=True, share_outputs=True)

    def outputs(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for output in self.compiled.outputs:
            for name in output.get_names():  # a tensor may have several names; the caller knows the ONNX one
                found[name] = self.found[output]
        return found

    def caller(self) -> Callable[[], None]:
        request, feeds = self.compiled.create_infer_request(), self.feeds
        return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)
