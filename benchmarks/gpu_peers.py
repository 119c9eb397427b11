"""tvmopt against torch and onnxruntime on a GPU, data on the device, by CUDA events - for `scripts/gpu-bench`.

    python benchmarks/gpu_peers.py                           # GEMM, ResNet-50 at batch 1 and 32, BERT-base, ViT-B
    python benchmarks/gpu_peers.py gemm_4096 resnet50:32     # some; NAME:BATCH
    python benchmarks/gpu_peers.py --device cpu --quick      # the same code on tiny shapes, no GPU: a rehearsal

Engines, each in a process of its own, in fp16 on the GPU (fp32 in a rehearsal), all with the same seeded weights:

    tvmopt         the artifact that `tvmopt compile --target cuda --precision fp16` makes here
    eager          torch as it is: cuDNN and cuBLAS choose (`cudnn.benchmark`); channels-last for convolutions
    compile        `torch.compile(mode="max-autotune")`, which captures CUDA graphs
    onnxruntime    the CUDA provider on a file converted to fp16, inputs and outputs bound on the device

Images go to torch as fp16; tvmopt and onnxruntime take them as fp32 and cast inside.

After a warm-up the engines take turns, the order turned round every round. A call is timed twice: by CUDA events around
it, and by the clock until the device is idle. A row's figure is the median over rounds of the turns' medians; a ratio
is the median over rounds of (peer / tvmopt). The L2 cache is not flushed. An engine that fails, or whose output differs
from tvmopt's by more than the tolerance, is a row that says so; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CASES = ("gemm_4096", "resnet50:1", "resnet50:32", "bert_base:1", "vit_base:1")
QUICK = ("gemm_64", "tiny:1", "tiny:2")
ENGINES = ("tvmopt", "eager", "compile", "onnxruntime")
TOLERANCE = {"fp16": 5e-2, "fp32": 1e-3}  # of the largest output; two fp16 computations differ from each other
ASKED = 0.7  # of cuBLAS, for the GEMM


def models() -> Any:
    """benchmarks/models.py as a module."""
    spec = importlib.util.spec_from_file_location("suite_models", HERE / "models.py")
    assert spec and spec.loader
    module = sys.modules.setdefault("suite_models", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


# -- the cases: the same network as an ONNX file and as a torch module ---------------------------------------------


def onnx_file(name: str, batch: int, folder: Path, precision: str) -> Path:
    """The case's ONNX file, written if it is not there."""
    suite = models()
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("gemm_"):
        path = folder / f"{name}-{precision}.onnx"
        if not path.exists():
            _gemm(int(name.removeprefix("gemm_")), precision, path)
        return path
    if name == "tiny":
        suite.MAKERS["tiny"] = _tiny
        path = folder / f"tiny_b{batch}.onnx"
        if not path.exists():
            suite.export("tiny", path, batch)
        return path
    return Path(suite.write(name, folder, batch=batch))


def _gemm(size: int, precision: str, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    a, b, c = (helper.make_tensor_value_info(n, kind, [size, size]) for n in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], path.stem, [a, b], [c])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _tiny(batch: int) -> tuple[Any, dict[str, Any]]:
    """A ResNet of one block at 32x32: every step of the flow in seconds."""
    import torch
    import transformers

    config = transformers.ResNetConfig(
        num_labels=10, embedding_size=16, hidden_sizes=[16], depths=[1], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    wrapped = models()._wrap(model, lambda out: out.logits, ("pixel_values",))
    return wrapped, {"pixel_values": torch.randn(batch, 3, 32, 32)}


def torch_module(name: str, batch: int) -> Any:
    """The torch module whose weights are those of :func:`onnx_file`: the same steps from the same seed."""
    import torch

    suite = models()
    suite.MAKERS["tiny"] = _tiny
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, inputs = suite.MAKERS[name](batch)
    suite._randomise(model, torch.Generator().manual_seed(0))
    suite._calibrate_batchnorm(model, inputs)
    return model.eval()


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    """Seeded inputs; a GEMM's are scaled so that its outputs stay near 1."""
    if not path.name.startswith("gemm_"):
        return dict(models().sample_inputs(path))
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
        call = torch.compile(call, **({"mode": "max-autotune"} if cuda else {"backend": "eager"}))
        words += ", max-autotune with CUDA graphs" if cuda else ", traced only"
    elif cuda:
        words += f", cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"
    return lambda: call(*feeds), lambda out: out.float().cpu().numpy(), words


def load_onnxruntime(job: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[Any], Any], str]:
    import onnx
    import onnxruntime as ort

    cuda = job["device"] == "cuda"
    wanted = "CUDAExecutionProvider" if cuda else "CPUExecutionProvider"
    model: Any = onnx.load(job["onnx"])
    if job["precision"] == "fp16" and not job["name"].startswith("gemm_"):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = convert_float_to_float16(model, keep_io_types=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[wanted])
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


# -- the rotation ---------------------------------------------------------------------------------------------------


class Engine:
    """One engine process; `row` is what the table says of it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.row = job, {"engine": job["engine"]}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.turns: list[dict[str, Any]] = []
        self.row |= self.ask(job)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one line; a death is an answer too."""
        line = ""
        with suppress(OSError):
            self.process.stdin.write(json.dumps(question) + "\n")
            line = self.process.stdout.readline()
        if not line:
            return {"error": f"the process ended with exit code {self.process.wait()}"}
        return dict(json.loads(line))

    def turn(self, seconds: float, least: int) -> bool:
        """One turn, kept; False where it failed."""
        answer = self.ask({"seconds": seconds, "least": least})
        if "error" in answer:
            self.row |= answer
            return False
        self.turns.append(answer)
        return True

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def rotate(engines: list[Engine], rounds: int, seconds: float, least: int) -> None:
    """A warm-up turn each, then `rounds` in turns; an engine that fails leaves the rotation."""
    for engine in engines:
        if "error" not in engine.row:
            engine.turn(seconds * 5, least)
            engine.turns.clear()
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else engines[::-1]:
            if "error" not in engine.row:
                engine.turn(seconds, least)


def summarise(engines: list[Any], outputs: dict[str, np.ndarray], tolerance: float) -> list[dict[str, Any]]:
    """The rows: medians in ms, ratio to tvmopt (above 1: tvmopt is faster), difference of the outputs.

    Without a tvmopt that ran there are times, and no ratios.
    """
    subject = next((e for e in engines if e.job["engine"] == "tvmopt" and "error" not in e.row), None)
    for engine in engines:
        row, name = engine.row, engine.job["engine"]
        if "error" in row:
            continue
        for key in ("device", "wall"):
            times = [t[key] for t in engine.turns]
            row[f"{key}_ms"] = None if None in times else round(statistics.median(times) * 1e3, 5)
        if subject is not None and engine is not subject:
            key = "wall" if row["device_ms"] is None or subject.row["device_ms"] is None else "device"
            pairs = [a[key] / b[key] for a, b in zip(engine.turns, subject.turns, strict=True)]
            row["ratio"] = round(statistics.median(pairs), 4)
            a, b = outputs[name], outputs["tvmopt"]
            wrong = a.shape != b.shape or not np.isfinite(a).all()
            row["difference"] = None if wrong else float(np.abs(a - b).max() / np.abs(b).max())
            if wrong or not row["difference"] <= tolerance:
                row["error"] = f"the output differs from tvmopt's by {row['difference']} of the largest"
    return [engine.row for engine in engines]


def compiled(onnx: Path, options: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    """The artifact of an ONNX file, and what went wrong."""
    artifact = folder / f"{onnx.stem}.tvmopt"
    target = "cuda" if options.device == "cuda" else "cpu"
    words = ["compile", str(onnx), "--target", options.target or target, "--precision", options.precision]
    done = subprocess.run(
        [sys.executable, "-m", "tvmopt", *words, "-o", str(artifact)], capture_output=True, text=True, check=False
    )
    return artifact, "" if done.returncode == 0 else f"does not compile: {done.stderr.strip()[-400:]}"


def case(name: str, batch: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """One case measured: its rows."""
    onnx = onnx_file(name, batch, options.models, options.precision)
    artifact, problem = compiled(onnx, options, scratch)
    engines: list[Engine] = []
    outputs: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    try:
        for engine in options.engines.split(","):
            if engine == "tvmopt" and problem:
                rows.append({"engine": engine, "error": problem})
                continue
            job = {"engine": engine, "name": name, "batch": batch, "device": options.device, "onnx": str(onnx),
                   "artifact": str(artifact), "precision": options.precision,
                   "output": str(scratch / f"{onnx.stem}-{engine}.npy")}  # fmt: skip
            engines.append(Engine(job))
            if "error" not in engines[-1].row:
                outputs[engine] = np.load(job["output"])
        rotate(engines, options.rounds, options.seconds, options.least)
        rows += summarise(engines, outputs, TOLERANCE[options.precision])
    finally:
        for one in engines:
            one.close()
    return {"case": name, "batch": batch, "clocks": clocks(), "rows": rows}


def clocks() -> str:
    """SM clock, temperature and power right after the rotation, as nvidia-smi gives them; empty without it."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,power.draw", "--format=csv,noheader"]
    with suppress(OSError):
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def table(record: dict[str, Any]) -> str:
    """The record as Markdown, and what it says of the goals."""
    lines = [f"# tvmopt against its peers: {record['gpu'] or record['device']}, {record['precision']}", ""]
    if record["device"] == "cpu":
        lines += ["A rehearsal on a CPU: these are no results.", ""]
    lines += ["Times in ms of one call; *ratio* is peer / tvmopt: above 1, tvmopt is faster.", ""]
    lines += ["| case | engine | events | until idle | ratio | what ran |", "|---|---|---:|---:|---:|---|"]
    for one in record["cases"]:
        for row in one["rows"]:
            times = [row.get("device_ms"), row.get("wall_ms"), row.get("ratio")]
            cells = ["" if t is None else f"{t:.4g}" for t in times]
            says = row["error"].replace("|", "/") if "error" in row else row["runs"]
            lines.append(f"| {one['case']}:{one['batch']} | {row['engine']} | {' | '.join(cells)} | {says} |")
    return "\n".join([*lines, "", *verdicts(record), ""])


def verdicts(record: dict[str, Any]) -> list[str]:
    """A line for each comparison that counts; a rehearsal's do not."""
    found: list[str] = []
    if record["device"] != "cuda":
        return found
    for one in record["cases"]:
        for row in one["rows"]:
            if "ratio" not in row or "error" in row:
                continue
            gemm = one["case"].startswith("gemm_")
            least = ASKED if gemm and row["engine"] == "eager" else 1.0
            peer = "cuBLAS (torch.matmul)" if gemm and row["engine"] == "eager" else row["engine"]
            met = "met" if row["ratio"] >= least else "NOT met"
            found.append(f"- {one['case']}:{one['batch']}: {row['ratio']:.3f} of {peer}'s speed, {least} asked: {met}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"NAME or NAME:BATCH; default {' '.join(CASES)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--target", default="", help="of the artifacts; default cuda (cpu with --device cpu)")
    parser.add_argument("--precision", choices=("fp16", "fp32"), help="default fp16 on a GPU, fp32 on a CPU")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, separated by commas")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder of the ONNX files")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "nvidia-h200")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--least", type=int, default=10, help="calls of a turn, at the least")
    parser.add_argument("--quick", action="store_true", help="tiny cases, three short rounds")
    parser.add_argument("--gpu", default="", help="its name, for the record")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    options.precision = options.precision or ("fp16" if options.device == "cuda" else "fp32")
    if options.quick:
        options.rounds, options.seconds, options.least = 3, 0.01, 2
    keys = ("device", "precision", "gpu", "rounds", "seconds", "least")
    record: dict[str, Any] = {key: getattr(options, key) for key in keys} | {"cases": []}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for text in options.cases or (QUICK if options.quick else CASES):
            name, _, batch = text.partition(":")
            record["cases"].append(case(name, int(batch or 1), options, Path(scratch)))
            (options.out / "peers.json").write_text(json.dumps(record, indent=1) + "\n")
            (options.out / "peers.md").write_text(table(record))
    print(table(record))
    return int(any("error" in row for one in record["cases"] for row in one["rows"]))


if __name__ == "__main__":
    sys.exit(main())
