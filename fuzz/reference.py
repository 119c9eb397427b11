"""What a model should give: onnxruntime without optimisations and the oracle, and a loose comparison with them.

Whether numbers are right is for the project's own judge to say (`fuzz/verdict.py`). This comparison is independent of
it and only sees gross errors; it is there to find what the judge accepts and should not. Where results differ, the
same model runs again with inputs and weights moved in their last digits, and in the oracle with every result moved:
an element that moves with them is decided by rounding (a tie of an ArgMax, a floor at an integer, a sum that cancels,
the mean of equal numbers), and is allowed to differ as much.
"""

from __future__ import annotations

import ctypes
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.inputs import Array, Feeds

EPSILON = {
    TensorProto.DOUBLE: 2.0**-23,
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.BFLOAT16: 2.0**-7,
}
GROSS = 1e-3
"""An error relative to an output's largest value that rounding of float32 does not explain, where nothing moves it."""
FACTOR = 16.0
"""The same in units of a coarser type."""
MOVES = (1, 1, 8, 8, 1, 1, 1, 4, 4, 8, 8, 8)
"""By how many epsilons inputs are moved, one run each."""
EXCESS = 4.0
"""Our error against the oracle may be so many times onnxruntime's, where that is above the tolerance."""
TOP = 1e-2
"""Numbers that are this near to the largest of their type may be beyond it where sums are ordered otherwise."""
LARGE = 1e9
"""Products of a few inputs beyond this leave float32."""
FEW = 2e-3
"""The share of elements of a 16-bit type that may differ: a run in which inputs are moved is a sample and shows few
of the elements at an edge (a sum that cancels, a score that ties). A kernel's fault is in more of them, or larger."""
CHOOSING = {"ArgMax", "ArgMin", "TopK", "Hardmax"}
"""Operators to which a NaN is the largest number: where a kernel spreads one over a tile, they choose it."""
CUT = {"Resize", "Upsample"}
"""Operators that cut off what is behind the point of sums of integers: a sum that is whole may be a step less."""
FLOAT8 = {TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ}
QUANTISED = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulInteger"}


class Unable(Exception):
    """This reference cannot run the model."""


@dataclass
class Reference:
    """onnxruntime, optimisations off, on one model; where it has no kernels for the model, the oracle alone.

    Raises:
        Unable: neither runs the model.
    """

    model: onnx.ModelProto
    precision: str = "fp32"
    _moved: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = [*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output]
        self.narrow = any(v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for v in values)
        self.session = None
        if any(map(_saturates_oddly, self.model.graph.node)):
            return
        try:
            self.session = _session(self.model)
        except Unable as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Outputs by name.

        Raises:
            Unable: onnxruntime refuses the inputs, or fails.
        """
        if self.session is None:
            return oracle(self.model, feeds)
        return _run(self.session, feeds)

    def agrees(self, expected: dict[str, Array], found: dict[str, Array], feeds: Feeds) -> str:
        """Empty where our outputs are about as good as the reference's; else what is wrong with them."""
        broken = any(a.dtype.kind in "fV" and not np.isfinite(_wide(a)).all() for a in feeds.values())
        if broken and any(map(_takes_nearest, self.model.graph.node)):
            return ""
        if broken and any(n.op_type in CHOOSING for n in self.model.graph.node) and self._spreads(feeds):
            return ""
        lost = any(a.dtype.kind in "fV" and np.isnan(_wide(a)).any() for a in found.values())
        spreads = lost and self._spreads(feeds)
        if broken:
            found = self._hidden(expected, found, feeds)
        large = any(a.dtype.kind in "fV" and (np.abs(_wide(a)) > LARGE).any() for a in feeds.values())
        if large:
            expected, found = _without_signs(expected), _without_signs(found)
        broken |= spreads
        expected = {n: a for n, a in expected.items() if n not in self._of_infinite_scores(feeds)}
        ours, found = found, _spread(expected, found) if broken else found
        slack = {name: np.zeros(1) for name in expected}
        problem = self._compare(expected, found, slack)
        if not problem:
            return ""
        try:
            truth = oracle(self.model, feeds)
            truth = _without_signs(truth) if large else truth
            known = _spread(truth, ours) if broken else ours
            own = {n: EXCESS * _worst(expected[n], truth[n]) for n in expected}
            if not self._compare(truth, known, own):
                return ""
        except Unable:
            truth = {}
        for index, size in enumerate(MOVES):
            try:
                moved = self._moved_run(index, _move(feeds, self.epsilon * size, index))
            except Unable:
                continue
            for name in expected:
                slack[name] = np.maximum(slack[name], _allowed(expected[name], _distance(expected[name], moved[name])))
        if truth and self._compare(expected, found, slack):
            for moved in self._moved_inside(feeds):
                for name in expected:
                    far = _distance(truth[name], moved[name])
                    slack[name] = np.maximum(slack[name], _allowed(truth[name], far))
        return (
            self._compare(expected, found, slack)
            and ((truth and self._compare(truth, _spread(truth, ours) if broken else ours, slack)) or problem)
            and self._as_written(ours, feeds, slack, large, broken)
            and problem
        )

    def _spreads(self, feeds: Feeds) -> bool:
        """Whether a weight, or what a product reads in this run, is no number."""
        from tvmopt.analysis.deviation import spreading
        from tvmopt.analysis.oracle.rounding import Recorder

        constants = [numpy_helper.to_array(t) for t in self.model.graph.initializer if t.data_type in EPSILON]
        if any(not np.isfinite(_wide(a)).all() for a in constants):
            return True
        recorder = Recorder(self.model)
        with suppress(Exception):  # a damaged model: whatever NumPy says of it
            recorder.run(feeds)
        return bool(spreading(self.model, recorder.hurt))

    def _of_infinite_scores(self, feeds: Feeds) -> set[str]:
        """Outputs that are chosen from scores of 16 bits which overflow: which element it is depends on what an engine
        keeps wider, and the judge alone looks at the scores. Or from what is interpolated beside an infinity: of a
        neighbour of weight 0 one engine makes NaN, and another one nothing."""
        from tvmopt.analysis.oracle.rounding import INTERPOLATES
        from tvmopt.analysis.ties import choices

        open_ = self.narrow or any(n.op_type in INTERPOLATES for n in self.model.graph.node)
        chosen = choices(self.model) if open_ else {}
        if not chosen:
            return set()
        try:
            scores = _scores(self.model, feeds, [c.scores for c in chosen.values()])
        except Unable:
            return set()
        lost = {n for n, c in chosen.items() if not np.isfinite(_wide(scores[c.scores])).all()}
        return {o for node in self.model.graph.node if lost & set(node.output) for o in node.output}

    def _moved_inside(self, feeds: Feeds) -> list[dict[str, Array]]:
        """Outputs of runs of the oracle that round, and move each result by a rounding error: equal inputs need not
        give equal results, and an operand of 16 bits differs from the number that it was."""
        from tvmopt.analysis.oracle.rounding import Recorder, nudges

        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                recorder = Recorder(self.model)
                recorder.run(feeds)
                return [run.run(feeds) for run in nudges(self.model, self.precision, recorder.edges, 0.0)]
        except Exception:  # a run in which rounding changes a size, or a damaged model
            return []

    def _as_written(
        self, ours: dict[str, Array], feeds: Feeds, slack: dict[str, Array], large: bool, broken: bool
    ) -> str:
        """How our outputs differ from a run that stores each tensor in the type that the model gives it and adds up in
        float32: onnxruntime keeps float16 wider from one node to the next, and the oracle all numbers. Where the
        range of a type alone makes a result no number, a fused multiply-add, or another order of a sum, may make
        another one of it. Or from a run without that range which rounds what products read, and sums: that decides
        what a softmax takes of scores of a million that attention keeps in registers. An engine may store some tensors
        of 16 bits and keep others wider: then the distance of both runs is allowed, too. Of a number in place of which
        the range alone gives none, nothing is said: it may be the difference of two that have few digits."""
        from tvmopt.analysis.deviation import decided, ranged
        from tvmopt.analysis.oracle.overflow import Undecided
        from tvmopt.analysis.oracle.rounding import TYPES, arithmetic_of
        from tvmopt.analysis.oracle.values import UNLIMITED, Arithmetic

        try:
            stored = oracle(self.model, feeds, arithmetic_of(self.precision))
            unlimited = oracle(self.model, feeds, UNLIMITED)
            undecided = oracle(self.model, feeds, kind=Undecided)
            products = TYPES.get(self.precision)
            registers, exactly = (
                oracle(self.model, feeds, Arithmetic(work, products, limits=False)) for work in (np.float32, np.float64)
            )
        except Unable:
            return "unknown"
        beyond = {n: _leaves_range(stored[n], unlimited[n], slack[n]) for n in stored if n in slack}
        stored = {
            n: ranged(decided(a, undecided[n], ours[n]), unlimited[n], ours[n])
            if n in ours and ours[n].shape == a.shape
            else a
            for n, a in stored.items()
        }
        problem = ""
        sums = {n: slack[n] + _allowed(a, _distance(a, exactly[n])) for n, a in registers.items() if n in slack}
        if self.coarse:
            between = {n: _allowed(a, _distance(a, registers[n])) for n, a in stored.items() if n in slack}
            beyond, sums = ({n: a + between[n] for n, a in free.items()} for free in (beyond, sums))
        for run, free in ((stored, beyond), (registers, sums)):
            ought = _without_signs(run) if large else run
            problem = self._compare(ought, _spread(ought, ours) if broken else ours, free)
            if not problem:
                return ""
        return problem

    def _hidden(self, expected: dict[str, Array], found: dict[str, Array], feeds: Feeds) -> dict[str, Array]:
        """Our outputs without numbers that are right whatever stands in place of what is none: a mask hides it."""
        both = []
        for number in (1e3, -1e3):
            plain = {
                n: np.where(np.isfinite(_wide(a)), a, a.dtype.type(number)) if a.dtype.kind in "fV" else a
                for n, a in feeds.items()
            }
            try:
                both.append(self.run(plain))
            except Unable:
                return found
        kept = dict(found)
        for name, want in expected.items():
            one, other = both[0][name], both[1][name]
            if want.dtype.kind in "fV" and want.shape == found[name].shape == one.shape == other.shape:
                near = np.isclose(_wide(found[name]), _wide(one), rtol=1e-2, atol=1e-3)
                excused = (one == other) & near & ~np.isfinite(_wide(want))
                kept[name] = np.where(excused, want, found[name]).astype(want.dtype)
        return kept

    @property
    def epsilon(self) -> float:
        """The rounding of the coarsest floating type in the graph, or of the precision asked for."""
        kinds = {t.data_type for t in self.model.graph.initializer}
        kinds |= {v.type.tensor_type.elem_type for v in [*self.model.graph.input, *self.model.graph.output]}
        kinds |= {a.i for n in self.model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
        coarse = {"bf16": 2.0**-8, "fp16": 2.0**-11}.get(self.precision, 0.0)
        return max([coarse, *(e for k, e in EPSILON.items() if k in kinds)]) or EPSILON[TensorProto.FLOAT]

    @property
    def coarse(self) -> bool:
        """Whether a floating type of the graph, or the precision asked for, is coarser than float32."""
        return self.epsilon > EPSILON[TensorProto.FLOAT]

    def _moved_run(self, index: int, feeds: Feeds) -> dict[str, Array]:
        """Outputs of the model with its weights moved too."""
        if index not in self._moved:
            copy = onnx.ModelProto()
            copy.CopyFrom(self.model)
            rng = np.random.default_rng(index)
            scales = any(n.op_type in QUANTISED for n in copy.graph.node)  # their products decide ties
            for tensor in copy.graph.initializer:
                if tensor.data_type in EPSILON and (scales or np.prod(tensor.dims) > 1):
                    array = _nudged(numpy_helper.to_array(tensor), self.epsilon * MOVES[index], rng)
                    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            self._moved[index] = _session(copy) if self.session is not None else copy
        known = self._moved[index]
        return _run(known, feeds) if self.session is not None else oracle(known, feeds)

    def _compare(self, expected: dict[str, Array], found: dict[str, Array], slack: dict[str, Array]) -> str:
        operators = {n.op_type for n in self.model.graph.node}
        steps = 1.0 if operators & CUT else 0.05 if operators & QUANTISED else 0.0
        for name, want in expected.items():
            if name not in slack:  # nothing is said of it
                continue
            if name not in found:
                return f"{name} is missing"
            got = found[name]
            alike = got.ndim == want.ndim or "Loop" in operators
            if not got.size and not want.size and alike and got.dtype == want.dtype:
                continue  # of loops without a step onnxruntime does not know the shape, and believes what the file says
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"{name} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
            few = FEW if self.coarse else 0.0
            problem = _differs(want, got, slack[name], max(GROSS, FACTOR * self.epsilon), steps, few)
            if problem:
                return f"{name}: {problem}"
        return ""


def _leaves_range(stored: Array, unlimited: Array, slack: Array) -> Array:
    """How far numbers may be off; any may stand where only the range of a type makes a result none."""
    if stored.dtype.kind not in "fV" or stored.shape != unlimited.shape:
        return slack
    return np.where(np.isnan(_wide(stored)) & np.isfinite(_wide(unlimited)), np.inf, slack)


def _allowed(want: Array, moved: Array) -> Array:
    """How far numbers may be off that a run moved by so much: several times that, as it is one sample; anything where
    no digit is left, because the last digits of the inputs move it by its own size and more than most others are large
    (the tangent of millions). Where all are zeros, what is left of differences of equal numbers, one sample misses some
    places and not others: each may be off by as much as any."""
    if want.dtype.kind not in "fV" or moved.shape != want.shape or not want.size:
        return 8 * moved
    wide = np.abs(_wide(want))
    if not wide.any():
        return 8 * np.maximum(moved, np.max(moved, where=np.isfinite(moved), initial=0))
    usual = float(np.nanmedian(wide))
    with np.errstate(invalid="ignore"):
        lost = (moved > wide) & (moved > usual) if usual > 0 else np.zeros(want.shape, bool)
    return np.where(lost, np.inf, 8 * moved)


def _differs(want: Array, got: Array, slack: Array, tolerance: float, steps: float, few: float) -> str:
    """How two outputs differ, in words.

    Args:
        steps: the share of integers that may be a step off. few: the share of elements that may differ.
    """
    if not want.size:
        return ""
    if want.dtype.kind in "OUS":
        return "" if np.array_equal(want, got) else "strings differ"
    error = _distance(want, got)
    wide = np.abs(_wide(want))
    finite = np.where(np.isfinite(wide) & (wide < 1e30), wide, 0)
    if not finite.any():  # nothing but numbers as large as a mask's fill
        finite = np.where(np.isfinite(wide), wide, 0)
    allowed = np.zeros(want.shape)
    if want.dtype.kind not in "iub":
        allowed = tolerance * np.maximum(finite.max(), np.where(np.isfinite(wide), wide, 0)) + _smallest(want.dtype)
    with np.errstate(all="ignore"):
        wrong = error > allowed + slack
    if want.dtype.kind in "iu" and wrong.mean() <= steps and error.max() <= 1:
        return ""
    if wrong.mean() <= few:
        return ""
    at = np.unravel_index(int(np.where(wrong, np.nan_to_num(error, posinf=3e38), -1).argmax()), want.shape)
    place = ", ".join(map(str, at))
    figures = f"{int(wrong.sum())} of {want.size} differ, the worst at [{place}]: {got[at]!s}, expected {want[at]!s}"
    return figures + (f" (largest {float(finite.max()):.3g})" if want.dtype.kind not in "iub" else "")


def _takes_nearest(node: onnx.NodeProto) -> bool:
    """Whether it is a GridSample that takes the nearest element: no one says which that is of a place that is none."""
    return node.op_type == "GridSample" and any(a.name == "mode" and a.s == b"nearest" for a in node.attribute)


def _saturates_oddly(node: onnx.NodeProto) -> bool:
    """Whether it is a Cast that a mutation has told to saturate by another number than 0 or 1: onnxruntime takes the
    number's lower half, and a cast to float32 gives 0."""
    return node.op_type == "Cast" and any(a.name == "saturate" and a.i not in (0, 1) for a in node.attribute)


def _spread(expected: dict[str, Array], found: dict[str, Array]) -> dict[str, Array]:
    """Our outputs without what is no number where the reference has one: a kernel may compute whole tiles, or multiply
    by a weight of zero what another leaves out, so what is no number spreads."""
    kept = {}
    for name, array in found.items():
        want = expected.get(name)
        if array.dtype.kind in "fV" and want is not None and want.shape == array.shape:
            kept[name] = np.where(np.isfinite(_wide(array)), array, want).astype(array.dtype)
        else:  # what is decided by a number that is none (a comparison) follows it
            kept[name] = array if want is None or want.dtype.kind not in "bui" or want.shape != array.shape else want
    return kept


def _without_signs(outputs: dict[str, Array]) -> dict[str, Array]:
    """Outputs with NaN for infinities: which of them a sum beyond the largest number gives, its order decides."""
    return {n: np.where(np.isinf(_wide(a)), a.dtype.type(np.nan), a) if a.dtype.kind in "fV" else a
            for n, a in outputs.items()}  # fmt: skip


def _worst(a: Array, b: Array) -> float:
    """The largest finite distance of two outputs: the reference's own error."""
    if a.shape != b.shape:
        return 0.0
    distance = _distance(a, b)
    return float(distance[np.isfinite(distance)].max(initial=0.0))


def _smallest(dtype: np.dtype[Any]) -> float:
    """Below this the numbers of a type lose digits, and some units make zeros of them."""
    return {"float64": 1e-300, "float16": 1e-7}.get(dtype.name, 1e-37)


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64) if array.dtype.kind != "c" else np.abs(array)


def _distance(a: Array, b: Array) -> Array:
    """|a - b|; infinite where one is NaN or an infinity and the other is not the same; 0 where both are, and where one
    is beyond the largest number of the type and the other just below it."""
    if a.shape != b.shape:
        return np.full(a.shape, np.inf)
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        return np.where(a == b, 0.0, np.maximum(np.abs(_wide(a) - _wide(b)), 1.0))
    x, y = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        error = np.abs(x - y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if a.dtype.kind in "fV":
        top = float(ml_dtypes.finfo(a.dtype).max) * (1 - TOP)
        same |= np.isfinite(x) & ~np.isfinite(y) & (np.abs(x) > top) | np.isfinite(y) & ~np.isfinite(x) & (
            np.abs(y) > top
        )
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def _move(feeds: Feeds, epsilon: float, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    return {
        n: _nudged(a, epsilon, rng) if a.dtype.kind in "fV" or a.dtype.name == "bfloat16" else a
        for n, a in feeds.items()
    }


def _nudged(array: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """The array with each number moved by at most `epsilon` of itself."""
    with np.errstate(all="ignore"):
        return np.asarray(_wide(array) * (1 + epsilon * rng.uniform(-1, 1, array.shape))).astype(array.dtype)


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a class of its own for each status
        raise Unable(_brief(error)) from None


def _run(session: Any, feeds: Feeds) -> dict[str, Array]:
    import onnxruntime

    values = {}
    names = [o.name for o in session.get_outputs()]
    try:
        for item in session.get_inputs():
            array = feeds[item.name]
            if array.dtype.name == "bfloat16":
                values[item.name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
            else:
                values[item.name] = onnxruntime.OrtValue.ortvalue_from_numpy(
                    np.ascontiguousarray(array).reshape(array.shape)
                )
        results = session.run_with_ort_values(names, values)
        return {n: _array(r) for n, r in zip(names, results, strict=True)}
    except Exception as error:
        raise Unable(_brief(error)) from None


def _array(value: Any) -> Array:
    """An output as NumPy, which onnxruntime cannot make of bfloat16, and of float8 as codes."""
    kind = value.element_type()
    if kind in FLOAT8:
        return np.asarray(value.numpy()).view(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if kind != TensorProto.BFLOAT16:
        return np.array(value.numpy())
    import ml_dtypes

    words = (ctypes.c_uint16 * int(np.prod(value.shape()))).from_address(value.data_ptr())
    return np.array(words, np.uint16).view(ml_dtypes.bfloat16).reshape(value.shape())


def _brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def oracle(model: onnx.ModelProto, feeds: Feeds, arithmetic: Any = None, kind: Any = None) -> dict[str, Array]:
    """Outputs computed in double precision, or in another arithmetic or run, in the types that the model declares.

    Raises:
        Unable: it cannot run this model.
    """
    from tvmopt.analysis.oracle.evaluate import Oracle
    from tvmopt.analysis.oracle.values import EXACT

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = (kind or Oracle)(model, arithmetic or EXACT).run(feeds)
            outputs = model.graph.output
            if not all(o.type.tensor_type.elem_type for o in outputs):  # a file may leave types to be inferred
                outputs = onnx.shape_inference.infer_shapes(model).graph.output
            declared = {o.name: o.type.tensor_type.elem_type for o in [*outputs, *model.graph.input]}
            arrays = {n: np.asarray(r) for n, r in results.items()}
            return {
                n: a.astype(helper.tensor_dtype_to_np_dtype(declared[n])) if a.dtype.kind == "f" else a
                for n, a in arrays.items()
            }
    except Exception as error:  # a damaged model: whatever NumPy says of it
        raise Unable(f"oracle: {_brief(error)}") from None


def _scores(model: onnx.ModelProto, feeds: Feeds, names: list[str]) -> dict[str, Array]:
    """Tensors of a model in double precision and in the range of their types.

    Raises:
        Unable: it cannot run this model.
    """
    from tvmopt.analysis.oracle.evaluate import Oracle

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return Oracle(model).run(feeds, names)
    except Exception as error:
        raise Unable(f"oracle: {_brief(error)}") from None
