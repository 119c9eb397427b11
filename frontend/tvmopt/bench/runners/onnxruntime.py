"""onnxruntime as an engine: its CPU, CUDA and TensorRT providers, never a silent fallback."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tvmopt.bench.records import Job
from tvmopt.bench.runners.base import Array, Runner, bound_model, require, version
from tvmopt.errors import InputError, MissingDependency

LEVELS = {
    "none": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all":
    "ORT_ENABLE_ALL",
}  # fmt: skip


class OnnxRuntime(Runner):
    """The CPU provider, NumPy arrays in and out, worker threads spinning as by default."""

    provider = "CPUExecutionProvider"
    packages: tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")
    install = "pip install onnxruntime"
    options: Mapping[str, str] = {
        "opt_level": "none, basic, extended or all (default)",
        "spinning": "on (default) or off: whether worker threads spin between operators and runs",
    }

    def load(self) -> dict[str, str]:
        ort = require("onnxruntime", "onnxruntime", command=self.install)
        if self.provider not in ort.get_available_providers():
            raise MissingDependency(f"this onnxruntime has no {self.provider}", where=self.job.engine, fix=self.install)
        level = self.job.options.get("opt_level", "all")
        if level not in LEVELS:
            raise InputError(f"opt_level {level!r}", where=self.job.engine, fix=f"one of {', '.join(LEVELS)}")
        precision = self.precision()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.job.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
        spinning = self.job.options.get("spinning", "on")
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning == "on" else "0")
        self.session: Any = ort.InferenceSession(self.model(), options, providers=[self.provider_options()])
        used = self.session.get_providers()
        if used[0] != self.provider:
            raise MissingDependency(
                f"onnxruntime fell back from {self.provider} to {used[0]}",
                where=self.job.engine,
                fix="see its log: the provider's libraries or the device are missing",
            )
        self.names = [output.name for output in self.session.get_outputs()]
        return {
            "version": version(*self.packages),
            "provider": ", ".join(used),
            "threads": str(self.job.threads),
            "optimisation": level,
            "spinning": spinning,
            "precision": precision,
            "transfers": self.transfer_words(),
        }

    def model(self) -> Any:
        """What the session is made from: a path, or a model's bytes."""
        return bound_model(self.job)

    def provider_options(self) -> Any:
        """What the session's `providers` list gets."""
        return self.provider

    def precision(self) -> str:
        """The arithmetic used: the model's own dtypes on the CPU provider."""
        if self.job.precision not in ("fp32", "int8"):  # int8 is in the model (Q/DQ)
            raise InputError(
                f"the {self.provider} computes in the model's own dtypes, not in {self.job.precision}",
                where=self.job.engine,
                fix="leave it out, or compare in the model's own dtypes: --precision fp32",
            )
        return "as in the model"

    def transfer_words(self) -> str:
        return "none: NumPy in, NumPy out"

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.feeds = dict(inputs)

    def run(self) -> None:
        self.found = self.session.run(self.names, self.feeds)

    def outputs(self) -> dict[str, Array]:
        return dict(zip(self.names, self.found, strict=True))

    def caller(self) -> Callable[[], None]:
        session, names, feeds = self.session, self.names, self.feeds
        return lambda: session.run(names, feeds)


class OnnxRuntimeCuda(OnnxRuntime):
    """The CUDA provider; data on the device, transfers timed apart, unless ``transfers=included``."""

    provider = "CUDAExecutionProvider"
    packages = ("onnxruntime-gpu", "onnxruntime")
    install = "pip install onnxruntime-gpu   (and a CUDA device with its driver)"
    options: Mapping[str, str] = {
        **OnnxRuntime.options,
        "transfers": "excluded (default) or included in the time",
        "cuda_graph": "on or off (default)",
        "tf32": "on or off (default)",
    }

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.graph = job.options.get("cuda_graph", "off") == "on"
        self.on_device = job.options.get("transfers", "excluded") == "excluded"
        if self.graph and not self.on_device:
            raise InputError("a CUDA graph needs its data on the device", where=job.engine, fix="transfers=excluded")

    def provider_options(self) -> Any:
        on = "1" if self.graph else "0"
        tf32 = "1" if self.job.options.get("tf32") == "on" else "0"
        return (self.provider, {"enable_cuda_graph": on, "use_tf32": tf32})

    def model(self) -> Any:
        return half_precision(bound_model(self.job)) if self.job.precision == "fp16" else super().model()

    def precision(self) -> str:
        """fp16 is a converted model; TensorFloat-32 an option of the provider."""
        if self.job.precision != "fp16":
            return super().precision()
        return "fp16, converted by onnxruntime.transformers.float16; inputs and outputs as in the model"

    def transfer_words(self) -> str:
        graph = "CUDA graph" if self.graph else "no CUDA graph"
        return ("excluded, data on the device" if self.on_device else "included") + f"; {graph}"

    def bind(self, inputs: Mapping[str, Array]) -> None:
        super().bind(inputs)
        if not self.on_device:
            return
        ort = require("onnxruntime", "onnxruntime-gpu")
        start = time.perf_counter()
        self.device = {n: ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for n, a in inputs.items()}
        self.h2d = time.perf_counter() - start
        self.binding = self.session.io_binding()
        for name, value in self.device.items():
            self.binding.bind_ortvalue_input(name, value)
        for name in self.names:
            self.binding.bind_output(name, "cuda", 0)

    def run(self) -> None:
        if not self.on_device:
            super().run()
            return
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def outputs(self) -> dict[str, Array]:
        if not self.on_device:
            return super().outputs()
        start = time.perf_counter()
        arrays = self.binding.copy_outputs_to_cpu()
        self.d2h = time.perf_counter() - start
        return dict(zip(self.names, arrays, strict=True))

    def transfers(self) -> dict[str, float]:
        if not self.on_device:
            return {}
        self.outputs()
        return {"host to device": self.h2d * 1e3, "device to host": self.d2h * 1e3}

    def caller(self) -> Callable[[], None]:
        raise InputError("no concurrent streams on this provider here", where=self.job.engine, fix="--streams 1")


class OnnxRuntimeTensorRT(OnnxRuntimeCuda):
    """The TensorRT provider: fp32 unless asked for fp16; its engines are built at load."""

    provider = "TensorrtExecutionProvider"

    def model(self) -> Any:
        return bound_model(self.job)  # TensorRT chooses the dtypes itself

    def provider_options(self) -> Any:
        half = self.job.precision == "fp16"
        return (self.provider, {"trt_fp16_enable": half, "trt_cuda_graph_enable": self.graph})

    def precision(self) -> str:
        if self.job.precision not in ("fp32", "fp16"):
            return super().precision()
        return f"{self.job.precision} allowed"


def half_precision(source: str | bytes) -> bytes:
    """A model in fp16 but for its inputs, its outputs and the operators that have no fp16 kernel: onnxruntime's own
    converter, as its documentation advises for the CUDA provider.

    Raises:
        InputError: the converter refuses the model.
    """
    import onnx

    convert = import_module("onnxruntime.transformers.float16").convert_float_to_float16
    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
        return bytes(convert(model, keep_io_types=True).SerializeToString())
    except Exception as error:  # the converter raises whatever onnx does, or an assertion of its own
        raise InputError(
            f"onnxruntime's float16 converter fails: {type(error).__name__}: {error}",
            where="--precision fp16",
            fix="convert the model yourself and give that file with --precision fp32, or leave the engine out",
        ) from error
