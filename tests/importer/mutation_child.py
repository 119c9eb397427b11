"""Child of test_mutations: import (and compile) the mutated models of the seeds given, one line a verdict.

A child handles many seeds; when one kills it, the parent names that seed and starts another behind it.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.importer.onnx_check import model, value

node = helper.make_node


def convolutional() -> onnx.ModelProto:
    """Convolution, batch norm, residual add, pooling, Gemm, Softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype("float32"),
        "b": rng.standard_normal(8).astype("float32"),
        **{k: rng.random(8).astype("float32") for k in ("scale", "shift", "mean", "var")},
        "fc": rng.standard_normal((8, 5)).astype("float32"),
        "shape": np.array([1, -1]),
    }
    nodes = [
        node(
            "Conv",
            ["x", "w", "b"],
            ["c"],
            name="conv",
            strides=[2, 2],
            pads=[1, 1, 1, 1],
            kernel_shape=[3, 3],
        ),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], name="bn"),
        node("Relu", ["n"], ["r"], name="relu"),
        node("Add", ["r", "c"], ["a"], name="add"),
        node("MaxPool", ["a"], ["m"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"], name="gap"),
        node("Reshape", ["g", "shape"], ["f"], name="flat"),
        node("Gemm", ["f", "fc"], ["o"], name="fc"),
        node("Softmax", ["o"], ["y"], name="softmax", axis=1),
    ]
    return model(nodes, [value("x", (1, 3, 12, 12))], [value("y", (1, 5))], weights)


def shapely() -> onnx.ModelProto:
    """Shape arithmetic as exporters write it, a constant If, a Loop, a function."""
    function = helper.make_function(
        "local", "Twice", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 17)]
    )
    then = helper.make_graph([node("Relu", ["r"], ["t"])], "then", [], [value("t", None)])
    other = helper.make_graph([node("Neg", ["r"], ["e"])], "else", [], [value("e", None)])
    body = helper.make_graph(
        [node("Add", ["s", "two"], ["s2"]), node("Identity", ["c"], ["c2"])],
        "body",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("s", None)],
        [value("c2", (), TensorProto.BOOL), value("s2", None)],
    )
    nodes = [
        node("Shape", ["x"], ["s0"], name="shape"),
        node("Gather", ["s0", "zero"], ["d"], name="gather"),
        node("Unsqueeze", ["d", "axes"], ["du"], name="unsqueeze"),
        node("Concat", ["du", "rest"], ["target"], name="concat", axis=0),
        node("Reshape", ["x", "target"], ["r"], name="reshape"),
        node("If", ["flag"], ["w"], name="if", then_branch=then, else_branch=other),
        node("Twice", ["w"], ["v"], name="twice", domain="local"),
        node("Loop", ["trips", "", "v"], ["u"], name="loop", body=body),
        node("Slice", ["u", "starts", "ends", "sax"], ["y"], name="slice"),
    ]
    weights = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([3, -1]),
        "flag": np.array(True),
        "two": np.array(2, "float32"),
        "trips": np.array(3),
        "starts": np.array([1]),
        "ends": np.array([9]),
        "sax": np.array([2]),
    }
    return model(
        nodes,
        [value("x", (2, 12))],
        [value("y", (2, 3, 3))],
        weights,
        domains={"local": 1},
        functions=[function],
    )


def elderly() -> onnx.ModelProto:
    """Opset 9: attributes that became inputs, weights made by nodes."""
    nodes = [
        node("ConstantOfShape", ["ws"], ["w"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.1])),
        node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[1, 1], group=1),
        node("Upsample", ["c", "scales"], ["u"], name="up", mode="nearest"),
        node("Clip", ["u"], ["k"], name="clip", min=0.0, max=6.0),
        node("Squeeze", ["k"], ["q"], name="squeeze", axes=[0]),
        node("ReduceMean", ["q"], ["y"], name="mean", axes=[1, 2], keepdims=0),
    ]
    weights = {"ws": np.array([4, 2, 1, 1]), "scales": np.array([1, 1, 2, 2], "float32")}
    return model(nodes, [value("x", (1, 2, 5, 5))], [value("y", (4,))], weights, opset=9)


def truncated(made: onnx.ModelProto, rng: random.Random) -> bytes:
    data = made.SerializeToString()
    return data[: rng.randrange(len(data))]


def bits_flipped(made: onnx.ModelProto, rng: random.Random) -> bytes:
    data = bytearray(made.SerializeToString())
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def structure_flipped(made: onnx.ModelProto, rng: random.Random) -> bytes:
    """Bits flipped in the graph, with the weights, which hide most flips, left alone."""
    weights = [t.SerializeToString() for t in made.graph.initializer]
    del made.graph.initializer[:]
    flipped = bits_flipped(made, rng)
    try:
        made = onnx.ModelProto.FromString(flipped)
    except Exception:
        return flipped
    made.graph.initializer.extend(TensorProto.FromString(w) for w in weights)
    return made.SerializeToString()


def bytes_replaced(made: onnx.ModelProto, rng: random.Random) -> bytes:
    data = bytearray(made.SerializeToString())
    start, length = rng.randrange(len(data)), rng.randrange(1, 30)
    data[start : start + length] = rng.randbytes(rng.randrange(30))
    return bytes(data)


def _any_node(made: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(list(made.graph.node))


def wrong_type(made: onnx.ModelProto, rng: random.Random) -> None:
    target = rng.choice([*made.graph.input, *made.graph.output])
    target.type.tensor_type.elem_type = rng.choice([0, 2, 7, 8, 9, 10, 14, 16, 22, 99, -1])


def weight_type(made: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(list(made.graph.initializer)).data_type = rng.choice([0, 2, 6, 7, 8, 9, 10, 11, 15, 17, 22, 77])


def cycle(made: onnx.ModelProto, rng: random.Random) -> None:
    first, second = rng.sample(list(made.graph.node), 2)
    first.input[0] = second.output[0]


def missing_initialiser(made: onnx.ModelProto, rng: random.Random) -> None:
    del made.graph.initializer[rng.randrange(len(made.graph.initializer))]


def missing_node(made: onnx.ModelProto, rng: random.Random) -> None:
    del made.graph.node[rng.randrange(len(made.graph.node))]


def attribute(made: onnx.ModelProto, rng: random.Random) -> None:
    """An attribute of another type, another value, or nonsense."""
    nodes = [n for n in made.graph.node if n.attribute]
    attr = rng.choice(list(rng.choice(nodes).attribute))
    what = rng.randrange(5)
    if what == 0:
        attr.type = rng.choice(list(AttributeProto.AttributeType.values()))
    elif what == 1 and attr.ints:
        attr.ints[0] = rng.choice([0, -1, 1 << 31, 1 << 62, -(1 << 63)])
    elif what == 2:
        attr.ints.extend([1] * rng.randrange(1, 40))
    elif what == 3:
        attr.i = rng.choice([-100, 0, 1 << 40, (1 << 63) - 1])
    else:
        attr.name = rng.choice(["", "axis", "nonsense", "kernel_shape"])


def dimension(made: onnx.ModelProto, rng: random.Random) -> None:
    shape = rng.choice([*made.graph.input, *made.graph.output]).type.tensor_type.shape
    shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice([-5, -1, 0, 1, 7, 1 << 20, 1 << 40, 1 << 62])


def weight_dims(made: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(made.graph.initializer))
    tensor.dims.append(rng.choice([0, 1, -1, 1 << 40, (1 << 63) - 1]))


def weight_values(made: onnx.ModelProto, rng: random.Random) -> None:
    """Integers among the weights are axes, shapes, trip counts: make one absurd."""
    tensors = [t for t in made.graph.initializer if t.data_type == TensorProto.INT64]
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[rng.randrange(array.size)] = rng.choice([-(1 << 63), -100, -1, 0, 1 << 33, (1 << 63) - 1])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def operator(made: onnx.ModelProto, rng: random.Random) -> None:
    names = [
        "Conv",
        "Gemm",
        "Loop",
        "If",
        "Nonsense",
        "",
        "Concat",
        "Transpose",
        "Resize",
        "LSTM",
        "Pad",
        "Split",
    ]
    _any_node(made, rng).op_type = rng.choice([*names, "Attention", "ConvTranspose", "MaxPool", "Einsum", "Range"])


def inputs(made: onnx.ModelProto, rng: random.Random) -> None:
    target = _any_node(made, rng)
    what = rng.randrange(4)
    if what == 0:
        target.input.append(rng.choice(["", "x", "nowhere"]))
    elif what == 1:
        target.input[rng.randrange(len(target.input))] = rng.choice(["", "nowhere", made.graph.node[-1].output[0]])
    elif what == 2:
        del target.input[:]
    else:
        reordered = list(target.input)
        rng.shuffle(reordered)
        del target.input[:]
        target.input.extend(reordered)


def opset(made: onnx.ModelProto, rng: random.Random) -> None:
    made.opset_import[0].version = rng.choice([-1, 0, 1, 5, 7, 11, 13, 18, 21, 28, 999, 1 << 40])


def duplicate(made: onnx.ModelProto, rng: random.Random) -> None:
    part = rng.choice([made.graph.node, made.graph.initializer, made.graph.input, made.graph.output])
    part.append(part[rng.randrange(len(part))])


def external(made: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(made.graph.initializer))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    location = rng.choice(["/etc/passwd", "../secret", "/dev/zero", "", "missing.bin", "a\0b"])
    for key, text in (
        ("location", location),
        ("offset", rng.choice(["0", "-1", "x", "9" * 30])),
        ("length", "4"),
    ):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=text))


def subgraph(made: onnx.ModelProto, rng: random.Random) -> None:
    """Damage inside a branch, a body or a function; elsewhere, a node that becomes a function of itself."""
    graphs = [a.g for n in made.graph.node for a in n.attribute if a.HasField("g")]
    if not graphs:
        inner = made.functions.add(name=made.graph.node[0].op_type, domain="")
        inner.node.add().CopyFrom(made.graph.node[0])
        return
    graph = rng.choice(graphs)
    what = rng.randrange(4)
    if what == 0:
        del graph.output[:]
    elif what == 1:
        del graph.node[0]
    elif what == 2 and graph.input:
        del graph.input[0]
    else:
        graph.node[0].input[0] = graph.node[-1].output[0]


BYTES: list[Callable[[onnx.ModelProto, random.Random], bytes]] = [
    truncated,
    bits_flipped,
    structure_flipped,
    structure_flipped,
    bytes_replaced,
]
EDITS: list[Callable[[onnx.ModelProto, random.Random], None]] = [
    wrong_type,
    weight_type,
    cycle,
    missing_initialiser,
    missing_node,
    attribute,
    attribute,
    dimension,
    weight_dims,
    weight_values,
    operator,
    inputs,
    opset,
    duplicate,
    external,
    subgraph,
]
MODELS = [convolutional, shapely, elderly]


def mutated(seed: int) -> tuple[str, bytes]:
    """The mutated model of a seed, and what was done to it."""
    rng = random.Random(seed)
    make = rng.choice(MODELS)
    mutate = rng.choice([*BYTES, *EDITS])
    made = make()
    result = mutate(made, rng)
    data = result if isinstance(result, bytes) else made.SerializeToString()
    return f"{make.__name__}/{mutate.__name__}", data


def verdict(data: bytes, compiles: bool) -> str:
    """``imported``, ``refused: ...`` or ``foreign: ...`` with the traceback of an error that is not ours."""
    import tvmopt
    from tvmopt.errors import TvmoptError
    from tvmopt.importer import import_model

    try:
        if compiles:
            tvmopt.compile(data, verify=False)
        else:
            import_model(data)
    except TvmoptError as error:
        text = str(error)
        return f"refused: {type(error).__name__}: {text.splitlines()[0]}" if error.what else f"foreign: no words {text}"
    except BaseException:
        return "foreign: " + traceback.format_exc().replace("\n", "\\n")[-3000:]
    return "imported"


def main(seeds: list[int], compiles: bool) -> None:
    for seed in seeds:
        what, data = mutated(seed)
        print(f"start {seed} {what}", flush=True)
        print(f"end {seed} {verdict(data, compiles)}".encode("ascii", "replace").decode(), flush=True)


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[2])
    main(list(range(first, last)), compiles=len(sys.argv) > 3)
