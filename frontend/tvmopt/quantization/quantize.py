"""The function behind `tvmopt quantize`: prepare, calibrate, measure, and leave in floats what costs too much."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import importlib.util
import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import onnx
import onnx.version_converter
from onnx import numpy_helper

from tvmopt.analysis.metrics import QUANTIZATION
from tvmopt.children import Progress
from tvmopt.dims import Shapes
from tvmopt.errors import AccuracyError, InputError, ModelError, first_line, reason
from tvmopt.files import atomic_write, check_path, check_writable
from tvmopt.importer.load import load
from tvmopt.importer.shapes import bind_shapes, real_inputs
from tvmopt.quantization.between import in_floats, unrounded
from tvmopt.quantization.calibrate import PRESETS, calibrate, chosen
from tvmopt.quantization.data import NO_DATA, Array, Data, Feeds, digest, inputs_of
from tvmopt.quantization.losses import layers_of, measure, run, session
from tvmopt.quantization.means import means_as_poolings
from tvmopt.quantization.records import Attempt, Quantized
from tvmopt.quantization.weights import BITS, quantise_weights

MEASURED = 16
"""Samples that the losses of layers are measured on."""

QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulNBits"})
"""Operators that only quantised models have."""

Metric = Callable[[Callable[[Mapping[str, Array]], dict[str, Array]]], float]
"""Gets a function that runs a model, inputs to outputs by name; gives a number, the higher the better."""


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    data: str | Path | None = None,
    samples: int = 300,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    preset: str = "performance",
    smooth_quant: bool = False,
    method: str = "auto",
    weights: str = "",
    group: int = 32,
    exclude: Sequence[str] = (),
    max_drop: str = "",
    metric: Metric | str | None = None,
    shape: Shapes | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Write a quantised model: activations and weights in 8 bits as a QDQ file, or weights alone.

    Args:
        model: an ONNX file in floats.
        output: the ONNX file to write; it appears whole or not at all.
        data: real inputs: a folder of pictures, .npy and .npz files, one sample each; or a .npy or .npz file whose
            first axis counts samples. Weights alone need none.
        samples: how many to use at most.
        mean, std: of pictures, whose values are from 0 to 1: the input is ``(x - mean) / std``.
        preset: "performance": symmetric activations; "mixed": with zero points of their own, which loses less where
            values lie on one side.
        smooth_quant: move large activations of transformers into the weights (NNCF).
        method: "nncf", "onnxruntime", or "auto": NNCF where it is installed.
        weights: "int8" or "int4": round the weights of products alone, by groups of `group` rows.
        exclude: nodes that stay in floats; ``*`` stands for any characters.
        max_drop: how much `metric` may fall: "0.5%" of the float model's value, or a number. While it falls more, the
            layers that lose most by themselves stay in floats: 1, 2, 4, ... of them.
        metric: a function (:data:`Metric`), or ``"file.py:name"``.
        shape: shapes of inputs whose dimensions the model leaves open.
        progress: called with the name of each stage.

    Raises:
        InputError: no data, data that does not fit, an unknown node or option.
        ModelError: a damaged model, or one that the method cannot quantise.
        AccuracyError: the metric still falls by more than `max_drop` with every layer in floats.
        MissingDependency: NNCF or Pillow is needed and not installed.
    """
    if preset not in PRESETS:
        raise InputError(f"There is no preset '{preset}'.", where="--preset", fix=f"one of {', '.join(PRESETS)}")
    if weights and weights not in BITS:
        raise InputError(f"Weights cannot be '{weights}'.", where="--weights", fix=f"one of {', '.join(BITS)}")
    if bool(max_drop) != (metric is not None):
        fix = "--max-drop 0.5% --metric FILE.py:FUNCTION"
        raise InputError("A largest drop and a metric belong together.", where="--max-drop, --metric", fix=fix)
    if max_drop:
        _least(0.0, max_drop)
    if data is None and not weights:
        raise InputError("No data, no calibration: a scale is a guess without real inputs.", fix=NO_DATA)
    check_path(model, "a model")
    check_path(output, "an output")
    if Path(model).resolve() == Path(output).resolve():
        raise InputError("The quantised model would replace the float one.", where=str(output), fix="-o another file")
    check_writable(output)
    score = _metric(metric)
    tell = progress or (lambda stage: None)
    tell("preparing")
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        exact = _prepared(load(model), shape, simplify=not weights, folder=Path(folder))
        way: _Way = (
            _Weights(exact, weights, group)
            if weights
            else _Calibration(exact, chosen(method), preset, smooth_quant, Path(folder), progress)
        )
        if data is not None:
            tell("reading the data")
            way.use(Data(str(data), samples, tuple(mean), tuple(std)))
        found, made = _within(way, exact, _matching(exact, exclude), score, max_drop, tell)
    result = replace(found, model=str(model), output=str(output), bytes_before=_size(Path(model)))
    _describe(made, result, Path(model))
    written = made.SerializeToString()
    with atomic_write(output) as stream:
        stream.write(written)
    return replace(result, bytes_after=len(written))


class _Way(ABC):
    """One way to quantise a model.

    Attributes:
        data: what to calibrate or measure with; None where weights are rounded without any.
        digest: the hash of its samples, and how many there are.
    """

    data: Data | None = None
    digest: tuple[str, int] = "", 0
    preset = ""

    def __init__(self, exact: onnx.ModelProto) -> None:
        self.exact, self.inputs = exact, inputs_of(exact)

    def use(self, data: Data) -> None:
        """Take this data; every sample of it is read once, so that what does not fit is told at once."""
        self.data, self.digest = data, digest(data.feeds(self.inputs))

    def feeds(self) -> Iterator[Feeds]:
        """The samples that layers are measured on."""
        return islice(self.data.feeds(self.inputs), MEASURED) if self.data else iter(())

    @abstractmethod
    def make(self, exclude: Sequence[str]) -> tuple[onnx.ModelProto, str]:
        """The quantised model, and by what."""


class _Weights(_Way):
    def __init__(self, exact: onnx.ModelProto, kind: str, group: int) -> None:
        super().__init__(exact)
        self.preset, self.group = kind, group

    def make(self, exclude: Sequence[str]) -> tuple[onnx.ModelProto, str]:
        made = onnx.ModelProto()
        made.CopyFrom(self.exact)
        quantise_weights(made, self.preset, self.group, exclude)
        return made, f"round to nearest by groups of {self.group}"


class _Calibration(_Way):
    def __init__(
        self, exact: onnx.ModelProto, method: str, preset: str, smooth: bool, folder: Path, progress: Progress | None
    ) -> None:
        super().__init__(exact)
        self.method, self.preset, self.smooth, self.folder, self.progress = method, preset, smooth, folder, progress

    def make(self, exclude: Sequence[str]) -> tuple[onnx.ModelProto, str]:
        assert self.data is not None
        source, target = self.folder / "exact.onnx", self.folder / "quantised.onnx"
        onnx.save(self.exact, source)
        floats = in_floats(self.exact, exclude)
        version = calibrate(
            self.method, str(source), str(target), self.data, self.inputs, preset=self.preset,
            smooth_quant=self.smooth, exclude=list(dict.fromkeys([*exclude, *floats])), progress=self.progress,
        )  # fmt: skip
        made = onnx.load(target)
        unrounded(made, floats)
        return made, version


def _within(
    way: _Way, exact: onnx.ModelProto, exclude: Sequence[str], score: Metric | None, max_drop: str, tell: Progress
) -> tuple[Quantized, onnx.ModelProto]:
    """The quantised model whose metric falls by no more than `max_drop`: first with all layers, then with the 1, 2,
    4, ... in floats that lose most.

    Raises:
        AccuracyError: it falls more even with all layers in floats.
    """
    base = _scored(score, exact) if score else None
    least = _least(base, max_drop) if base is not None else 0.0
    excluded, attempts, worst = list(exclude), list[Attempt](), list[str]()
    while True:
        made, version = way.make(excluded)
        tell("measuring layers")
        layers, ends = measure(exact, made, way.feeds()) if way.data else ([], {})
        sha, count = way.digest
        result = Quantized(
            "", "", version, way.preset, count, sha, _ranges(made), tuple(excluded), 0, 0, tuple(layers), ends, base
        )
        if score is None:
            return result, made
        attempts.append(Attempt(tuple(excluded), _scored(score, made)))
        if attempts[-1].value >= least:
            return replace(result, attempts=tuple(attempts)), made
        worst = worst or [one.node for one in result.worst(len(layers))]
        left = len(excluded) - len(exclude)
        if left >= len(worst):
            raise AccuracyError(
                f"The metric is {attempts[-1].value:.6g} with {left} layers in floats; {base:.6g} for the float model.",
                where=f"--max-drop {max_drop}",
                fix="give more data, --preset mixed, or a larger --max-drop",
            )
        excluded = [*exclude, *worst[: max(1, 2 * left)]]
        tell(f"trying with {len(excluded)} layers in floats")


def _scored(score: Metric, model: onnx.ModelProto) -> float:
    """The metric of a model, run by onnxruntime.

    Raises:
        InputError: the function fails, or gives no number.
    """
    made = session(model)
    try:
        value = float(score(partial(run, made)))
    except Exception as error:  # somebody's function may raise anything
        text = f"The metric fails: {type(error).__name__}: {reason(error)}."
        raise InputError(
            text, where="--metric", fix="it gets a function from inputs to outputs, both by name"
        ) from error
    if not math.isfinite(value):
        raise InputError(f"The metric is {value}.", where="--metric", fix="it must be a number, the higher the better")
    return value


def _least(base: float, max_drop: str) -> float:
    """The least value allowed.

    >>> _least(0.8, "5%"), _least(-2.0, "5%"), _least(0.8, "0.1")
    (0.76, -2.1, 0.7000000000000001)

    Raises:
        InputError: no number, or a negative one.
    """
    try:
        number = float(max_drop.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise InputError(f"'{max_drop}' is no drop.", where="--max-drop", fix="--max-drop 0.5%, or --max-drop 0.01")
    return base - (abs(base) * number / 100 if max_drop.endswith("%") else number)


def _metric(metric: Metric | str | None) -> Metric | None:
    """The function that ``"file.py:name"`` names.

    Raises:
        InputError: there is none.
    """
    if metric is None or callable(metric):
        return metric
    file, _, name = metric.rpartition(":")
    fix = "--metric FILE.py:FUNCTION"
    if not file or not Path(file).is_file():
        raise InputError(f"There is no file '{file or metric}'.", where=f"--metric {metric}", fix=fix)
    spec = importlib.util.spec_from_file_location("metric", file)
    if spec is None or spec.loader is None:
        raise InputError(f"'{file}' is no Python file.", where=f"--metric {metric}", fix=fix)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # somebody's file
        text = f"'{file}' cannot be imported: {type(error).__name__}: {reason(error)}."
        raise InputError(text, where=f"--metric {metric}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError(f"'{file}' has no function '{name}'.", where=f"--metric {metric}", fix=fix)
    function: Metric = found
    return function


def _prepared(model: onnx.ModelProto, shape: Shapes | None, *, simplify: bool, folder: Path) -> onnx.ModelProto:
    """The model with a name for every node and no weight among its inputs, and, if `simplify`, in opset 13 at least,
    with its BatchNorms folded and its means of pictures as poolings.

    Raises:
        ModelError: it is quantised already, or onnxruntime cannot load it.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if any(n.op_type in QUANTISED for n in copy.graph.node):
        raise ModelError("The model is quantised already.", fix="give the float model; `tvmopt compile` takes this one")
    fed = real_inputs(copy.graph)  # weights may stand among the inputs: before version 4 of the format they had to
    del copy.graph.input[:]
    copy.graph.input.extend(fed)
    copy.ir_version = max(copy.ir_version, 4)
    if shape:
        bind_shapes(copy.graph, shape)
    if simplify:
        copy = _simplified(copy, folder)
        means_as_poolings(copy)
    taken = {n.name for n in copy.graph.node}
    for number, node in enumerate(copy.graph.node):
        if not node.name:
            node.name = f"{node.op_type}_{number}"
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)
    return copy


def _simplified(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """What onnxruntime makes of it by standard operators: constants folded, BatchNorms in their convolutions."""
    import onnxruntime

    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 13)
    if version < 13:  # a scale for each channel needs it
        try:
            model = onnx.version_converter.convert_version(model, 13)
        except Exception as error:  # C++ of any class
            told = f"The model cannot be brought from opset {version} to 13: {reason(error)}"
            raise ModelError(told, fix="export it with opset 13 or newer") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "simplified.onnx")
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"],
            disabled_optimizers=["MatMulAddFusion"],  # a node's name must stay what --exclude knows
        )  # fmt: skip
    except Exception as error:  # whatever onnxruntime raises
        told = f"onnxruntime cannot load the model: {first_line(reason(error))}"
        raise ModelError(told, fix="repair the model, or export it again") from error
    return onnx.load(options.optimized_model_filepath)


def _matching(model: onnx.ModelProto, patterns: Sequence[str]) -> list[str]:
    """The names of the nodes that the patterns name.

    Raises:
        InputError: a pattern that names none.
    """
    names = [n.name for n in model.graph.node]
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [n for n in names if n == pattern or fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern, [n.name for n in layers_of(model)] or names, n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            fix = "names of nodes as `tvmopt inspect MODEL --top 0` lists them; * stands for any characters"
            raise InputError(f"The model has no node '{pattern}'.{hint}", where=f"--exclude {pattern}", fix=fix)
        found.update(dict.fromkeys(matching))
    return list(found)


def _ranges(model: onnx.ModelProto) -> str:
    """The SHA-256 of all scales and zero points, in graph order."""
    weights = {t.name: t for t in model.graph.initializer}
    total = hashlib.sha256()
    for node in model.graph.node:
        if node.op_type in QUANTISED:
            for name in (i for i in node.input[1:] if i in weights):
                total.update(numpy_helper.to_array(weights[name]).tobytes())
    return total.hexdigest()


def _size(path: Path) -> int:
    """The bytes of a model's file, and of its external data in files that begin with its name."""
    return sum(p.stat().st_size for p in path.parent.glob(f"{path.name}*") if p.is_file())


def _describe(model: onnx.ModelProto, result: Quantized, source: Path) -> None:
    """Write into the model's metadata how it was made, in place."""
    kept = [p for p in model.metadata_props if p.key != QUANTIZATION]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    told = {
        "method": result.method,
        "preset": result.preset,
        "model_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "samples": result.samples,
        "data_sha256": result.data_sha256,
        "ranges_sha256": result.ranges_sha256,
        "excluded": list(result.excluded),
    }
    model.metadata_props.add(key=QUANTIZATION, value=json.dumps(told))
