"""Quantised models against their peers: quantise, compile, compare outputs, time in turn, keep all.

    python benchmarks/int8.py                                # every model by every method, 1 and 2 threads
    python benchmarks/int8.py resnet50 bert_base             # some
    python benchmarks/int8.py --methods onnxruntime          # only files as onnxruntime quantises them
    python benchmarks/int8.py --make                         # only write the quantised files
    python benchmarks/int8.py --list                         # the cases, and what is measured already
    python benchmarks/int8.py --table                        # only the table, from the results there are

Every engine gets the same QDQ file, calibrated on a few random inputs (the OCR detector on pages that `int8_tasks.py`
draws): that is enough for speed, and says nothing of what trained models lose. The files are kept in
``benchmarks/models/int8``. Floor is the larger of the operations over the measured peak of int8 and the bytes over the
measured bandwidth; both peaks are measured anew at the start, and the higher one of both measurements counts.

One JSON file a model, method and number of threads goes into ``benchmarks/results/MACHINE/int8``, the table, losses
included, into its README.md. As in `suite.py`, a case is not measured again while compiler and engines are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import real_models
import suite

import tvmopt
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.metrics import metrics
from tvmopt.analysis.peaks import measure_peaks
from tvmopt.analysis.samples import sample_inputs
from tvmopt.bench.machine import describe_machine, slug
from tvmopt.bench.measure import Plan
from tvmopt.bench.run import Settings, bench
from tvmopt.errors import TvmoptError
from tvmopt.files import save_arrays
from tvmopt.importer import load, prepare_named

HERE = Path(__file__).resolve().parent
FOLDER = models.FOLDER / "int8"
ENGINES = "tvmopt:records=off,openvino,onnxruntime"
METHODS = {"onnxruntime": "mixed", "nncf": "performance"}
"""By method the preset that its authors advise for CPUs: onnxruntime uint8 activations, NNCF symmetric ones."""
CALIBRATION = 4
"""Random inputs that ranges are taken from."""
LARGEST_IMAGE = 1024
"""Pixels along a side."""
TOLERANCE = 0.5
"""What outputs may differ from float64's, relative to the largest: a number between two steps goes either way, and
random weights carry it on: onnxruntime with and without its optimizations differ by 0.18 on ResNet-50. More is no
rounding; `tests/` compares numbers exactly. (The OCR detector says of each pixel how likely it is text: at the edges
of letters some of 409,600 are off by about 0.8, by each of three engines others; the mean is off by 0.0003.)"""


@dataclass(frozen=True)
class Subject:
    """One float model.

    Attributes:
        transformer: NNCF treats its products as those of attention, and smooths activations.
        shapes: of inputs with open sizes.
        task: in `int8_tasks.py`, for a model whose outputs on random numbers lie at the steps of its bytes: what
            calibrates it and what it is timed with is drawn there, from real pictures.
        tolerance: what outputs may differ from float64's, relative to the largest.
        small: for smaller inputs: see :func:`models.write`.
    """

    name: str
    transformer: bool = False
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    task: str = ""
    tolerance: float = TOLERANCE
    small: bool = False

    def source(self) -> Path:
        """The float model, written or downloaded where it is not there yet."""
        if self.name in models.BY_NAME:
            return models.write(self.name, small=self.small)
        (trained,) = (m for m in real_models.MODELS if m.name == self.name)
        return real_models.fetch([trained])[self.name]

    def pictures(self, seed: int, count: int) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Inputs of its task, drawn from a seed; none where it has no task."""
        if not self.task:
            return []
        import int8_tasks  # it wants Pillow and fonts

        (task,) = (t for t in int8_tasks.TASKS if t.name == self.task)
        (name,) = self.shapes
        return [{name: array} for array, _ in int8_tasks.drawn(task, seed, count)]


SUBJECTS = (
    Subject("resnet50"),
    Subject("mobilenet_v2"),
    Subject("efficientnet_b0"),
    Subject("densenet121"),
    Subject("squeezenet"),
    Subject("bert_base", transformer=True),
    Subject("vit_base", transformer=True),
    Subject("convnext_tiny"),
    Subject("gpt2", transformer=True),
    Subject("ch_PP-OCRv4_det_infer", shapes={"x": (1, 3, 640, 640)}, task="find-v4", tolerance=0.9),
    Subject("ch_PP-OCRv4_rec_infer", shapes={"x": (1, 3, 48, 320)}),
)


def quantised(subject: Subject, method: str, folder: Path = FOLDER) -> Path:
    """The QDQ file of a model by a method, made once.

    Raises:
        TvmoptError: the method cannot quantise this model.
    """
    path = folder / f"{subject.name}{'_small' if subject.small else ''}-{method}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    model = load(subject.source())
    _pool_globally(model)
    static = prepare_named(model, subject.shapes)
    inputs, bounds = metrics(static, subject.name).inputs, integer_bounds(static)
    with tempfile.TemporaryDirectory() as name:
        data, source = Path(name) / "data", Path(name) / "float.onnx"
        data.mkdir()
        onnx.save(model, source)
        drawn = subject.pictures(0, CALIBRATION)
        for seed in range(CALIBRATION):
            feeds = drawn[seed] if drawn else sample_inputs(inputs, seed=seed, bounds=bounds)
            save_arrays(data / f"{seed}.npz", feeds)
        tvmopt.quantize(
            source, path, data=data, preset=METHODS[method], method=method, shape=subject.shapes or None,
            smooth_quant=method == "nncf" and subject.transformer,
        )  # fmt: skip
    return path


def _pool_globally(model: onnx.ModelProto) -> None:
    """Make a global pooling, in place, of an average over a window larger than any image: transformers' EfficientNet
    has one of 1280x1280 that counts the border, so what it gives is 0 in eight bits."""
    for node in model.graph.node:
        window = next((a.ints for a in node.attribute if a.name == "kernel_shape"), ())
        if node.op_type == "AveragePool" and min(window, default=0) > LARGEST_IMAGE:
            node.op_type = "GlobalAveragePool"
            del node.attribute[:]


def measure(path: Path, subject: Subject, threads: int, folder: Path, engines: Sequence[str], plan: Plan) -> bool:
    """Measure one file and write its result; False where there is one of this compiler and these engines."""
    result = folder / f"{path.stem}-b1-t{threads}.json"
    if suite.current(result, engines):
        return False
    asked = Settings(
        engines=tuple(engines), threads=(threads,), precision="int8", shapes=subject.shapes,
        tolerance=subject.tolerance, inputs=next(iter(subject.pictures(1, 1)), {}),
    )  # fmt: skip
    data = suite.compact(bench([path], asked, plan=plan).as_dict()) | {"code": suite.code()}
    part = result.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(result)
    print(suite.line(data["cases"][0]), flush=True)
    return True


def chosen(names: Sequence[str], methods: Sequence[str]) -> Iterator[tuple[Subject, str]]:
    """The files asked for, a model by a method; by default those that are there or that can be made here."""
    for method in methods or METHODS:
        for subject in SUBJECTS:
            there = methods or find_spec(method) or (FOLDER / f"{subject.name}-{method}.onnx").exists()
            if there and (not names or subject.name in names):
                yield subject, method


def table(folder: Path) -> str:
    """The results of a folder as Markdown."""
    return suite.table(folder, [f"{s.name}-{m}" for s, m in chosen((), list(METHODS))])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare tvmopt with its peers on quantised models.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which (default: all)")
    parser.add_argument("--methods", help="onnxruntime,nncf (default: installed ones, and files that are there)")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--patience", type=float, default=2.0, help="see `tvmopt bench --help`")
    parser.add_argument("--results", type=Path, default=HERE / "results" / slug() / "int8")
    parser.add_argument("--make", action="store_true", help="only write the quantised files")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--table", action="store_true", help="only write the table")
    args = parser.parse_args(arguments)
    methods = args.methods.split(",") if args.methods else []
    unknown = sorted({*args.names} - {s.name for s in SUBJECTS} | {*methods} - set(METHODS))
    if unknown:
        known = ", ".join([*(s.name for s in SUBJECTS), *METHODS])
        parser.error(f"there is no {', '.join(unknown)}; there are {known}")
    threads, engines = [int(n) for n in args.threads.split(",")], args.engines.split(",")
    cases = list(chosen(args.names, methods))
    if args.list:
        for subject, method in cases:
            results = [args.results / f"{subject.name}-{method}-b1-t{n}.json" for n in threads]
            done = sum(suite.current(path, engines) for path in results)
            print(f"{subject.name:24} {method:12} {done} of {len(results)} measured")
        return 0
    failed = 0
    args.results.mkdir(parents=True, exist_ok=True)
    if not args.table:
        plan = Plan(rounds=args.rounds, launches=args.launches, patience=args.patience)
        failed = _run(cases, threads, engines, plan, args)
    if not args.make:
        (args.results / "README.md").write_text(table(args.results))
    return 1 if failed else 0


def _run(
    cases: Sequence[tuple[Subject, str]], threads: Sequence[int], engines: Sequence[str], plan: Plan,
    args: argparse.Namespace,
) -> int:  # fmt: skip
    """All cases, one after the other; how many failed."""
    failed, begin = 0, time.perf_counter()
    if not args.make:
        print(f"on {describe_machine()['processor']}, into {args.results}", flush=True)
        for count in threads:
            measure_peaks(count, again=True)
    for number, (subject, method) in enumerate(cases, 1):
        start = time.perf_counter()
        try:
            path = quantised(subject, method)
            for count in () if args.make else threads:
                measure(path, subject, count, args.results, engines, plan)
        except (TvmoptError, RuntimeError, ValueError, ImportError) as error:
            failed += 1
            text = f"{subject.name} by {method}: {type(error).__name__}: {error}"
            print(text, file=sys.stderr, flush=True)
        now = time.perf_counter()
        spent, left = now - begin, (now - begin) / number * (len(cases) - number)
        told = f"{number} of {len(cases)}: {subject.name} by {method}, {now - start:.0f} s; {spent / 60:.0f} min"
        print(f"{told}, some {left / 60:.0f} left", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
