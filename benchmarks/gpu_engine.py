"""One engine of `benchmarks/gpu_peers.py`, in a process of its own: the cases, how each engine runs one, the clock.

How it is started, and what it prints:

    python benchmarks/gpu_engine.py      # then a line of JSON that says which engine and case, then one per turn
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np

# -- the cases: the same network as an ONNX file and as a torch module ---------------------------------------------


def onnx_file(name: str, batch: int, folder: Path, precision: str) -> Path:
    """The case's ONNX file, written if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("gemm_"):
        path = folder / f"{name}-{precision}.onnx"
        if not path.exists():
            _gemm(int(name.removeprefix("gemm_")), precision, path)
        return path
    if name == "tiny":
        models.MAKERS["tiny"] = _tiny
        path = folder / f"tiny_b{batch}.onnx"
        if not path.exists():
            models.export("tiny", path, batch)
        return path
    return Path(models.write(name, folder, batch=batch))


def _gemm(size: int, precision: str, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    a, b, c = (helper.make_tensor_value_info(n, kind, [size, size]) for n in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], path.stem, [a, b], [c])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _tiny(sizes: models.Sizes) -> tuple[Any, dict[str, Any]]:
    """A ResNet of one block at 32x32: every step of the flow in seconds."""
    import torch
    import transformers

    config = transformers.ResNetConfig(
        num_labels=10, embedding_size=16, hidden_sizes=[16], depths=[1], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    wrapped = models._wrap(model, lambda out: out.logits, ("pixel_values",))
    return wrapped, {"pixel_values": torch.randn(sizes.batch, 3, 32, 32)}


def torch_module(name: str, batch: int) -> Any:
    """The torch module whose weights are those of :func:`onnx_file`: the same steps from the same seed."""
    import torch

    models.MAKERS["tiny"] = _tiny
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, inputs = models.MAKERS[name](models.Sizes(batch))
    models._randomise(model, torch.Generator().manual_seed(0))
    models._calibrate_batchnorm(model, inputs)
    return model.eval()


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    """Seeded inputs; a GEMM's are scaled so that its outputs stay near 1."""
    if not path.name.startswith("gemm_"):
        return dict(models.sample_inputs(path))
    import onnx

    rng, found = np.random.default_rng(0), {}
    for item in onnx.load(path).graph.input:
        dims = [d.dim_value for d in item.type.tensor_type.shape.dim]
        array = rng.standard_normal(dims, dtype=np.float32) / dims[0] ** 0.25
        found[item.name] = array.astype(np.float16 if item.type.tensor_type.elem_type == 10 else np.float32)
    return found


# -- an engine's own process ----------------------------------------------------------------------------------------


def load_tvmopt(job: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], Any], str]:
    import tvmopt

    model = tvmopt.load(job["artifact"])
    feeds = feeds_of(Path(job["onnx"]))
    main, arguments = model.session().main, model.arguments(feeds)
    name = model.outputs[0].name
    return lambda: main(*arguments), lambda _: model.run(feeds)[name], f"tvmopt {tvmopt.__version__}"


def load_torch(job: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], Any], str]:
    import torch

    cuda, half = job["device"] == "cuda", job["precision"] == "fp16"
    torch.backends.cudnn.benchmark = True
    torch.set_grad_enabled(False)
    feeds = [torch.from_numpy(a).to(job["device"]) for a in feeds_of(Path(job["onnx"])).values()]
    words = f"torch {torch.__version__}"
    if job["name"].startswith("gemm_"):
        call: Any = torch.matmul
        words += ", torch.matmul"
    else:
        call = torch_module(job["name"], job["batch"]).to(job["device"])
        call = call.half() if half else call
        feeds = [t.half() if half and t.is_floating_point() else t for t in feeds]
        if feeds[0].dim() == 4:
            call = call.to(memory_format=torch.channels_last)
            feeds = [t.contiguous(memory_format=torch.channels_last) for t in feeds]
    if job["engine"] == "compile":
        # a rehearsal traces the network and leaves out the code generator, which would take a minute
        call = torch.compile(call, **({"mode": job["mode"]} if cuda else {"backend": "eager"}))
        words += f", {job['mode']}, with CUDA graphs" if cuda else ", traced only"
    elif cuda:
        words += f", cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"
    return lambda: call(*feeds), lambda out: out.float().cpu().numpy(), words


def load_onnxruntime(job: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], Any], str]:
    import onnxruntime as ort

    cuda = job["device"] == "cuda"
    wanted = "CUDAExecutionProvider" if cuda else "CPUExecutionProvider"
    model: Any = job["onnx"]
    if job["precision"] == "fp16" and not job["name"].startswith("gemm_"):
        from tvmopt.bench.runners.onnxruntime import half_precision

        model = half_precision(model)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=[wanted])
    if session.get_providers()[0] != wanted:
        raise RuntimeError(f"onnxruntime fell back from {wanted} to {session.get_providers()[0]}")
    binding, device = session.io_binding(), "cuda" if cuda else "cpu"
    for name, array in feeds_of(Path(job["onnx"])).items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    binding.bind_output(session.get_outputs()[0].name, device, 0)

    def call() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return call, lambda _: binding.copy_outputs_to_cpu()[0], f"onnxruntime {ort.__version__}, {wanted}"


class Clock:
    """Times calls twice: by CUDA events on the default stream (None without a GPU), and by the host's clock.

    Args:
        cudart: CUDA's runtime library, or a stand-in with its functions; None on a CPU.
    """

    def __init__(self, cudart: Any) -> None:
        self.cudart, self.timer = cudart, None
        if cudart is not None:
            from tvmopt.runtime.cuda_events import EventTimer

            self.timer = EventTimer(cudart)

    def turn(self, call: Callable[[], Any], seconds: float, least: int) -> dict[str, Any]:
        """Median seconds of a call over at least `least` calls and `seconds`."""
        device: list[float] = []
        wall: list[float] = []
        stop = time.perf_counter() + seconds
        while len(wall) < least or time.perf_counter() < stop:
            start = time.perf_counter()
            if self.timer is None:
                call()
            else:
                self.timer.reset()
                self.timer.begin()
                call()
                self.timer.end()
                device += self.timer.seconds()  # waits for the last event
                if self.cudart.cudaDeviceSynchronize():
                    raise RuntimeError("a kernel failed: cudaDeviceSynchronize reports an error")
            wall.append(time.perf_counter() - start)
        return {"device": statistics.median(device) if device else None, "wall": statistics.median(wall)}


def serve() -> int:
    """Load the engine that the first line asks for; then a turn a line. One line of JSON answers each."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever an engine prints does no harm
    loaders = {"tvmopt": load_tvmopt, "onnxruntime": load_onnxruntime}
    state: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "engine" in asked:
                start = time.perf_counter()
                call, output, words = loaders.get(asked["engine"], load_torch)(asked)
                result = call()
                state = (call, output, _clock(asked["device"]))
                answer = {"runs": words, "load": round(time.perf_counter() - start, 2)}
                np.save(asked["output"], np.asarray(output(result), np.float32))
            else:
                answer = state[2].turn(state[0], asked["seconds"], asked["least"])
        except Exception as error:  # an engine's own failure: a row of the table
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        answers.write(json.dumps(answer) + "\n")
    return 0


def _clock(device: str) -> Clock:
    if device != "cuda":
        return Clock(None)
    from tvmopt.runtime.cuda_events import load_cudart

    library = load_cudart()
    if library is None:
        raise RuntimeError("libcudart was not found on the loader's path")
    return Clock(library)


if __name__ == "__main__":
    sys.exit(serve())
