"""Open sizes through the importer: each type that the walk finds holds at every size, and so do the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.dims import Dim, at, holds, near
from tvmopt.errors import InputError, ModelError
from tvmopt.importer import prepare
from tvmopt.importer.open_model import read
from tvmopt.importer.protos import open_shape
from tvmopt.importer.relax import to_relax
from tvmopt.importer.sizes import to_tvm

node = helper.make_node
INT64 = TensorProto.INT64
ALL = -(1 << 63)


def ints(*values):
    return np.array(values, np.int64)


def shape_of(axis, name="x", out="n"):
    """The nodes that compute one size of a tensor, as exporters write them."""
    return [node("Shape", [name], [f"{out}_s"]), node("Gather", [f"{out}_s", f"{out}_i"], [out])], {
        f"{out}_i": ints(axis)
    }


def one(op, inputs=("x",), weights=None, shape=("n", 8, "t"), opset=17, **attrs):
    return model([node(op, list(inputs), ["y"], **attrs)], [value("x", shape)], [value("y", None)], weights, opset)


def chained(nodes, weights=None, inputs=None):
    """Several nodes on x of [n, 8, t]; the last one's output is the model's."""
    return model(nodes, inputs or [value("x", ("n", 8, "t"))], [value(nodes[-1].output[0], None)], weights)


def in_parts(count):
    """An open axis in as many parts, the last of which may be smaller."""
    parts = [f"p{i}" for i in range(count)]
    outputs = [value(p, None) for p in parts]
    return model(
        [node("Split", ["x"], parts, axis=2, num_outputs=count)], [value("x", ("n", 8, "t"))], outputs, None, 18
    )


PICTURE = ("n", 3, "h", "w")
KERNEL = {"k": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")}
BACK = {"k": np.random.default_rng(0).standard_normal((3, 4, 3, 3)).astype("float32")}
N, T = shape_of(0), shape_of(2, out="t")


def cut_off_again(block):
    """What TensorFlow's exporter writes of a dilated convolution: x is filled up to whole blocks, and what filled it is
    cut off by a bound that is -1, -2, ..., or the end of the axis."""
    return chained(
        [*T[0], node("Mod", ["t", "block"], ["over"]), node("Sub", ["block", "over"], ["left"]),
         node("Mod", ["left", "block"], ["rest"]), node("Concat", ["none", "rest"], ["by"], axis=0),
         node("Pad", ["x", "by"], ["filled"]), node("Equal", ["rest", "zero"], ["fits"]),
         node("Not", ["fits"], ["cuts"]), node("Cast", ["cuts"], ["count"], to=INT64),
         node("Neg", ["count"], ["minus"]), node("Mul", ["rest", "minus"], ["last"]),
         node("Cast", ["fits"], ["all"], to=INT64), node("Mul", ["far", "all"], ["beyond"]),
         node("Add", ["last", "beyond"], ["end"]),
         node("Slice", ["filled", "zero", "end", "axis"], ["cut"]), node("Add", ["x", "cut"], ["y"])],
        T[1] | {"block": ints(block), "zero": ints(0), "none": ints(0, 0, 0, 0, 0), "axis": ints(2),
                "far": ints(2**31 - 1)},
    )  # fmt: skip


MODELS = {
    "reshape with a 0 and a -1": one("Reshape", ("x", "s"), {"s": ints(0, -1)}),
    "reshape that splits": one("Reshape", ("x", "s"), {"s": ints(0, 2, 4, -1)}),
    "flatten": one("Flatten", axis=2),
    "squeeze of every 1": one("Squeeze", shape=(1, "n", 1, 8, "t")),
    "reshape to computed sizes": chained(
        [*N[0], *T[0], node("Mul", ["n", "t"], ["rows"]), node("Concat", ["rows", "eight"], ["to"], axis=0),
         node("Transpose", ["x"], ["p"], perm=[0, 2, 1]), node("Reshape", ["p", "to"], ["y"])],
        N[1] | T[1] | {"eight": ints(8)},
    ),
    "a mask of minus infinity": chained(  # torch.full((t, t), -inf).triu(1) ended in a traceback
        [*T[0], node("Concat", ["t", "t"], ["tt"], axis=0), node("Expand", ["c", "tt"], ["e"]),
         node("Trilu", ["e", "k"], ["m"]),
         node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]), node("MatMul", ["xt", "x"], ["xx"]),
         node("Add", ["xx", "m"], ["y"])],
        T[1] | {"c": np.array(-np.inf, "float32"), "k": np.array(1, np.int64)},
    ),
    "pads that cut": one("Pad", ("x", "by"), {"by": ints(0, 0, -2, 0, 0, -1)}),
    "pads that cut, and fill behind": one("Pad", ("x", "by"), {"by": ints(-1, 0, -2, 1, 0, 4)}),
    "a split into open parts": chained(  # torch.split(y, [h, w]) of coordinate attention was refused
        [*N[0], *T[0], node("Concat", ["n", "t"], ["parts"], axis=0), node("Transpose", ["x"], ["p"], perm=[2, 1, 0]),
         node("ReduceSum", ["x", "last"], ["a"], keepdims=0), node("ReduceSum", ["p", "last"], ["b"], keepdims=0),
         node("Concat", ["a", "b"], ["ab"], axis=0), node("Split", ["ab", "parts"], ["c", "d"], axis=0),
         node("MatMul", ["c", "turned"], ["e"]), node("Transpose", ["d"], ["f"]), node("MatMul", ["e", "f"], ["y"])],
        N[1] | T[1] | {"last": ints(2), "turned": np.eye(8, dtype="float32")[::-1].copy()},
    ),
    "windows that are filled up and rolled": chained(  # the modulus was not known to be less
        [*T[0], node("Mod", ["t", "four"], ["m"]), node("Mul", ["m", "three"], ["mmm"]),
         node("Add", ["four", "mmm"], ["more"]), node("Mod", ["more", "four"], ["end"]),
         node("Concat", ["five_zeros", "end"], ["pads"], axis=0), node("Pad", ["x", "pads"], ["p"]),
         node("Shape", ["p"], ["p_s"], start=2), node("Mod", ["two", "p_s"], ["at"]),
         node("Slice", ["p", "zero", "at", "two"], ["a"]), node("Slice", ["p", "at", "p_s", "two"], ["b"]),
         node("Concat", ["b", "a"], ["r"], axis=2), node("Div", ["p_s", "four"], ["w"]),
         node("Concat", ["zero", "eight", "w", "four"], ["to"], axis=0), node("Reshape", ["r", "to"], ["y"])],
        T[1] | {"three": ints(3), "four": ints(4), "five_zeros": ints(0, 0, 0, 0, 0), "two": ints(2), "zero": ints(0),
                "eight": ints(8)},
    ),
    "expand": chained(
        [*N[0], node("Concat", ["n", "rest"], ["to"], axis=0), node("Expand", ["c", "to"], ["e"]),
         node("ReduceMax", ["x"], ["m"], axes=[2], keepdims=0), node("Add", ["m", "e"], ["y"])],
        N[1] | {"rest": ints(8), "c": np.float32([[1.5]])},
    ),
    "a mask of positions": chained(
        [*T[0], node("Squeeze", ["t", "zero"], ["end"]), node("Range", ["start", "end", "step"], ["r"]),
         node("Cast", ["r"], ["f"], to=1), node("Mul", ["x", "f"], ["y"])],
        T[1] | {"zero": ints(0), "start": np.int64(0), "step": np.int64(1)},
    ),
    "constant of shape": chained(
        [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["c"],
            value=numpy_helper.from_array(np.float32([2]))),
         node("Sub", ["x", "c"], ["y"])],
    ),
    "an infinite constant of shape": chained(
        [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["c"],
            value=numpy_helper.from_array(np.float32([-np.inf]))),
         node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=1), node("Max", ["m", "c"], ["y"])],
    ),
    "where shape is -1": chained(
        [*N[0], *T[0], node("Concat", ["minus", "eight", "t"], ["want"], axis=0), node("Equal", ["want", "minus"],
            ["test"]),
         node("Where", ["test", "ones", "want"], ["to"]), node("Expand", ["x", "to"], ["y"])],
        N[1] | T[1] | {"minus": ints(-1), "eight": ints(8), "ones": ints(1, 1, 1)},
    ),
    "slice of a part": one("Slice", ("x", "b", "e", "a"), {"b": ints(2), "e": ints(7), "a": ints(1)}),
    "slice from the end": one("Slice", ("x", "b", "e", "a"), {"b": ints(-1), "e": ints(2**63 - 1), "a": ints(2)}),
    "slices from the back and by far steps": chained(
        [node("Slice", ["x", f"b{i}", f"e{i}", "a", f"s{i}"], [f"p{i}"]) for i in range(5)]
        + [node("Concat", [f"p{i}" for i in range(5)], ["y"], axis=1)],
        {"a": ints(1)} | {f"{what}{i}": ints(number) for i, bounds in enumerate(
            [(9, ALL, -2), (11, 2, -3), (-2, -7, -1), (1, 1 << 62, (1 << 63) - 1), (-1, 0, -(1 << 62))])
            for what, number in zip("bes", bounds, strict=True)},
    ),
    "slice by a step": one("Slice", ("x", "b", "e", "a", "s"), {"b": ints(0), "e": ints(2**62), "a": ints(2),
        "s": ints(2)}),
    "slice to at most": one("Slice", ("x", "b", "e", "a"), {"b": ints(0), "e": ints(5), "a": ints(2)}),
    "reversed": one("Slice", ("x", "b", "e", "a", "s"), {"b": ints(-1), "e": ints(ALL), "a": ints(2), "s": ints(-1)}),
    "reversed along one axis, and all of another": one("Slice", ("x", "b", "e", "a", "s"), {"b": ints(0, 10**9),
        "e": ints(10**9, -(10**9)), "a": ints(0, 2), "s": ints(1, -1)}),
    "pairs that are filled up": cut_off_again(2),
    "fours that are filled up": cut_off_again(4),
    "a table cut to the length": chained(
        [*T[0], node("Slice", ["table", "zero", "t", "zero"], ["cut"]), node("Add", ["x", "cut"], ["y"])],
        T[1] | {"zero": ints(0), "table": np.arange(40, dtype="float32")},
    ),
    "positions in a table": chained(
        [*T[0], node("Squeeze", ["t", "zero"], ["end"]), node("Range", ["start", "end", "step"], ["r"]),
         node("Gather", ["table", "r"], ["g"]), node("Add", ["x", "g"], ["y"])],
        T[1] | {"zero": ints(0), "start": np.int64(0), "step": np.int64(1), "table": np.arange(40, dtype="float32")},
    ),
    "elements of what is left of the rows": chained(
        [*T[0], node("Div", ["t", "two"], ["half"]), node("Slice", ["x", "half", "end", "two"], ["rest"]),
         node("Reshape", ["rest", "flat"], ["f"]), node("Gather", ["f", "i"], ["y"])],
        T[1] | {"two": ints(2), "end": ints(2**62), "flat": ints(-1), "i": ints(0, -3, 5)},
    ),
    "the places of all elements": chained(
        [node("Shape", ["x"], ["s"]),
         node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.int64([1]))),
         node("NonZero", ["c"], ["at"]), node("Cast", ["at"], ["f"], to=1), node("Reshape", ["x", "row"], ["r"]),
         node("Add", ["f", "r"], ["y"])],
        {"row": ints(1, -1)},
    ),
    "the places along an axis": chained(
        [*T[0], node("ConstantOfShape", ["t"], ["c"], value=numpy_helper.from_array(np.int64([1]))),
         node("NonZero", ["c"], ["at"]), node("Cast", ["at"], ["f"], to=1), node("Add", ["x", "f"], ["y"])],
        T[1],
    ),
    "the last element": one("Gather", ("x", "i"), {"i": np.int64(-1)}, axis=2),
    "concat": chained([node("Concat", ["x", "x", "x"], ["y"], axis=2)]),
    "concat with a constant": one("Concat", ("x", "c"), {"c": np.ones((1, 8, 3), "float32")}, (1, 8, "t"), axis=2),
    "tile": chained(
        [*N[0], node("Concat", ["n", "one"], ["r"], axis=0), node("Tile", ["c", "r"], ["y"])],
        N[1] | {"one": ints(2), "c": np.float32([[1, 2, 3]])},
    ),
    "pad": one("Pad", ("x", "p"), {"p": ints(0, 1, 2, 0, 0, 3)}),
    **{
        f"pad, {mode}": one("Pad", ("x", "p"), {"p": ints(0, 0, 2, 0, 0, 3)}, opset=19, mode=mode)
        for mode in ("reflect", "edge", "wrap")
    },
    **{
        f"pad to whole blocks, {mode}": model(
            [*T[0], node("Add", ["t", "seven"], ["u"]), node("Div", ["u", "eight"], ["v"]),
             node("Mul", ["v", "eight"], ["whole"]), node("Sub", ["whole", "t"], ["more"]),
             node("Concat", ["first", "more"], ["p"], axis=0), node("Pad", ["x", "p"], ["y"], mode=mode)],
            [value("x", ("n", 8, "t"))], [value("y", None)],
            T[1] | {"seven": ints(7), "eight": ints(8), "first": ints(0, 0, before, 0, 0)}, 19,
        )
        for mode, before in (("reflect", 0), ("edge", 2), ("wrap", 3))
    },
    "pad to a length": chained(
        [*T[0], node("Sub", ["whole", "t"], ["more"]), node("Concat", ["none", "more"], ["p"], axis=0),
         node("Pad", ["x", "p", "fill"], ["y"])],
        T[1] | {"whole": ints(30), "none": ints(0, 0, 0, 0, 0), "fill": np.float32(1.5)},
    ),
    "pad to a length, as PyTorch writes it": chained(
        [*T[0], node("Sub", ["whole", "t"], ["more"]), node("Concat", ["none", "more", "rest"], ["flat"], axis=0),
         node("Reshape", ["flat", "pairs"], ["p2"]), node("Slice", ["p2", "last", "end", "none", "last"], ["p3"]),
         node("Transpose", ["p3"], ["p4"], perm=[1, 0]), node("Reshape", ["p4", "last"], ["p"]),
         node("Pad", ["x", "p", "fill"], ["y"])],
        T[1] | {"whole": ints(30), "none": ints(0), "rest": ints(0, 0, 0, 0), "pairs": ints(-1, 2), "last": ints(-1),
                "end": ints(ALL), "fill": np.float32(1.5)},
    ),
    "stft": one("STFT", ("x", "step", "window"), {"step": np.int64(5), "window": np.hanning(16).astype("float32")},
        ("n", "t")),
    "no times": one("Tile", ("x", "r"), {"r": ints(2, 0, 1)}),
    "the first ones, reversed": one("Slice", ("x", "b", "e", "a", "s"),
        {"b": ints(4), "e": ints(ALL), "a": ints(2), "s": ints(-1)}),
    "sorted": model(
        [node("Shape", ["x"], ["k"], start=0, end=1), node("TopK", ["x", "k"], ["y", "at"], axis=0)],
        [value("x", ("n", 3))], [value("y", None), value("at", None, INT64)],
    ),
    "split": model(
        [node("Split", ["x"], ["a", "b"], axis=1), node("Mul", ["a", "b"], ["y"])],
        [value("x", ("n", 8, "t"))], [value("y", None)],
    ),
    "split in two": in_parts(2),
    "split in three": in_parts(3),
    "split in two that are alike": model(
        [node("Split", ["x"], ["a", "b"], axis=2), node("Sub", ["a", "b"], ["y"])],
        [value("x", ("n", 8, "t"))], [value("y", None)],
    ),
    "split in parts of known sizes": model(
        [node("Split", ["x", "s"], ["a", "b"], axis=2)], [value("x", ("n", 8, "t"))],
        [value("a", None), value("b", None)], {"s": ints(2, 4)}, 18,
    ),
    "hardmax": one("Hardmax", axis=2),
    "hardmax of all behind an axis": one("Hardmax", axis=1, opset=11),
    "neither infinity": model(
        [node("IsInf", ["x"], ["b"], detect_positive=0, detect_negative=0), node("Where", ["b", "z", "x"], ["y"])],
        [value("x", ("n", 8, "t"))], [value("y", None)], {"z": np.float32(0)}, 17,
    ),
    "a sum of nothing": chained(
        [node("Slice", ["x", "z", "z", "o"], ["e"]), node("ReduceSum", ["e", "o"], ["s"]),
         node("Add", ["s", "x"], ["y"])],
        {"z": ints(0), "o": ints(1)},
    ),
    "a mean of integers": chained(
        [node("Cast", ["x"], ["i"], to=INT64), node("ReduceMean", ["i"], ["m"], axes=[0, 2]),
         node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)],
    ),
    "squeeze and unsqueeze": chained(
        [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "b"], ["y"])], {"a": ints(0, 2), "b": ints(0)}
    ),
    "softmax": one("Softmax", axis=-1),
    "reduce": one("ReduceMean", axes=[2], keepdims=1),
    "top k": model(
        [node("TopK", ["x", "k"], ["y", "at"], axis=1)], [value("x", ("n", 8, "t"))], [value("y", None)], {"k": ints(3)}
    ),
    "one hot": model(
        [node("OneHot", ["x", "d", "v"], ["y"])], [value("x", ("n", "t"), INT64)], [value("y", None)],
        {"d": ints(5), "v": np.float32([0, 1])},
    ),
    "matmul": model(
        [node("Transpose", ["x"], ["p"], perm=[0, 2, 1]), node("MatMul", ["p", "x"], ["y"])],
        [value("x", ("n", 8, "t"))], [value("y", None)],
    ),
    "conv": one("Conv", ("x", "k"), KERNEL, PICTURE, pads=[1, 1, 1, 1]),
    "conv by steps": one("Conv", ("x", "k"), KERNEL, PICTURE, pads=[1, 0, 2, 1], strides=[2, 3]),
    "conv, dilated": one("Conv", ("x", "k"), KERNEL, PICTURE, pads=[2, 2, 2, 2], dilations=[2, 2]),
    "transposed conv": one("ConvTranspose", ("x", "k"), BACK, PICTURE, strides=[2, 2], pads=[1, 1, 0, 0],
        output_padding=[1, 0]),
    "two convs": model(
        [node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
         node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])],
        [value("x", PICTURE)], [value("y", None)], KERNEL,
    ),
    "conv, same": one("Conv", ("x", "k"), KERNEL, PICTURE, auto_pad="SAME_UPPER", strides=[2, 3]),
    "conv of bytes": chained(
        [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
         node("ConvInteger", ["q", "k", "z"], ["i"], pads=[1, 1]), node("Cast", ["i"], ["f"], to=1),
         node("Reshape", ["f", "to"], ["y"])],
        {"k": np.arange(-24, 24, dtype="int8").reshape(2, 8, 3), "to": ints(0, -1)},
    ),
    **{
        f"{kind} pool, {name}": one(f"{kind}Pool", shape=PICTURE, kernel_shape=[3, 2], **attrs)
        for kind in ("Max", "Average", "Lp")
        for name, attrs in (
            ("same", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
            ("same from below", {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
            ("ceiling", {"ceil_mode": 1, "strides": [2, 3], "pads": [1, 0, 1, 1]}),
        )
        if kind != "Lp" or name != "ceiling"
    },
    "average pool with its border": one("AveragePool", shape=PICTURE, kernel_shape=[3, 3], strides=[2, 2],
        auto_pad="SAME_UPPER", count_include_pad=1),
    "average pool": one("AveragePool", shape=PICTURE, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
    **{
        f"resize, {name}": one("Resize", ("x", "", "f"), {"f": np.float32(scales)}, PICTURE, **attrs)
        for name, scales, attrs in (
            ("twice", [1, 1, 2, 2], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
            ("nearest", [1, 1, 3, 1.5], {}),
            ("half", [1, 1, 0.5, 0.25], {"nearest_mode": "ceil"}),
            ("linear", [1, 1, 2, 4], {"mode": "linear"}),
            ("linear down", [1, 1, 0.5, 0.5], {"mode": "linear", "coordinate_transformation_mode":
            "pytorch_half_pixel"}), ("linear, corners", [1, 1, 2, 3], {"mode": "linear",
            "coordinate_transformation_mode": "align_corners"}), ("linear, asymmetric", [1, 1, 1.25, 2], {"mode":
            "linear", "coordinate_transformation_mode": "asymmetric"}),
        )
    },
    "resize to the size of another": model(
        [node("Shape", ["z"], ["s"]), node("Slice", ["s", "two", "four"], ["hw"]), node("Shape", ["x"], ["t"]),
         node("Slice", ["t", "zero", "two"], ["nc"]), node("Concat", ["nc", "hw"], ["to"], axis=0),
         node("Resize", ["x", "", "", "to"], ["y"], mode="linear")],
        [value("x", PICTURE), value("z", (1, 1, "p", "q"))], [value("y", None)],
        {"zero": ints(0), "two": ints(2), "four": ints(4)},
    ),
    "global pool": one("GlobalAveragePool", shape=PICTURE),
    "depth to space": one("DepthToSpace", shape=("n", 8, "h", "w"), blocksize=2),
    "lstm, open batch": model(
        [node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=5)], [value("x", (3, "n", 4))], [value("y", None),
            value("h", None)],
        {"w": np.full((1, 20, 4), 0.1, "float32"), "r": np.full((1, 20, 5), -0.1, "float32")},
    ),
}  # fmt: skip


def sizes_to_try(known):
    """The smallest sizes, the named ones and some between, where the conditions hold."""
    wanted = [
        {n: pick(r) for n, r in known.ranges.items()}
        for pick in (
            lambda r: r.min,
            lambda r: min(r.opt, 40),
            lambda r: min(r.max, r.min + 6),
            lambda r: min(r.max, r.min + 12),
        )
    ]
    return [s for s in (near(w, known.ranges, known.conditions, up=True) for w in wanted) if s]


def drawn(prepared, sizes):
    generator = np.random.default_rng(1)
    feeds = {}
    for v in prepared.graph.input:
        shape = at(open_shape(v.type), sizes)
        kind = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        feeds[v.name] = (
            generator.integers(0, 2, shape, kind)
            if kind.kind == "i"
            else generator.standard_normal(shape).astype("float32")
        )
    return feeds


def shown(made, names):
    """A model with more of its values as outputs."""
    copy = type(made)()
    copy.CopyFrom(made)
    have = {o.name for o in copy.graph.output}
    copy.graph.output.extend(v for v in made.graph.value_info if v.name in names and v.name not in have)
    return copy


@pytest.mark.parametrize("name", MODELS)
def test_types_and_numbers_hold_at_every_size(name):
    made = MODELS[name]
    prepared = prepare(made)
    known = read(prepared)
    assert known.ranges
    typed = {v.name: open_shape(v.type) for v in [*prepared.graph.value_info, *prepared.graph.output]}
    assert all(o in typed and typed[o] is not None for n in prepared.graph.node for o in n.output if o)
    imported = to_relax(prepared)
    everything = shown(prepared, typed)
    for sizes in sizes_to_try(known):
        feeds = drawn(prepared, sizes)
        found = dict(zip([o.name for o in everything.graph.output], run_ort(everything, feeds), strict=True))
        assert {n: v.shape for n, v in found.items()} == {n: at(typed[n], sizes) for n in found}
        theirs = run_ort(made, feeds)
        for mine, info, right in zip(run_relax(imported, feeds), imported.outputs, theirs, strict=True):
            assert mine.shape == at(info.shape, sizes)
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


def test_a_table_bounds_the_length():
    for name in ("a table cut to the length", "positions in a table"):
        made = MODELS[name]
        assert read(prepare(made)).ranges["t"].max == 40
        assert read(prepare(made, {"t": "1..33"})).ranges["t"].max == 33
        with pytest.raises(InputError, match="'t' is at most 40 in this model, and its range goes to 41"):
            prepare(made, {"t": "1..41"})


def test_a_mirror_of_what_an_open_amount_may_cut_is_refused():
    nodes = [
        *T[0],
        node("Sub", ["whole", "t"], ["more"]),
        node("Concat", ["first", "more"], ["p"], axis=0),
        node("Pad", ["x", "p"], ["y"], mode="edge"),
    ]
    made = chained(nodes, T[1] | {"whole": ints(8), "first": ints(0, 0, 2, 0, 0)})
    with pytest.raises(ModelError, match=r"whether 2 and -t \+ 8 elements are added to axis 2, or cut, is open"):
        to_relax(prepare(made))


def test_added_tensors_have_one_size():
    inputs = [value("x", ("a", 3)), value("z", ("b", 3))]
    prepared = prepare(model([node("Add", ["x", "z"], ["y"])], inputs, [value("y", None)]))
    assert [str(open_shape(v.type)[0]) for v in prepared.graph.input] == ["a", "a"]
    assert list(read(prepared).ranges) == ["a"]


def test_a_mask_whose_dimensions_have_names_of_their_own():
    """As torch exports YOSO: of rows*length == batch*seq one call of one token was all that was compiled."""
    nodes = [
        node("Shape", ["x"], ["s"], end=2),
        node("Reshape", ["mask", "s"], ["m"]),
        node("Unsqueeze", ["m", "last"], ["u"]),
        node("Mul", ["x", "u"], ["y"]),
    ]
    inputs = [value("x", ("batch", "seq", 3)), value("mask", ("rows", "length"))]
    prepared = prepare(model(nodes, inputs, [value("y", None)], {"last": ints(-1)}))
    assert [str(d) for d in open_shape(prepared.graph.input[1].type)] == ["batch", "seq"]
    known = read(prepared)
    assert not known.conditions and all(r.max > 1000 for r in known.ranges.values())


def test_a_size_that_the_graph_fixes():
    made = model(
        [node("Add", ["x", "c"], ["y"])], [value("x", ("n", "k"))], [value("y", None)], {"c": np.ones(7, "float32")}
    )
    assert open_shape(prepare(made).graph.input[0].type)[1] == 7
    with pytest.raises(InputError, match=r"'k' is always 7 in this model, and its range is 1\.\.9"):
        prepare(made, {"k": "1..9"})


def test_a_bias_fixes_the_columns_of_a_product():
    inputs = [value("a", (3, 8)), value("b", ("n", 8)), value("c", (1, 2))]
    prepared = prepare(model([node("Gemm", ["a", "b", "c"], ["y"], transB=1)], inputs, [value("y", None)]))
    assert [open_shape(v.type) for v in (prepared.graph.input[1], prepared.graph.output[0])] == [(2, 8), (3, 2)]


def test_what_cannot_be_solved_is_a_condition():
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["a", "k"], ["b"], strides=[2, 2]),
        node("Add", ["x", "b"], ["y"]),
    ]
    made = model(nodes, [value("x", (1, 3, "h", "w"))], [value("y", None)], {"k": np.ones((3, 3, 2, 2), "float32")})
    prepared = prepare(made)
    known = read(prepared)
    assert sorted(known.conditions) == ["2*(h//2) == h", "2*(w//2) == w"]
    assert all(r.min % 2 == r.max % 2 == r.opt % 2 == 0 for r in known.ranges.values())
    imported = to_relax(prepared)
    for sizes in ({"h": 2, "w": 2}, {"h": 16, "w": 34}):
        assert all(holds(c, sizes) for c in known.conditions)
        feeds = drawn(prepared, sizes)
        np.testing.assert_allclose(run_relax(imported, feeds)[0], run_ort(made, feeds)[0], rtol=1e-5)


def test_sizes_that_are_equal_by_a_condition_are_one_in_all_shapes():
    """TVM gave the sum no shape, and made no code of it."""
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["a", "", "twice"], ["b"], mode="nearest"),
        node("Add", ["x", "b"], ["y"]),
    ]
    weights = {"twice": np.array([1, 1, 2, 2], "float32")}
    made = model(nodes, [value("x", (2, 1, "h", "w"))], [value("y", None), value("b", None)], weights)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    for sizes in ((2, 2), (4, 18), (34, 8)):
        feeds = {"x": np.random.default_rng(0).standard_normal((2, 1, *sizes)).astype("float32")}
        found = compiled.run(feeds)
        for name, want in zip(("y", "b"), run_ort(made, feeds), strict=True):
            np.testing.assert_allclose(found[name], want, rtol=1e-6)
    with pytest.raises(InputError, match="h"):
        compiled.run({"x": np.zeros((2, 1, 3, 4), "float32")})


def test_a_resized_picture_has_the_size_as_it_is_written_elsewhere():
    """Where `2*(h//2)` must be `h`, a resize makes a picture of `h` rows: no view of another one."""
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["a", "", "f"], ["b"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Concat", ["x", "b"], ["y"], axis=1),
    ]
    made = model(nodes, [value("x", (1, 3, "h", "w"))], [value("y", None)], {"f": np.float32([1, 1, 2, 2])})
    prepared = prepare(made)
    assert sorted(read(prepared).conditions) == ["2*(h//2) == h", "2*(w//2) == w"]
    imported = to_relax(prepared)
    assert "reshape" not in imported.module.script()
    for sizes in ({"h": 2, "w": 2}, {"h": 16, "w": 34}):
        feeds = drawn(prepared, sizes)
        np.testing.assert_array_equal(run_relax(imported, feeds)[0], run_ort(made, feeds)[0])


def test_the_smallest_size_has_no_empty_tensor():
    made = one("Conv", ("x", "k"), KERNEL, PICTURE)
    assert {n: r.min for n, r in read(prepare(made)).ranges.items()} == {"n": 1, "h": 3, "w": 3}
    with pytest.raises(ModelError, match="At the smallest sizes"):
        prepare(made, {"h": "1..8"})


def test_a_model_that_needs_thousands_of_samples_has_a_range():
    """The smallest size was looked for up to 4,096 only, where ranges end that nothing bounds."""
    kernel = np.ones((1, 1, 9000), np.float32)
    made = model(
        [helper.make_node("Conv", ["x", "k"], ["y"])], [value("x", ("n", 1, "t"))], [value("y", None)], {"k": kernel}
    )
    found = read(prepare(made)).ranges["t"]
    assert found.min == 9000 and found.max >= 2 * 9000


def test_parts_of_a_shape_are_sizes():
    """As TensorFlow computes frames: a shape is split into what is before an axis, the axis, and what is behind it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Split", ["shape", "lengths"], ["before", "axis", "after"]),
        helper.make_node("Concat", ["axis", "before", "after"], ["turned"], axis=0),
        helper.make_node("Reshape", ["x", "turned"], ["y"]),
    ]
    constants = {"lengths": np.array([1, 1, 0])}
    made = model(nodes, [value("x", ("n", "t"))], [value("y", None)], constants, 13)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(tvmopt.compile(made, threads=1, verify=False).model(x), x.reshape(5, 3))


def test_a_range_with_an_end_only_begins_at_the_smallest_size():
    made = one("Conv", ("x", "k"), KERNEL, PICTURE)
    ranges = read(prepare(made, {"x": ("..4", 3, "..8@5", "?")})).ranges
    assert [ranges[n].min for n in "nhw"] == [1, 3, 3]
    assert [ranges[n].max for n in "nh"] == [4, 8]
    assert ranges["h"].opt == 5
    with pytest.raises(InputError, match="'h' is at least 3 in this model, and its range goes to 2"):
        prepare(made, {"h": "..2"})


def test_a_range_with_an_end_only_ends_where_the_graph_does():
    table = np.zeros((5, 4), np.float32)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["table", "zero", "s"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    made = model(nodes, [value("x", ("t", 4))], [value("y", None)], {"table": table, "zero": np.int64([0])})
    assert read(prepare(made, {"t": "..64"})).ranges["t"].max == read(prepare(made)).ranges["t"].max == 5


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_the_data_of_a_recurrence_has_the_length_of_its_weights(op):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    weights = {"w": np.ones((1, gates * 5, 7), "float32"), "r": np.ones((1, gates * 5, 5), "float32")}
    made = one(op, ("x", "w", "r"), weights, ("t", 1, "wide"), hidden_size=5)
    assert set(read(prepare(made)).ranges) == {"t"}
    with pytest.raises(ModelError, match="W has shape"):
        prepare(made, {"wide": "8"})


def test_open_sizes_of_a_model_that_was_made_for_one_size():
    """As exporters write vision transformers: any height and width, and a table of 24 x 24 patches."""
    nodes = [
        node("Conv", ["x", "w"], ["patches"], strides=[16, 16]),
        node("Reshape", ["patches", "rows"], ["tokens"]),
        node("Add", ["tokens", "table"], ["y"]),
    ]
    weights = {
        "w": np.ones((4, 3, 16, 16), "float32"),
        "rows": ints(0, 4, -1),
        "table": np.ones((1, 4, 576), "float32"),
    }
    made = chained(nodes, weights, [value("x", PICTURE)])
    with pytest.raises(ModelError, match=r"breaks a condition: .*== 576.*") as error:
        prepare(made)
    assert "made for one size" in str(error.value)
    assert not read(prepare(made, {"x": (2, 3, 384, 384)})).ranges


def test_what_a_squeeze_without_axes_keeps_is_2_or_more():
    made = one("Squeeze", shape=("n", 1))
    free = read(prepare(made))
    assert free.ranges["n"].min == 2
    assert free.conditions == ()  # the range says it
    with pytest.raises(ModelError, match=r"breaks a condition: .*2 <= n"):
        prepare(made, {"n": "1..8"})
    assert to_relax(prepare(made, {"n": "1"})).outputs[0].shape == ()


def test_a_past_that_may_be_empty_begins_where_the_model_computes_something():
    made = model([node("Relu", ["x"], ["y"])], [value("x", ("past", 4))], [value("y", None)])
    assert read(prepare(made, {"past": "..64"})).ranges["past"].min == 1


def test_ranges_without_a_word_stay_within_memory():
    made = model([node("Relu", ["x"], ["y"])], [value("x", ("n", 1024, "t", 1024))], [value("y", None)])
    ranges = read(prepare(made)).ranges
    assert ranges["n"].max * ranges["t"].max * 1024 * 1024 * 4 * 2 <= 1 << 30


def test_symbols_are_one_variable_and_have_bounds():
    imported = to_relax(prepare(MODELS["matmul"], {"n": "1..4", "t": "2..9@5"}))
    main = imported.module["main"]
    assert dict(main.attrs["tir_var_upper_bound"]) == {"n": 4, "t": 9}
    assert dict(main.attrs["tvmopt.opt_size"]) == {"n": 1, "t": 5}
    assert imported.outputs[0].shape == (Dim.symbol("n"), Dim.symbol("t"), Dim.symbol("t"))


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (model([node("GRU", ["x", "w", "r"], ["y"], hidden_size=5)], [value("x", ("t", 2, 4), TensorProto.DOUBLE)],
            [value("y", None, TensorProto.DOUBLE)], {"w": np.ones((1, 15, 4)), "r": np.ones((1, 15, 5))}),
            r"(?s)GRU cannot be imported: the size t is open.*bind the size: --shape t:NUMBER|shape=.'t'"),
        (chained([node("DFT", ["x"], ["y"], axis=1)], inputs=[value("x", (2, "t", 1))]),
            "DFT cannot be imported: the number of points of its transform, t, is open"),
        (one("Det", shape=("n", "t", "t")), "Det cannot be imported: the size of its matrices, t, is open"),
        (chained([node("ConvTranspose", ["x", "w"], ["y"], group=2)],
            inputs=[value("x", (1, "n", 5, 5)), value("w", ("n", 3, 2, 2))]),
            r"(?s)ConvTranspose cannot be imported: it divides its channels into groups.*--shape n:NUMBER|shape=.'n'"),
    ],
)  # fmt: skip
def test_what_needs_a_number_says_so(made, what):
    with pytest.raises(ModelError, match=what):
        to_relax(prepare(made))


@pytest.mark.parametrize(("start", "end", "step"), [(-18, 15, 3), (-18, 15, 2), (-18, 15, 1), (-3, 2, 4)])
def test_a_slice_that_ends_before_it_begins_is_empty(start: int, end: int, step: int) -> None:
    """From the 18th last to the 15th: nothing of 33 elements, where a negative number of bytes was asked for."""
    graph = helper.make_graph(
        [node("Slice", ["x", "b", "e", "a", "s"], ["y"])], "g", [value("x", (3, "t"))], [value("y", None)],
        [numpy_helper.from_array(array, n) for n, array in zip("beas", map(ints, (start, end, 1, step)), strict=True)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    for size in (1, 2, 3, 5, 6, 15, 18, 19, 32, 33, 34, 64):
        x = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], x[:, start:end:step])


@pytest.mark.parametrize("shape", [(), (1, 3)])
def test_a_condition_of_compress_that_is_no_vector_is_refused(shape: tuple[int, ...]) -> None:
    nodes = [node("Greater", ["c", "zero"], ["b"]), node("Compress", ["x", "b"], ["y"], axis=0)]
    made = model(nodes, [value("x", ("n", 4)), value("c", shape)], [value("y", None)], {"zero": np.float32(0)})
    with pytest.raises(ModelError, match="Compress"):
        tvmopt.compile(made, verify=False)


@pytest.mark.parametrize(
    ("scale", "axis", "says"),
    [
        (-3.4e38, 2, "must be positive"), (-2.0, 0, "must be positive"), (3e38, 2, "would be"), (1e9, 0, "would take"),
        (1e18, 0, "would take"), (3e38, 0, "would take"), (np.inf, 0, "must be positive"),
        (np.inf, 2, "must be positive"), (np.nan, 0, "must be positive"),
    ],
)  # fmt: skip
def test_a_size_that_63_bits_do_not_hold_is_refused(scale: float, axis: int, says: str) -> None:
    """onnx's helper refuses it with a ValueError, and so does TVM; and a multiple of an open size may be as large."""
    scales = np.ones(3, np.float32)
    scales[axis] = scale
    made = one("Resize", ["x", "", "s"], {"s": scales}, shape=("n", 4, 5), mode="nearest", opset=18)
    with pytest.raises(ModelError, match=says):
        prepare(made)


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (
            one("Col2Im", ("x", "i", "b"), {"i": ints(9, 9), "b": ints(3, 3)}, ("n", 27, 25), 18,
                strides=[2, 2], pads=[1, 1, 1, 1]),
            [(1, 27, 25), (7, 27, 25)],
        ),
        (one("Det", shape=("n", "k", 4, 4)), [(1, 1, 4, 4), (3, 2, 4, 4)]),
        (one("Det", shape=("n", 1, 1)), [(1, 1, 1), (5, 1, 1)]),
    ],
)  # fmt: skip
def test_an_open_batch_of_what_has_no_schedule(made, sizes):
    """Col2Im (torch's fold) and Det were refused."""
    compiled = tvmopt.compile(made, verify=False, records=False).model
    for shape in sizes:
        x = np.random.default_rng(shape[0]).standard_normal(shape).astype("float32")
        np.testing.assert_allclose(compiled.run({"x": x})["y"], run_ort(made, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_tvm_gets_sizes_that_it_can_bound():
    """Its planner bounded each of two terms by itself: windows of a picture took 25 GB instead of 0.4."""
    h = Dim.symbol("h")
    assert str(to_tvm(4 * h - 4 * (3 * h // 4))) == str(to_tvm((h + 3) // 4 * 4))
