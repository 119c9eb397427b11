"""Single layers against the peers: where a family is behind although whole networks are ahead.

    python benchmarks/layers.py convolutions                      # 300 convolutions of the models' own
    python benchmarks/layers.py operators                         # 200 other operators
    python benchmarks/layers.py convolutions --drawn --seed 7     # random ones, of the kinds that real models have
    python benchmarks/layers.py operators --drawn --seed 7        # likewise (drawn_layers.py)
    python benchmarks/layers.py operators --count 40 --op Softmax --op ReduceMean

A layer is a model of one node, with a bias and a Relu where it is a random convolution; weights are random. It is drawn
from the distinct layers of the suite (``benchmarks/models``) and of the trained models (``benchmarks/trained``, see
real_models.py) that take 2 us to some 30 ms. Each engine runs all layers in a process of its own, one after the other,
as often as ``--passes`` says and in turn with the other engines; a layer's time is the best of all its calls, so that a
busy neighbour disturbs little. Arrays lie where NumPy puts them.

The table names the worst first; with ``--results FILE`` everything is kept as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import real_models
from drawn_layers import Layer, convolution, distinct, operator
from onnx import helper, numpy_helper, shape_inference

from tvmopt.bench.machine import describe_machine
from tvmopt.bench.records import Job
from tvmopt.bench.runners import make
from tvmopt.errors import TvmoptError

ENGINES = ("tvmopt:records=off", "onnxruntime", "openvino")
CALLS = 40
SECONDS = 0.3
"""A pass calls a layer so often, or for so long where it is slower."""

FREE = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Constant", "Shape", "Cast", "Dropout"}
CONTROL = {"If", "Loop", "Scan"}


# -- layers of models -------------------------------------------------------------------------------------------------


def of_models(paths: Iterable[tuple[Path, dict[str, tuple[int, ...]]]], convolutions: bool) -> list[Layer]:
    """The distinct layers of models, given with the shapes of their open inputs, in a fixed order."""
    found: dict[str, Layer] = {}
    for path, shapes in paths:
        for layer in _of_model(path, shapes, convolutions):
            found.setdefault(layer.title, layer)
    return [found[title] for title in sorted(found)]


def _of_model(path: Path, shapes: dict[str, tuple[int, ...]], convolutions: bool) -> Iterator[Layer]:
    from tvmopt.importer import import_model

    model = import_model(path, shapes).model
    try:
        model = shape_inference.infer_shapes(model)
    except (ValueError, RuntimeError):
        return
    known = {v.name: v for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    constants = {i.name: i for i in model.graph.initializer}
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        if (node.op_type == "Conv") != convolutions or node.op_type in FREE | CONTROL or node.domain:
            continue
        layer = _single(node, known, constants, opset)
        if layer is not None:
            yield layer


def _single(node: Any, known: dict[str, Any], constants: dict[str, Any], opset: int) -> Layer | None:
    """The node alone: what it computes with is an input, what it is compiled with stays a constant."""
    inputs, initializers, words = [], [], []
    for name in filter(None, node.input):
        if name in constants:
            initializers.append(_small_numbers(constants[name]))
            words.append("w" + "x".join(map(str, constants[name].dims)))
            continue
        kind = known[name].type.tensor_type if name in known else None
        dims = [d.dim_value for d in kind.shape.dim] if kind is not None else [0]
        if kind is None or kind.elem_type != onnx.TensorProto.FLOAT or math.prod(dims) <= 1:
            return None
        inputs.append(helper.make_tensor_value_info(name, kind.elem_type, dims))
        words.append("x".join(map(str, dims)))
    outputs = [known[name] for name in node.output if name in known]
    if not inputs or len(outputs) != len(list(filter(None, node.output))):
        return None
    attributes = ", ".join(f"{a.name}={helper.get_attribute_value(a)}" for a in node.attribute if a.type in (1, 2, 7))
    graph = helper.make_graph([node], "layer", list({i.name: i for i in inputs}.values()), outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return Layer(
        f"{node.op_type} {' '.join(words)} {attributes}".strip(),
        model.SerializeToString(),
        _flops(node, known, constants),
    )


def _small_numbers(tensor: Any) -> Any:
    """Weights that keep a layer's outputs finite and are no denormals; small constants stay: they may be axes."""
    from tvmopt.importer.external import array_of

    array = array_of(tensor)
    if array.dtype != np.float32 or array.size < 16:
        return numpy_helper.from_array(array, tensor.name)
    fan = max(1, array.size // array.shape[0])
    made = np.random.default_rng(0).standard_normal(array.shape, np.float32) / math.sqrt(fan)
    return numpy_helper.from_array(made, tensor.name)


def _flops(node: Any, known: dict[str, Any], constants: dict[str, Any]) -> float:
    if node.op_type != "Conv" or node.input[1] not in constants or node.output[0] not in known:
        return 0.0
    out = [d.dim_value for d in known[node.output[0]].type.tensor_type.shape.dim]
    return 2.0 * math.prod(out) * math.prod(constants[node.input[1]].dims[1:])


# -- timing ----------------------------------------------------------------------------------------------------------


def child(engine: str, folder: Path, threads: int, build: bool) -> None:
    """One engine's process: a line of JSON a layer, seconds or null."""
    from tvmopt.bench.runners import parse

    name, options = parse(engine)
    for path in sorted(folder.glob("*.onnx")):
        prepared = str(path.with_suffix(".tvmopt")) if name == "tvmopt" else ""
        job = Job(name, str(path), prepared=prepared, threads=threads, options=options)
        best, problem = None, ""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                runner = make(job)
                if build:
                    if not path.with_suffix(".tvmopt").exists():
                        runner.build(Path(prepared))
                else:
                    best = _best(runner, path)
        except (TvmoptError, RuntimeError, ValueError, ImportError) as error:
            problem = " ".join(str(error).split())[:300]
        print(json.dumps({"layer": path.stem, "seconds": best, "problem": problem}), flush=True)


def _best(runner: Any, path: Path) -> float:
    runner.load()
    rng = np.random.default_rng(1)
    inputs = onnx.load(str(path)).graph.input
    runner.bind(
        {i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32) for i in inputs}
    )
    for _ in range(5):
        runner.run()
    best, stop = math.inf, time.perf_counter() + SECONDS
    for call in range(CALLS):
        start = time.perf_counter()
        runner.run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > stop and call >= 5:
            break
    return best


def measure(
    layers: Sequence[Layer], threads: int, passes: int, kept: Path | None = None, timed: bool = True
) -> list[dict[str, Any]]:
    """Each layer's best seconds by engine; the passes of the engines take turns.

    Args:
        kept: a folder for the models and our artifacts, which are built only where it has none: one folder for one
            list of layers and one number of threads.
        timed: False only builds.
    """
    rows: list[dict[str, Any]] = [asdict(layer) | {"seconds": {}, "problems": {}} for layer in layers]
    for row in rows:
        del row["model"]
    with tempfile.TemporaryDirectory() as name:
        folder = kept or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for index, layer in enumerate(layers):
            (folder / f"{index:04}.onnx").write_bytes(layer.model)
        turns = [(ENGINES[0], True)] + [(engine, False) for _ in range(passes if timed else 0) for engine in ENGINES]
        for engine, build in turns:
            command = [sys.executable, __file__, "--child", engine, str(folder), str(threads)]
            command += ["build"] if build else []
            done = subprocess.run(command, capture_output=True, text=True)
            for line in filter(lambda text: text.startswith("{"), done.stdout.splitlines()):
                found = json.loads(line)
                row = rows[int(found["layer"])]
                if found["problem"]:
                    row["problems"][engine] = found["problem"]
                if found["seconds"] is not None:
                    row["seconds"][engine] = min(found["seconds"], row["seconds"].get(engine, math.inf))
            if done.returncode:
                print(f"{engine} ended with {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return rows


def ratio(row: dict[str, Any]) -> float | None:
    """Our time over the better peer's; None where one of them has none."""
    peers = [row["seconds"][e] for e in ENGINES[1:] if e in row["seconds"]]
    return row["seconds"][ENGINES[0]] / min(peers) if peers and ENGINES[0] in row["seconds"] else None


def told(rows: Sequence[dict[str, Any]], most: int) -> str:
    """The worst layers, then what we could not run, then the summary."""
    known = sorted(((r, row) for row in rows if (r := ratio(row)) is not None), key=lambda pair: -pair[0])
    lines = []
    for value, row in known[:most]:
        times = ", ".join(f"{e.partition(':')[0]} {1e6 * s:.0f}" for e, s in row["seconds"].items())
        speed = f", {row['flops'] / row['seconds'][ENGINES[0]] / 1e9:.0f} GFLOP/s" if row["flops"] else ""
        lines.append(f"{value:5.2f}  {row['title']}: {times} us{speed}")
    lines += [f"failed {row['title']}: {row['problems'][ENGINES[0]]}" for row in rows if ENGINES[0] in row["problems"]]
    if known:
        logs = [math.log(value) for value, _ in known]
        above = [sum(value > bound for value, _ in known) for bound in (1.0, 1.15, 1.25)]
        lines.append(
            f"{len(known)} layers: geometric mean {math.exp(sum(logs) / len(logs)):.3f}; "
            f"above 1.0: {above[0]}, above 1.15: {above[1]}, above 1.25: {above[2]}"
        )
    return "\n".join(lines)


def _all_models() -> Iterator[tuple[Path, dict[str, tuple[int, ...]]]]:
    for path in sorted(models.FOLDER.glob("*.onnx")):
        yield path, {}
    trained = real_models.fetch(real_models.MODELS)
    for model in real_models.MODELS:
        yield trained[model.name], model.shapes


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--child"]:
        child(given[1], Path(given[2]), int(given[3]), given[4:] == ["build"])
        return 0
    parser = argparse.ArgumentParser(description="Compare single layers with onnxruntime and OpenVINO.")
    parser.add_argument("what", choices=("convolutions", "operators"))
    parser.add_argument("--count", type=int, help="how many (default: 300 convolutions, 200 operators)")
    parser.add_argument("--drawn", action="store_true", help="random layers instead of the models' own")
    parser.add_argument("--op", action="append", default=[], help="only these operators; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FOLDER",
        help="keep models and artifacts here, and use those it has; one folder for one list and number of threads",
    )
    parser.add_argument("--build", action="store_true", help="with --kept: build the artifacts, time nothing")
    parser.add_argument("--worst", type=int, default=25, help="lines to print")
    parser.add_argument("--results", type=Path, help="file to keep everything in")
    args = parser.parse_args(given)
    count = args.count or (300 if args.what == "convolutions" else 200)
    if args.drawn:
        if args.op:
            parser.error("--op chooses among the models' own layers: leave out --drawn")
        chosen = distinct(convolution if args.what == "convolutions" else operator, count, args.seed)
    else:
        every = of_models(_all_models(), args.what == "convolutions")
        every = [layer for layer in every if not args.op or layer.title.split()[0] in args.op]
        chosen = random.Random(args.seed).sample(every, min(count, len(every)))
    rows = measure(chosen, args.threads, args.passes, args.kept, timed=not args.build)
    if args.build:
        return 0
    if args.results:
        asked = {name: getattr(args, name) for name in ("what", "drawn", "op", "seed", "threads", "passes")}
        data = {"machine": describe_machine(), "arguments": {**asked, "count": count}, "layers": rows}
        args.results.write_text(json.dumps(data, indent=1) + "\n")
    print(told(rows, args.worst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
