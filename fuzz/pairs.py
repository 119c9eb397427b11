"""ONNX's own node tests with another operator behind their first result: the kind "pairs".

Kernels are fused two by two, and each operator has a schedule of its own: random graphs see few of the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.build import BF16, F16, F32, F64
from fuzz.cases import TYPES, cases, in_type

READ = ""
"""Stands for the first result of the test among the inputs of what is behind it."""
NARROW = (TensorProto.INT8, TensorProto.UINT8)
INTEGERS = (TensorProto.INT32, TensorProto.INT64, *NARROW)
CASTS = (F32, F16, BF16, F64, *INTEGERS, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL)
REAL = (
    *("Relu", "Sigmoid", "Abs", "Neg", "Floor", "Erf", "Exp", "Tanh", "Sign", "HardSwish", "Softplus", "Sqrt", "Log"),
    *("Reciprocal", "Selu", "LeakyRelu", "Round", "Sin"),
)
"""Operators of one real number each."""
AXIS = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "Flatten")
REDUCED = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "ReduceLogSumExp", "ReduceProd")


@dataclass(frozen=True)
class Behind:
    """An operator that reads the result of a test.

    Attributes:
        inputs: :data:`READ` or constants. to: the type of its first result; 0: that of what it reads.
        results: how many it has. spare: how many more, which are no outputs.
    """

    op: str
    inputs: tuple[Any, ...] = (READ,)
    attributes: dict[str, Any] = field(default_factory=dict)
    to: int = 0
    results: int = 1
    spare: int = 0


def pair(index: int) -> onnx.ModelProto:
    """The model number `index`: every test in every type with everything that fits behind it, mixed; in half of them
    the result of the test is an output, too."""
    tests = cases()
    for attempt in range(100):
        rng = np.random.default_rng([index, attempt, 23])
        test = tests[int(rng.integers(len(tests)))]
        kind = TYPES[int(rng.choice(len(TYPES), p=(0.55, 0.15, 0.15, 0.15)))]
        model = in_type(test, kind, "outside")
        made = model.graph.output[0].type.tensor_type
        shape = [d.dim_value for d in made.shape.dim]
        opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
        following = list(behind(shape, made.elem_type, opset, rng)) if opset else []
        if following:
            return _with(model, following[int(rng.integers(len(following)))], kept=bool(rng.random() < 0.5))
    raise RuntimeError(f"no pair for {index}")


def _with(model: onnx.ModelProto, after: Behind, kept: bool) -> onnx.ModelProto:
    read, names = model.graph.output[0], []
    for i, given in enumerate(after.inputs):
        names.append(read.name if isinstance(given, str) else f"fuzz_{i}")
        if not isinstance(given, str):
            model.graph.initializer.append(numpy_helper.from_array(given, names[-1]))
    results = [f"fuzz_out{i}" for i in range(after.results)]
    spare = [f"fuzz_spare{i}" for i in range(after.spare)]
    model.graph.node.append(helper.make_node(after.op, names, [*results, *spare], "fuzz_behind", **after.attributes))
    kind = read.type.tensor_type.elem_type
    if not kept:
        del model.graph.output[0]
    for name in results:
        model.graph.output.append(helper.make_tensor_value_info(name, after.to or kind, None))
    return model


def behind(shape: list[int], kind: int, opset: int, rng: np.random.Generator) -> Iterator[Behind]:
    """What fits behind a tensor of this shape and type."""
    if kind not in (*TYPES, *INTEGERS, TensorProto.BOOL) or not all(shape):
        return
    real, rank, dtype = kind in TYPES, len(shape), helper.tensor_dtype_to_np_dtype(kind)

    def numbers(*sizes: int) -> np.ndarray:
        return np.asarray(rng.integers(-3, 4, sizes) if not real else rng.standard_normal(sizes)).astype(dtype)

    yield from (Behind("Cast", attributes={"to": to}, to=to) for to in CASTS if to != kind)
    yield from _moved(shape, opset, rng)
    if kind == TensorProto.BOOL:
        yield Behind("Not")
        yield Behind("And", (READ, READ))
        return
    yield Behind("Where", (rng.random(shape[-1:]) < 0.5, READ, numbers()))
    yield Behind("Equal", (READ, READ), to=TensorProto.BOOL)
    yield Behind("Less", (READ, numbers()), to=TensorProto.BOOL)
    for op in ("Add", "Mul", "Sub", "Max", "Min"):
        if op not in ("Max", "Min") or opset >= 13:
            yield Behind(op, (READ, READ))
            yield Behind(op, (numbers(*shape[-1:]), READ))
    yield Behind("Pad", (READ, np.int64([0, 1] * rank), numbers()) if rank else (READ, np.int64([]), numbers()))
    if not real:
        return
    yield from (Behind(op) for op in REAL if opset >= 14 or op != "HardSwish")
    yield Behind("Clip", (READ, np.asarray(-0.5, dtype), np.asarray(0.75, dtype)))
    if kind == F32:
        yield Behind("QuantizeLinear", (READ, np.float32(0.05), np.uint8(3)), to=TensorProto.UINT8)
    if rank:
        yield from _along(shape, opset, numbers)


def _moved(shape: list[int], opset: int, rng: np.random.Generator) -> Iterator[Behind]:
    """What moves elements, of any type."""
    rank = len(shape)
    yield Behind("Reshape", (READ, np.int64([-1])))
    yield Behind("Expand", (READ, np.int64([3, *shape])))
    if not rank:
        return
    yield Behind("Transpose", attributes={"perm": [int(a) for a in rng.permutation(rank)]})
    yield Behind("Slice", (READ, np.int64([shape[-1]]), np.int64([-100]), np.int64([-1]), np.int64([-1])))
    yield Behind("Slice", (READ, np.int64([0]), np.int64([100]), np.int64([0]), np.int64([2])))
    yield Behind("Concat", (READ, READ), {"axis": int(rng.integers(rank))})
    yield Behind("Gather", (READ, rng.integers(0, shape[-1], (2, 3))), {"axis": rank - 1})
    yield Behind("Tile", (READ, np.int64([2, *[1] * (rank - 1)])))
    if opset >= 13:
        yield Behind("Unsqueeze", (READ, np.int64([0])))
        yield (
            Behind("Split", (READ, np.int64([1, shape[-1] - 1])), {"axis": -1}, results=2)
            if shape[-1] > 1
            else Behind("Identity")
        )


def _along(shape: list[int], opset: int, numbers: Any) -> Iterator[Behind]:
    """What computes along axes of real numbers."""
    rank, whole = len(shape), TensorProto.INT64
    for op in AXIS:
        if op == "CumSum":
            yield Behind(op, (READ, np.int64(-1)))
        else:
            yield Behind(op, attributes={"axis": rank - 1}, to=whole if op.startswith("Arg") else 0)
    for op in REDUCED:
        for axis in (0, -1):
            listed = opset >= (13 if op == "ReduceSum" else 18)
            attributes = {"keepdims": axis + 1} | ({} if listed else {"axes": [axis]})
            yield Behind(op, (READ, np.int64([axis])) if listed else (READ,), attributes)
    yield Behind("TopK", (READ, np.int64([1])), {"axis": -1}, spare=1)
    yield Behind("MatMul", (READ, numbers(shape[-1], 5)))
    yield Behind("MatMul", (numbers(4, shape[-2]), READ) if rank > 1 else (numbers(4, shape[-1]), READ))
    if opset >= 17:
        yield Behind("LayerNormalization", (READ, numbers(shape[-1]), numbers(shape[-1])))
    if rank in (3, 4, 5):
        window = [min(2, s) for s in shape[2:]]
        yield Behind("Conv", (READ, numbers(3, shape[1], *window)))
        yield Behind("ConvTranspose", (READ, numbers(shape[1], 3, *window)))
        yield Behind("MaxPool", attributes={"kernel_shape": window})
        yield Behind(
            "AveragePool", attributes={"kernel_shape": window, "pads": [0] * len(window) + [w - 1 for w in window]}
        )
        yield Behind("GlobalAveragePool")
        yield Behind("InstanceNormalization", (READ, numbers(shape[1]), numbers(shape[1])))
    if rank == 4 and opset >= 11:
        yield Behind("Resize", (READ, np.float32([]), np.float32([1, 1, 2, 2])), {"mode": "linear"})
        yield Behind("SpaceToDepth", attributes={"blocksize": 2})
