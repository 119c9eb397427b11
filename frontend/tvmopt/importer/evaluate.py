"""The value of a node whose inputs are constants, by ONNX's own reference, within bounds."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tvmopt.floats import HALVES
from tvmopt.importer.protos import attributes, normal_domain, subgraphs, words

Array = npt.NDArray[Any]

LINEAR = words(
    """Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Concat Cos CumSum
    DequantizeLinear Div Equal Erf Exp EyeLike Flatten Floor Gather GatherElements GatherND Greater
    GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log Max Min Mod Mul Neg Not OneHot Or Pad Pow Range
    Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round ScatterElements
    ScatterND Shape Sigmoid Sign Sin Size Slice Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Trilu
    Unsqueeze Where Xor"""
)
"""Operators that the reference computes with a few NumPy calls: time grows with the bytes moved."""

LAYERS = words(
    """AffineGrid Attention AveragePool Col2Im Conv ConvInteger ConvTranspose DeformConv Einsum GlobalAveragePool
    GlobalLpPool GlobalMaxPool GridSample GroupNormalization GRU InstanceNormalization LayerNormalization
    LinearAttention LpPool LRN LSTM MatMulInteger MaxUnpool MeanVarianceNormalization NegativeLogLikelihoodLoss
    QLinearConv QLinearMatMul Resize RMSNormalization RNN RotaryEmbedding SoftmaxCrossEntropyLoss Upsample"""
)
"""Operators of networks, which no computation of shapes needs. The reference serves single test cases: it forgets the
groups of a ConvTranspose, the second channel of an LRN, divides by zero for the corners of an axis of one element, and
interpolates what does not count."""

RANDOM = words("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
"""Operators whose result follows from nothing."""

NEVER = RANDOM | words(
    """BitCast QuantizeLinear DynamicQuantizeLinear Dropout ImageDecoder LpNormalization BatchNormalization RoiAlign
    MaxPool TopK LogSoftmax HardSwish"""
)
"""What depends on how a number is stored; random operators; Q/DQ pairs, which carry the precision of a quantised model;
untrusted image files; and what the reference gets wrong: its 1-norm adds up numbers, not their sizes;
BatchNormalization before opset 14 takes the batch's own statistics; RoiAlign before opset 16 moves by half a pixel;
indices of maxima count within a picture; TopK is wrong for -2^63; LogSoftmax is the logarithm of a softmax, so that
-200 becomes minus infinity; a sixth is one of float32 in a HardSwish of float64."""

SUB_BYTE = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
"""Weights that TVM cannot hold as constants: their DequantizeLinear is folded, others are kept."""

MOST_ELEMENTS = 1 << 16
"""Limit of inputs and outputs together for operators outside :data:`LINEAR`: they may loop in Python."""

MOST_SECONDS = 5.0
"""Of processor time for one node: the reference counts to 2^63 where a constant says so."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises a TimeoutError in Python code that takes a processor longer - where a signal can reach it, as in the
    child process in which models are prepared."""

    def end(number: int, frame: Any) -> None:
        raise TimeoutError

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def foldable(node: onnx.NodeProto, inputs: Mapping[str, Array], output_elements: int | None) -> bool:
    """Whether evaluating `node` is deterministic and cheap.

    Args:
        inputs: the constant inputs.
        output_elements: elements of all outputs together, None when unknown.
    """
    if normal_domain(node.domain) or node.op_type in NEVER | LAYERS or any(True for _ in subgraphs(node)):
        return False
    if any(isinstance(v, float) and not math.isfinite(v) for v in attributes(node).values()):
        return False  # the reference multiplies zeros by what it does not choose: a slope, a factor below a bound
    if node.op_type == "DequantizeLinear" and inputs[node.input[0]].dtype.name not in SUB_BYTE:
        return False
    if node.op_type in BROADCASTS:
        return output_elements is not None
    if node.op_type in LINEAR and output_elements is not None:
        return True
    return sum(a.size for a in inputs.values()) + (output_elements or 0) <= MOST_ELEMENTS


def evaluate(
    node: onnx.NodeProto,
    inputs: Mapping[str, Array],
    opset: int,
    expected: Mapping[str, tuple[int, tuple[int, ...] | None]],
) -> dict[str, Array] | None:
    """The outputs of `node`, or None where the reference fails or disagrees with the inferred types.

    Args:
        inputs: an array for each of the node's inputs.
        opset: version of the default domain.
        expected: element type and shape of the outputs as inferred, as far as known.
    """
    from onnx.reference import ReferenceEvaluator  # few models need it

    if node.op_type in ("Div", "Mod") and (y := inputs[node.input[1]]).dtype.kind in "iu" and not y.all():
        return None  # NumPy's integers make 0 of it
    outputs = [o for o in node.output if o]
    names, narrow = list(inputs), any(a.dtype.name in HALVES for a in inputs.values())
    inputs = {n: _widened(a) for n, a in inputs.items()}
    function = helper.make_function("tvmopt", "fold", names, outputs, [node], [helper.make_opsetid("", opset)])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), _within(MOST_SECONDS):
            warnings.simplefilter("ignore")
            if (own := OWN.get(node.op_type)) is not None:
                results = [own(node, inputs)]
            else:
                results = ReferenceEvaluator(function).run(None, dict(inputs), attributes={})
    except MemoryError:
        raise
    except Exception:  # the node stays in the graph and its converter has the say
        return None
    values = {}
    for name, result in zip(outputs, results, strict=True):
        if not isinstance(result, np.ndarray | np.generic):
            return None
        array = np.asarray(result)
        if name in expected:
            elem_type, shape = expected[name]
            if shape is not None and array.shape != shape:
                return None
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
            if dtype.name in HALVES and array.dtype == np.float32:
                array = array.astype(dtype)
            if array.dtype != dtype and array.dtype.kind != "U":
                return None
        elif array.dtype == np.float32 and narrow:
            return None  # it may have to be narrow, too
        values[name] = array
    return values


def _widened(array: Array) -> Array:
    """Numbers of 16 bits as float32."""
    return array.astype(np.float32) if array.dtype.name in HALVES else array


def _constant_of_shape(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> Array:
    """One element, seen at every index: no memory is touched until somebody writes the weights out."""
    shape = tuple(int(d) for d in inputs[node.input[0]])
    value = attributes(node).get("value", np.zeros(1, np.float32))
    return np.broadcast_to(value.reshape(()), shape)


def _expand(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> Array:
    """A broadcast both ways, as a view."""
    array, shape = (inputs[i] for i in node.input)
    target = np.broadcast_shapes(array.shape, tuple(int(d) for d in shape))
    return np.broadcast_to(array, target)


def _erf(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> Array:
    """The reference computes float64 in float32."""
    (x,) = inputs.values()
    found: Array = np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)
    return found


def _gather_elements(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> Array:
    """The reference wraps an index that is out of range step by step, which takes hours for one of 2^62; here it is
    an IndexError."""
    data, indices = (inputs[i] for i in node.input)
    axis = range(data.ndim)[attributes(node).get("axis", 0)]
    within = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))
    return np.take_along_axis(data[within], indices.astype(np.int64), axis)


BROADCASTS = {"ConstantOfShape": _constant_of_shape, "Expand": _expand}
"""Operators whose value is one small array repeated."""
OWN = {**BROADCASTS, "Erf": _erf, "GatherElements": _gather_elements}
"""Those and others that are computed here."""
