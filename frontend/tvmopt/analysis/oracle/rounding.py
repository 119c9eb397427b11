"""What rounding alone does to a model: runs of the oracle that round, and cross the edges of discontinuous operators.

A result of Floor, a comparison or a quantisation jumps where its input is near an edge; an engine may stand on either
side. So these runs move the inputs of such operators by a little more than their own rounding error, up in one run and
down in the other: what jumps there may jump in an engine; what does not has to be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tvmopt.analysis.oracle.boxes import selected
from tvmopt.analysis.oracle.evaluate import Oracle, reads
from tvmopt.analysis.oracle.quantized import number_type, steps
from tvmopt.analysis.oracle.tiles import conv_by_tiles, has_tiles
from tvmopt.analysis.oracle.values import DIGITS, EXACT, ROUNDS, Arithmetic, Array, Call, Unfit, Value, is_real
from tvmopt.importer.boxes import ANY, SELECT

TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "tf32": np.float16}
"""Precisions whose operands have fewer bits than float32 (float16 has the 11 bits of tf32)."""
EDGES = {
    *("Floor", "Ceil", "Round", "Cast", "CastLike", "Sign", "Mod", "QuantizeLinear", "DynamicQuantizeLinear"),
    *("Hardmax", "QLinearConv", "QLinearMatMul"),  # the last two move their own sums
    "DynamicQuantizeLSTM",
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "ArgMax", "ArgMin", "NonMaxSuppression"),
    *(
        SELECT,
        ANY,
        "LinearClassifier",
        "SVMClassifier",
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    ),
}
INTEGERS = {"Cast", "CastLike", "QuantizeLinear", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"}
"""Those of them that make integers or booleans of one number each."""
INSIDE = {"DynamicQuantizeLSTM"}
"""Those that move what they round themselves, by `Arithmetic.moved`: much of it comes to be inside of them."""
CHOICES = {"ArgMax", "ArgMin", "TopK", "Hardmax", "MaxPool"}
JUMPS = {"ThresholdedRelu": 0, "Shrink": 0, "GridSample": 1, "MaxRoiPool": 1, "MaxPool": 0, "TopK": 0}
"""Operators whose result jumps for some values of an input, which is named, and else follows it, or does not change:
the number at the threshold, the coordinate between two pixels, the places of two nearly equal numbers."""
PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul"}
"""Operators of which a kernel may multiply by zeros what is padding or another part of a tile."""
INTERPOLATES = {"Resize": "nearest", "Upsample": "nearest", "GridSample": "linear"}
"""Operators that weigh neighbours, and their mode by default. A neighbour of weight 0 is read by one engine and left
out by another, so that its NaN may stand in the result or not."""
HEAVY = PRODUCTS | {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
MOVES = {
    *("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "MaxPool", "Gather"),
    *("Pad", "Identity", "Expand", "Dropout"),
}
CHOOSE = MOVES | {
    *("Abs", "Clip", "Max", "Min", "Neg", "Relu", "Where", "ReduceMax", "ReduceMin", "GlobalMaxPool", "MaxUnpool"),
    *("Compress", "DepthToSpace", "GatherElements", "GatherND", "OneHot", "ReverseSequence", "ScatterElements"),
    *("ScatterND", "SpaceToDepth", "Tile", "TopK", "Trilu", "Unique"),
}
"""Operators whose results are numbers that they read, or 0, or the negative of one: nothing is rounded."""
RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
IN_A_ROW = 4.0
"""The error of a sum whose terms are added one behind the other, as recurrent kernels do, in errors of the terms: a
third of the root of their number."""
SUMS = HEAVY | {
    *("GlobalAveragePool", "AveragePool", "CumSum", "Mean", "Sum", "Softmax", "LogSoftmax", "DFT", "STFT", "Det"),
    *RECURRENT,
}
"""Operators that add up in an order of their own, besides the reductions and the norms: the mean of equal numbers may
be another number, which a norm then divides by the root of its epsilon."""
TAILS = {"Gelu", "BiasGelu", "FastGelu"}
"""Operators that multiply what they read by 1 + erf or 1 + tanh, of which little is left where those are nearly -1: an
engine's error there is an epsilon of what is read."""
NORM = "Normalization"
INTEGER_EDGES = {"Resize", "Upsample"}
"""Those that have edges where their result is an integer: they move their own sums."""
SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Upsample", "Pad", "Split", "Squeeze", "Unsqueeze", "TopK"), (1,)),
    **dict.fromkeys(("OneHot", "AffineGrid", "CenterCropPad"), (1,)),
    **{"Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Range": (0, 1, 2), "ConstantOfShape": (0,), "Col2Im": (1, 2)},
    "MaxUnpool": (2,),
}
"""Operators, and which of their inputs decide how large the result is."""
FARTHEST_TANGENT = 1e8
"""Of numbers of float32, whose distance from a pole is their own rounding error."""
MARGIN = 4.0
"""How much farther than its own error a run moves an input."""
EPSILON = 2.0**-23
"""Of float32."""
PIECE = 1 << 20
"""Elements of a tensor that are moved at a time."""
FLUSHED = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))
"""Types whose numbers below the smallest normal float32 may become 0."""
MORE = 4
"""Further runs that round."""
SIDES = 16
"""Those that move each input of an edge to a side of its own."""
Moves = Literal["everywhere", "there", "rounding", "never"]
"""By how much a run that rounds moves what is quantised, besides rounding: all of it by what the tensor differs from
the exact run, each element by what that element does, or none; "never": nor anything else in front of an edge."""


def arithmetic_of(precision: str, wider: bool = False) -> Arithmetic:
    """The arithmetic that rounds as an engine does in this precision; `wider`: one that keeps results of 16 bits in
    registers where nothing overflows 16 bits. It may store any of them in between, so that all have 16 bits' digits."""
    return Arithmetic(np.float32, TYPES.get(precision), stores=True, limits=not wider)


def roundings(
    model: Any, arithmetic: Arithmetic, edges: dict[str, list[Any]], allowed: float, moves: Moves = "everywhere"
) -> list[Rounded]:
    """The runs that round in an arithmetic; where a model has no edges, the second would be the first again."""
    return [Rounded(model, arithmetic, edges, sign, allowed, moves) for sign in ((1, -1) if edges else (1,))]


def has_edges(call: Call) -> bool:
    """Whether a result jumps where an input is near an edge: of rows that are rounded to 8 bits, too. A cast from one
    real type to another only rounds."""
    if call.op in ("Cast", "CastLike"):
        to = call.kinds[1] if call.op == "CastLike" else number_type(int(call.get("to")))
        return to is None or not is_real(to)
    return call.op in EDGES or bool(call.get(ROUNDS, 0)) or jumps(call)


def jumps(call: Call) -> bool:
    """Whether it is one of :data:`JUMPS`: GridSample that takes the nearest element, MaxPool that tells where its
    numbers are from."""
    if call.op == "GridSample":
        return bool(call.get("mode") == "nearest")
    return call.op in JUMPS and (call.op != "MaxPool" or call.outputs > 1)


def _weighs(call: Call) -> bool:
    """Whether a result is a sum of products, some of them perhaps with zeros that an engine may leave out."""
    usual = INTERPOLATES.get(call.op)
    return call.op in PRODUCTS or (usual is not None and call.get("mode", usual) != "nearest")


def operands(nodes: Sequence[Any]) -> set[str]:
    """Tensors that products read, also behind data movement: they are in memory in 16 bits, for every reader. The
    model's inputs are not: what reads them besides has all their digits."""
    found: set[str] = set()
    for node in reversed(nodes):
        if node.op_type in HEAVY or (node.op_type in MOVES and found & set(node.output)):
            found.update(n for n in node.input if n)
    return found


def sizes(graph: Any, inputs: Collection[str]) -> set[str]:
    """Tensors that decide the size of others and depend on no value of an input: no engine rounds those, as another
    size would be another model."""
    valued, needed = set(inputs), set[str]()
    for node in graph.node:
        needed.update(n for i, n in enumerate(node.input) if n and i in SIZES.get(node.op_type, ()))
        if node.op_type not in ("Shape", "Size") and valued & set(reads(node)):
            valued.update(node.output)
    for node in reversed(graph.node):
        if needed & set(node.output) and node.op_type not in ("Shape", "Size"):
            needed.update(reads(node))
    return needed - valued


def completed(runs: Iterable[Rounded], once: Callable[[Rounded], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `once` makes of each run; a run in which rounding changes a size, so that others do not fit, has no end and
    says nothing."""
    made = []
    for run in runs:
        with suppress(ValueError, IndexError, Unfit):
            made.append(once(run))
    return made


COUNTS = frozenset({"Add", "Cast", "Mul", "Sub"})
"""What loops count with."""

FEW = 16
"""Numbers, at the most, that are looked at for being counters."""

MOST = 1 << 28
"""Bytes of what nodes in bodies of loops read that are kept: behind them rounding crosses no edges."""


class Recorder(Oracle):
    """The oracle, keeping what discontinuous operators read: `edges`, by the name of their first output (in a body with
    the :attr:`place` in front); numbers before a cache rounds them, by the name of their tensor; and the results of
    products and interpolations that read what is no number: `hurt`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, EXACT)
        self.edges: dict[str, list[Any]] = {}
        self.hurt: set[str] = set()
        self.bytes = 0

    def evaluate(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        read = [v.array for v in values if v is not None and is_real(v.kind)] if _weighs(call) else []
        if not all(np.isfinite(array).all() for array in read):
            self.hurt.update(call.node.output)
        if (
            has_edges(call)
            or call.op == "Tan"
            or (call.op in INTEGER_EDGES and values[0] is not None and not is_real(values[0].kind))
        ):
            self._remember(self.place + call.node.output[0], [v.array if v is not None else None for v in values])
        return super().evaluate(call, domain, values)

    def _remember(self, name: str, read: list[Array | None]) -> None:
        """What a node reads; of bodies, which may be evaluated thousands of times, up to :data:`MOST`."""
        if self.place:
            self.bytes += sum(array.nbytes for array in read if array is not None)
        if not self.place or self.bytes < MOST:
            self.edges[name] = read

    def kept(self, name: str, array: Array, kind: str) -> Array:
        self.edges[name] = [array]
        return super().kept(name, array, kind)


class Rounded(Oracle):
    """A run that rounds.

    Args:
        edges: of the exact run.
        sign: where inputs at edges are moved: +1 up, -1 down.
        allowed: the rms error, relative to a tensor's rms, that an engine may have without a question.
        moves: what is quantised, "everywhere" by what it differs from the exact run: behind many quantisations that
            grows until nothing of the result is left, which every integer there may need, as an engine crosses other
            edges than these runs, and which hides any error of a float. Between two kernels a few elements are a step
            off, and that says nothing of their neighbours: each is moved by what it differs itself, "there".
    """

    def __init__(
        self, model: Any, arithmetic: Arithmetic, edges: dict[str, list[Any]], sign: int, allowed: float,
        moves: Moves = "everywhere",
    ) -> None:  # fmt: skip
        super().__init__(model, replace(arithmetic, edge=sign * 2.0**-22))
        self.edges, self.sign, self.allowed, self.moves = edges, sign, allowed, moves
        self.narrow = operands(self.graph.node) if arithmetic.operands is not None else set()
        self.sizes = sizes(self.graph, self.inputs)
        self.generator = np.random.default_rng(sign + 1)
        self.unrounded: dict[str, Array] = {}  # what caches are made of, by the name of their tensor

    def evaluate(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """One node: exactly where it makes sizes."""
        if self.sizes.isdisjoint(call.node.output):
            return self.rounded(call, domain, values)
        usual, self.arithmetic = self.arithmetic, EXACT
        try:
            return super().evaluate(replace(call, arithmetic=EXACT), domain, values)
        finally:
            self.arithmetic = usual

    def rounded(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """One node that makes numbers."""
        stays = self.moves == "never"
        if jumps(call) and not stays:
            return self._jumped(call, domain, values)
        stays |= call.op == "Equal" and self.sign > 0  # numbers that rounding makes equal are so where they stay
        given = values
        moves = has_edges(call) and call.op not in INSIDE and not stays
        if moves and values and values[0] is not None and is_real(values[0].kind):
            if call.op in (SELECT, ANY, "NonMaxSuppression"):
                values = self._boxes_moved(call, values)
            else:
                values = [self._moved(call, values), *values[1:]]
        dynamic = call.op == "DynamicQuantizeLinear"
        results = super().evaluate(call, domain, given if dynamic else values)
        if values is not given and dynamic:
            results = self._by_its_own_scale(values[0], results)
        if values is not given and call.op in INTEGERS:
            results = self._farther(call, domain, given, results)
        if call.op in (SELECT, ANY):
            results = [self._doubtful_moved(call, results[0])]
        if call.op == "Tan":
            results = [self._beyond_poles(call, given[0], results[0])]
        for index, name in enumerate(call.node.output[: len(results)]):
            value = results[index]
            if name in self.narrow and value is not None and is_real(value.kind):
                results[index] = Value(self.arithmetic.rounded(value.array), value.kind)
        return results

    @staticmethod
    def _by_its_own_scale(moved: Value | None, results: list[Value | None]) -> list[Value | None]:
        """Moved numbers quantised by the scale and the zero point of the numbers as they were: moved together they have
        another zero point, and are the same integers."""
        codes, scale, zero = results
        if moved is None or codes is None or scale is None or zero is None:
            return results
        found = steps(moved.array.astype(np.float64), np.asarray(scale.array, np.float64), zero.array, codes.kind)
        return [Value(found, codes.kind), scale, zero]

    def _exact(self, call: Call) -> list[Any]:
        """What the node read in the exact run, here and for this time; empty where nothing was kept."""
        return self.edges.get(self.place + call.node.output[0], [])

    def _farther(
        self, call: Call, domain: str, given: list[Value | None], moved: list[Value | None]
    ) -> list[Value | None]:
        """Results of moved numbers or of the numbers that were `given`, whichever are farther from the exact ones: a
        number that rounding takes to another end of its range is beyond that range when it is moved, and wraps."""
        edges = self._exact(call)
        if len(edges) != len(given):
            return moved
        exact = [None if v is None or e is None else Value(e, v.kind) for v, e in zip(given, edges, strict=True)]
        right, plain = (super(Rounded, self).evaluate(call, domain, v)[0] for v in (exact, given))
        first = moved[0]
        if first is None or right is None or plain is None or is_real(first.kind):
            return moved
        arrays = [np.asarray(v.array) for v in (right, plain, first)]
        if len({a.shape for a in arrays}) > 1:
            return moved
        a, b, c = (x.astype(np.float64) for x in arrays)
        found = np.where(np.abs(b - a) > np.abs(c - a), arrays[1], arrays[2])
        return [Value(found, first.kind), *moved[1:]]

    def kept(self, name: str, array: Array, kind: str) -> Array:
        """Numbers as a cache has them, each row moved by a little more than its own error."""
        self.unrounded[name] = array
        exact = self.edges.get(name, [None])[0]
        if np.shape(exact) == array.shape:
            error = np.nan_to_num(np.abs(array - exact), nan=0.0, posinf=0.0)
            width = MARGIN * (error + rms_of_rows(error)) + self.allowed * rms_of_rows(exact)
            array = array + (self.sign * width).astype(array.dtype)
        return super().kept(name, array, kind)

    def _jumped(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """The results of one of :data:`JUMPS`; where they jump when its input is moved, as they are behind the edge."""
        results, at = super().evaluate(call, domain, values), JUMPS[call.op]
        value, exact = values[at], (self._exact(call) or [None] * len(values))[at]
        if value is None or np.shape(exact) != value.array.shape or not value.array.size:
            return results
        error = np.nan_to_num(np.abs(value.array - exact), nan=0.0, posinf=0.0)
        spread = float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))
        width = MARGIN * (error + spread) + (self.allowed * _rms(exact) if spread and call.op != "TopK" else 0.0)
        way: Any = self.generator.uniform(-1, 1, error.shape) if call.op in CHOICES else self.sign
        moved = Value(value.array + (way * width).astype(value.array.dtype), value.kind)
        others = super().evaluate(call, domain, [moved if i == at else v for i, v in enumerate(values)])
        far = 2.0 * float(np.max(width)) if at == 0 else 0.0
        for index, (one, other) in enumerate(zip(results, others, strict=True)):
            if one is not None and other is not None and one.array.shape == other.array.shape:
                jumped = (
                    (one.array != other.array)
                    if far == 0 or not is_real(one.kind)
                    else (np.abs(one.array - other.array) > far)
                )
                results[index] = Value(np.where(jumped, other.array, one.array), one.kind)
        return results

    def _moved(self, call: Call, values: list[Value | None]) -> Value:
        first = values[0]
        assert first is not None
        if call.get(ROUNDS, 0):
            return self._moved_rows(call, first)
        width = np.zeros(())
        for value, exact in zip(values, self._exact(call), strict=False):
            if value is None or not is_real(value.kind) or np.shape(exact) != value.array.shape:
                continue
            if call.op == "QuantizeLinear" and value is not first:
                break
            error = np.nan_to_num(np.abs(value.array - exact), nan=0.0, posinf=0.0)
            usual = error
            if self.moves != "everywhere" and call.op == "QuantizeLinear":
                usual = np.minimum(error, self.allowed * _rms(exact))
                error = error if self.moves == "there" else usual
            spread = float(np.sqrt(np.mean(np.square(usual, dtype=np.float64)))) if error.size else 0.0
            width = width + MARGIN * (error + spread)
            if spread and call.op not in CHOICES:
                width = width + self.allowed * _rms(exact)
        if call.op == "QuantizeLinear":  # one engine divides, in the type of the scale, another multiplies
            scale = values[1]
            narrow = scale is not None and is_real(scale.kind) and scale.kind.itemsize == 2
            share = float(ml_dtypes.finfo(scale.kind).eps) if scale is not None and narrow else 2.0**-22
            width = width + share * np.abs(first.array)
        if width.shape != first.array.shape:
            width = np.broadcast_to(width, np.broadcast_shapes(width.shape, first.array.shape))
            if width.shape != first.array.shape:
                width = np.asarray(width.max(initial=0.0))
        way: Any = self._ways(first.array.shape)
        if call.op in CHOICES:
            way = self.generator.uniform(-1, 1, first.array.shape)
        moved: Array = first.array + (way * width).astype(first.array.dtype)
        return Value(moved, first.kind)

    def _ways(self, shape: tuple[int, ...]) -> Any:
        """Where each input of an edge is moved: all to one side."""
        return self.sign

    def _boxes_moved(self, call: Call, values: list[Value | None]) -> list[Value | None]:
        """Boxes and their scores, each moved by chance by a little more than its own rounding error."""
        moved = list(values)
        for index, exact in enumerate(self._exact(call)[:2]):
            value = values[index]
            if value is not None and np.shape(exact) == value.array.shape and value.array.size:
                error = np.nan_to_num(np.abs(value.array - exact), nan=0.0, posinf=0.0)
                width = MARGIN * (error + np.sqrt(np.mean(np.square(error, dtype=np.float64))))
                way = self.generator.uniform(-1, 1, error.shape)
                moved[index] = Value(value.array + (way * width).astype(value.array.dtype), value.kind)
        return moved

    def _doubtful_moved(self, call: Call, value: Value | None) -> Value | None:
        """Selected boxes, from the first one that rounding exchanges on as far off as they can be: none in one run, and
        the last of the last class in the other. Which ones follow hangs on that one."""
        exact = self._exact(call) or [None]
        if value is None or any(array is None for array in exact) or exact[0].shape[0] != value.array.shape[0]:
            return value
        other = value.array != selected(*exact[:5], any_class=call.op == ANY)
        far = exact[1].shape[1] * exact[1].shape[2] - 1 if self.sign > 0 else -1
        return Value(np.where(np.logical_or.accumulate(other, 1), far, value.array), value.kind)

    def _beyond_poles(self, call: Call, angle: Value | None, value: Value | None) -> Value | None:
        """A tangent whose angle is no better known than its distance from a pole may be any number: one as far off as
        float32 comes, up in one run and down in the other."""
        exact = (self._exact(call) or [None])[0]
        if angle is None or value is None or np.shape(exact) != angle.array.shape:
            return value
        error = np.nan_to_num(np.abs(angle.array - exact), nan=np.inf)  # beyond float32 here, and maybe nowhere else
        turns = np.nan_to_num(angle.array.astype(np.float64) / np.pi - 0.5, posinf=0.0, neginf=0.0)
        beyond = np.isfinite(exact) & (np.pi * np.abs(turns - np.round(turns)) < MARGIN * error)
        return Value(np.where(beyond, self.sign * FARTHEST_TANGENT, value.array).astype(value.array.dtype), value.kind)

    def _moved_rows(self, call: Call, first: Value) -> Value:
        """Rows that are rounded to 8 bits, moved by what an engine's may be off without a question, and no more: where
        bytes before them differ they differ already, and moving them by that would make it many times as much."""
        exact = (self._exact(call) or [None])[0]
        if exact is None or np.shape(exact) != first.array.shape:
            return first
        if not (first.array != exact)[np.isfinite(exact)].any():
            return first
        width = self.sign * self.allowed * _rms(exact)
        moved: Array = first.array + np.asarray(width, first.array.dtype)
        return Value(moved, first.kind)


def _rms(exact: Array) -> float:
    """The root of the mean square of the finite numbers; 0 where there are none."""
    finite = exact[np.isfinite(exact)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def rms_of_rows(array: Array) -> Array:
    """The root of the mean square of the finite numbers of each row, along the last axis, which stays."""
    finite = np.where(np.isfinite(array), array, 0).astype(np.float64)
    return np.asarray(np.sqrt(np.square(finite).sum(-1, keepdims=True) / max(1, array.shape[-1])))


class Nudged(Rounded):
    """A run that rounds otherwise than NumPy does: what a sum adds up, and every result, is moved by an epsilon.

    One run is one sample of what rounding does, and a chain of a few numbers may have none by chance. An error of a sum
    is relative to its terms, so these are moved; where all have one sign, as numbers around 1000, what they are moved
    by cancels, and adding them one after the other does not: so the sum is moved, too. Operands that are rounded to 16
    bits are moved by as much as that does: behind a factor that is folded into weights they are rounded to other
    numbers. So is a result of 16 bits: an engine may keep it wider for one reader and store it for another. A 3x3
    convolution in float32 is computed in tiles, whose transforms round as the largest number of a tile asks. Every
    other run has 0 for numbers below the smallest normal float32, as our Exp and products of bfloat16 have.

    Args:
        scatters: each input of an edge is moved to a side of its own: several behind one result need not jump together.
            In every other two of such runs by a part of its width: a remainder of a large number may be any number.
    """

    def __init__(
        self, model: Any, arithmetic: Arithmetic, edges: dict[str, list[Any]], seed: int, allowed: float,
        moves: Moves = "everywhere", scatters: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model, arithmetic, edges, 1 if seed % 2 else -1, allowed, moves)
        self.random = np.random.default_rng(seed)
        self.flushes, self.scatters, self.partly = seed % 2 == 1, scatters, seed % 4 > 1
        if scatters:
            self.arithmetic = replace(self.arithmetic, sides=self.random)

    def rounded(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        if call.op in COUNTS and _counted(values):
            return super().rounded(call, domain, values)
        adds = call.op in SUMS or call.op.startswith("Reduce") or call.op.endswith(NORM)
        if adds:
            heavy = call.op in HEAVY  # a factor is folded into weights of 16 bits, too
            narrow = heavy and self.arithmetic.operands is not None
            epsilon = float(ml_dtypes.finfo(self.arithmetic.operands).eps) / 2 if narrow else EPSILON
            epsilon *= IN_A_ROW if call.op in RECURRENT else 1.0
            values = [self._nudged(v, max(epsilon, _rounding_of(v)) if heavy else epsilon) for v in values]
        tiled = self._by_tiles(call, values)
        results: list[Value | None] = [tiled] if tiled is not None else super().rounded(call, domain, values)
        if not (call.op in CHOOSE or has_edges(call)):
            results = [self._nudged(r, _rounding_of(r)) for r in results]
        if call.op in TAILS:
            results = [self._tail_moved(values, results[0]), *results[1:]]
        return [self._flushed(r) for r in results] if self.flushes else results

    def _ways(self, shape: tuple[int, ...]) -> Any:
        if not self.scatters:
            return self.sign
        return self.random.uniform(-1.0, 1.0, shape) if self.partly else self.random.choice([-1.0, 1.0], shape)

    def _tail_moved(self, values: list[Value | None], result: Value | None) -> Value | None:
        """One of :data:`TAILS`, moved by an epsilon of what it reads."""
        read = [v.array for v in values if v is not None]
        if result is None or result.kind == np.float64 or not read:
            return result
        size = np.abs(sum(read[1:], read[0]))
        moved = result.array + EPSILON * size * self.random.uniform(-1, 1, result.array.shape)
        return Value(np.where(np.isfinite(size), moved, result.array).astype(result.array.dtype), result.kind)

    def _flushed(self, value: Value | None) -> Value | None:
        if value is None or not isinstance(value.array, np.ndarray) or value.kind not in FLUSHED:
            return value
        tiny = (value.array != 0) & (np.abs(value.array) < np.finfo(np.float32).tiny)
        return Value(np.where(tiny, 0, value.array), value.kind) if tiny.any() else value

    def _by_tiles(self, call: Call, values: list[Value | None]) -> Value | None:
        """A 3x3 convolution as some kernels compute it; None for all else, and where operands have 16 bits."""
        if call.op != "Conv" or self.arithmetic.operands is not None:
            return None
        x, w, *bias = (None if v is None else v.array for v in values)
        if x is None or w is None or x.dtype == np.float64 or not has_tiles(call, x, w):
            return None
        return Value(conv_by_tiles(call, x, w, *bias), np.dtype(np.float32))

    def _nudged(self, value: Value | None, epsilon: float = EPSILON) -> Value | None:
        if value is None or not isinstance(value.array, np.ndarray) or not is_real(value.kind):
            return value
        epsilon = min(epsilon, EPSILON * DIGITS) if value.kind == np.float64 else epsilon
        moved = np.empty_like(value.array, order="C")
        to, given = moved.reshape(-1), value.array.reshape(-1)
        for start in range(0, given.size, PIECE):  # drawn in double precision, which of a large weight is much memory
            part = given[start : start + PIECE]
            to[start : start + PIECE] = part * (1 + epsilon * self.random.uniform(-1, 1, part.shape))
        beyond = np.isinf(moved) & np.isfinite(value.array)  # the fill of a mask is the largest number there is
        return Value(np.where(beyond, value.array, moved) if beyond.any() else moved, value.kind)


def _counted(values: Sequence[Value | None]) -> bool:
    """Whether these are a few whole numbers that a float32 has exactly, as counters of loops are: their sums are, too,
    and 5.999999 would be 5 as an integer."""
    arrays = [v.array for v in values if v is not None]
    few = all(isinstance(array, np.ndarray) and array.dtype.kind in "iuf" and array.size <= FEW for array in arrays)
    return few and all(bool(np.all((np.rint(a) == a) & (np.abs(a) < 1 << 23))) for a in arrays)


def _rounding_of(value: Value | None) -> float:
    """By how much of itself a number of this type is rounded; float32's, where that is more."""
    narrow = value is not None and is_real(value.kind) and value.kind.itemsize == 2
    return float(ml_dtypes.finfo(value.kind).eps) / 2 if value is not None and narrow else EPSILON


def nudges(
    model: Any, precision: str, edges: dict[str, list[Any]], allowed: float, moves: Moves = "everywhere"
) -> list[Rounded]:
    """Further runs that round, each otherwise: for what the first ones do not explain."""
    arithmetic = arithmetic_of(precision)
    runs: list[Rounded] = [Nudged(model, arithmetic, edges, seed, allowed, moves) for seed in range(MORE)]
    if edges and arithmetic.operands is not None:  # an order of numbers near 1000 is chance, once they are moved
        runs.append(Rounded(model, arithmetic, edges, 1, allowed, "never"))
    return runs


def scattered(
    model: Any, precision: str, edges: dict[str, list[Any]], allowed: float, moves: Moves = "everywhere"
) -> list[Nudged]:
    """Runs in which inputs of edges jump each by itself: for sums of integers that the others do not explain; none
    where a model has no edges."""
    arithmetic = arithmetic_of(precision)
    return [Nudged(model, arithmetic, edges, seed, allowed, moves, True) for seed in range(SIDES if edges else 0)]
