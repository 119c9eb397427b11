"""TensorRT as an engine: 8.6 and 10 with builder flags, 11 with strongly typed networks.

Precision is read back from the built engine, layer by layer, and stands in the row: what was allowed and what was used
differ often. The engine file is a plan; a timing cache beside it makes the next build quick and repeatable.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.bench.records import Job
from tvmopt.bench.runners.base import Array, Runner, bound_model, require
from tvmopt.bench.runners.cuda import Cuda, pinned
from tvmopt.errors import InputError, ModelError

INSTALL = "pip install tensorrt cuda-python --extra-index-url https://pypi.nvidia.com   (and an NVIDIA GPU)"
TYPES = ("FP32", "FP16", "BF16", "INT8", "FP8", "Float", "Half", "Int8", "Int32")  # as inspectors write them
FLAGS = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # builder flags of 8.6 and 10


class TensorRT(Runner):
    """`Builder`, `OnnxParser`, `build_serialized_network`; then `execute_async_v3` on a stream of its own."""

    builds = True
    options: Mapping[str, str] = {
        "cuda_graph": "on (default) or off",
        "transfers": "excluded (default) or included in the time",
        "tf32": "on or off (default): TF32 in fp32 layers",
        "workspace": "MiB, default 4096",
        "refit": "on or off (default): build refittable and time a refit from the same ONNX file",
    }

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.use_graph = job.options.get("cuda_graph", "on") == "on"
        self.on_device = job.options.get("transfers", "excluded") == "excluded"
        self.refits = job.options.get("refit", "off") == "on"

    # -- build ---------------------------------------------------------------------------------------------

    def build(self, path: Path) -> None:
        trt = require("tensorrt", "tensorrt", command=INSTALL)
        Cuda()  # a builder times kernels: it needs the device
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network(self._network_flags(trt))
        parser = trt.OnnxParser(network, logger)
        source = bound_model(self.job)
        parsed = parser.parse(source) if isinstance(source, bytes) else parser.parse_from_file(source)
        if not parsed:
            problems = [str(parser.get_error(i)) for i in range(parser.num_errors)]
            raise ModelError(f"TensorRT cannot read the model: {'; '.join(problems)}", where=self.job.model)
        config = builder.create_builder_config()
        self._configure(trt, builder, config, network)
        cache = path.with_suffix(".timing")
        timing = config.create_timing_cache(cache.read_bytes() if cache.exists() else b"")
        config.set_timing_cache(timing, ignore_mismatch=False)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise ModelError("TensorRT built no engine", where=self.job.model, fix="see its log")
        path.write_bytes(bytes(memoryview(plan)))
        cache.write_bytes(bytes(memoryview(config.get_timing_cache().serialize())))

    def _network_flags(self, trt: Any) -> int:
        """EXPLICIT_BATCH where it still means something, STRONGLY_TYPED where types cannot be loosened."""
        known = trt.NetworkDefinitionCreationFlag
        flags = 0
        if major(trt) < 10:
            flags |= 1 << int(known.EXPLICIT_BATCH)
        if major(trt) >= 11 and hasattr(known, "STRONGLY_TYPED"):
            flags |= 1 << int(known.STRONGLY_TYPED)
        return flags

    def _configure(self, trt: Any, builder: Any, config: Any, network: Any) -> None:
        """Workspace, precision flags, one profile where shapes are open."""
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(self.job.options.get("workspace", "4096")) << 20)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # or nothing can be read back
        if hasattr(trt.BuilderFlag, "TF32"):
            (config.set_flag if self.job.options.get("tf32") == "on" else config.clear_flag)(trt.BuilderFlag.TF32)
        if self.refits:
            config.set_flag(trt.BuilderFlag.REFIT)
        if self.job.precision != "fp32":
            name = FLAGS.get(self.job.precision, "")
            if major(trt) >= 11 or not hasattr(trt.BuilderFlag, name):
                raise InputError(
                    f"TensorRT {trt.__version__} has strongly typed networks only: {self.job.precision} "
                    "cannot be allowed by a flag",
                    where="--precision",
                    fix=f"give it a model whose tensors are {self.job.precision}, or Q/DQ nodes for int8",
                )
            config.set_flag(getattr(trt.BuilderFlag, name))
        inputs = [network.get_input(i) for i in range(network.num_inputs)]
        if any(-1 in tuple(i.shape) for i in inputs):
            profile = builder.create_optimization_profile()
            for i in inputs:
                shape = self.job.shapes.get(i.name, tuple(max(1, d) for d in i.shape))
                profile.set_shape(i.name, shape, shape, shape)
            config.add_optimization_profile(profile)

    # -- run -----------------------------------------------------------------------------------------------

    def load(self) -> dict[str, str]:
        trt = self.trt = require("tensorrt", "tensorrt", command=INSTALL)
        self.cuda = Cuda()
        self.logger = trt.Logger(trt.Logger.ERROR)
        runtime = trt.Runtime(self.logger)
        self.engine: Any = runtime.deserialize_cuda_engine(Path(self.job.prepared).read_bytes())
        if self.engine is None:
            raise ModelError("TensorRT cannot load the plan", where=self.job.prepared, fix="build it on this machine")
        facts = {
            "version": str(trt.__version__),
            "typing": "strong" if major(trt) >= 11 else "weak",
            "asked": self.job.precision,
            "precision": precisions(self.engine, trt),
            "CUDA graph": "on" if self.use_graph else "off",
            "transfers": "excluded, data on the device" if self.on_device else "included, pinned memory",
        }
        if self.refits:
            facts["refit"] = f"{self._refit():.1f} ms"
        return facts

    def _refit(self) -> float:
        """Milliseconds to put the ONNX file's weights into the engine."""
        refitter = self.trt.Refitter(self.engine, self.logger)
        start = time.perf_counter()
        if not self.trt.OnnxParserRefitter(refitter, self.logger).refit_from_file(self.job.model):
            raise ModelError("the engine cannot be refitted from the ONNX file", where=self.job.model)
        refitter.refit_cuda_engine()
        return (time.perf_counter() - start) * 1e3

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.inputs = dict(inputs)
        self.stream = Stream(self)

    def run(self) -> None:
        self.stream.run()

    def outputs(self) -> dict[str, Array]:
        return self.stream.fetch()

    def caller(self) -> Callable[[], None]:
        return Stream(self).run  # a context and buffers of its own; the engine's weights are shared

    def transfers(self) -> dict[str, float]:
        return self.stream.transfer_times()


class Stream:
    """One execution context with its stream, buffers and, if wanted, its CUDA graph."""

    def __init__(self, runner: TensorRT) -> None:
        self.cuda, self.on_device = runner.cuda, runner.on_device
        engine, trt = runner.engine, runner.trt
        self.context: Any = engine.create_execution_context()
        self.stream = self.cuda.stream()
        self.host_in: dict[str, Array] = {}
        self.host_out: dict[str, Array] = {}
        self.address: dict[str, int] = {}
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        feeding = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        for name in feeding:
            dtype = trt.nptype(engine.get_tensor_dtype(name))
            array = pinned(self.cuda, runner.inputs[name].shape, dtype)
            array[...] = runner.inputs[name]  # an int64 input may be int32 inside
            self.host_in[name] = array
            self.context.set_input_shape(name, tuple(array.shape))
        for name in names:
            if name not in feeding:
                shape = tuple(self.context.get_tensor_shape(name))
                self.host_out[name] = pinned(self.cuda, shape, trt.nptype(engine.get_tensor_dtype(name)))
        for name, array in (self.host_in | self.host_out).items():
            self.address[name] = self.cuda.alloc(array.nbytes)
            self.context.set_tensor_address(name, self.address[name])
        self._upload()
        self._enqueue()  # once before a capture: TensorRT allocates lazily
        self.cuda.synchronize(self.stream)
        self.graph = self.cuda.graph(self._enqueue, self.stream) if runner.use_graph else None

    def _enqueue(self) -> None:
        if not self.context.execute_async_v3(int(self.stream)):
            raise ModelError("TensorRT could not run the engine")

    def _upload(self) -> None:
        for name, array in self.host_in.items():
            self.cuda.upload(self.address[name], array, self.stream)

    def _download(self) -> None:
        for name, array in self.host_out.items():
            self.cuda.download(array, self.address[name], self.stream)

    def run(self) -> None:
        """One inference, waited for."""
        if not self.on_device:
            self._upload()
        if self.graph is None:
            self._enqueue()
        else:
            self.cuda("cudaGraphLaunch", self.graph, self.stream)
        if not self.on_device:
            self._download()
        self.cuda.synchronize(self.stream)

    def fetch(self) -> dict[str, Array]:
        """The outputs on the host."""
        self._download()
        self.cuda.synchronize(self.stream)
        return {name: np.array(array) for name, array in self.host_out.items()}

    def transfer_times(self) -> dict[str, float]:
        """Milliseconds of the copies, the best of ten."""
        found = {}
        for name, copy in (("host to device", self._upload), ("device to host", self._download)):
            times = []
            for _ in range(10):
                start = time.perf_counter()
                copy()
                self.cuda.synchronize(self.stream)
                times.append(time.perf_counter() - start)
            found[name] = min(times) * 1e3
        return found


def major(trt: Any) -> int:
    """TensorRT's major version."""
    return int(str(trt.__version__).split(".")[0])


def precisions(engine: Any, trt: Any) -> str:
    """The data types that the engine's layers write, counted: ``Half 54, Float 3``."""
    try:
        text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
        layers = json.loads(text).get("Layers", [])
    except (ValueError, AttributeError):
        return "not readable"
    counted: Counter[str] = Counter()
    for layer in layers:
        for output in layer.get("Outputs", ()) if isinstance(layer, dict) else ():
            words = str(output.get("Format/Datatype", "")).replace("format", "").split()
            found = [w for w in words if w in TYPES]
            counted[found[0] if found else " ".join(words) or "unknown"] += 1
    return ", ".join(f"{name} {n}" for name, n in counted.most_common()) or "not readable"
