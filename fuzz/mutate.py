"""Valid models damaged in one field or a few: what a broken exporter, an editor or an attacker would write.

A mutation works on the parsed model (attributes, sizes, types, weights, names, wiring, versions) or, rarely, on its
bytes. The contract for mutants is weaker than for graphs: an error of ours is fine, and nothing else is: no death, no
hang, no other exception - and where onnxruntime accepts the mutant too, equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Random = np.random.Generator
Mutation = Callable[[onnx.ModelProto, Random], None]

SIZES = (-(1 << 63), -(1 << 31), -5, -1, 0, 1, 2, 3, 7, 1 << 10, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)
SMALL = (-3, -2, -1, 0, 1, 2, 3, 4, 5)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -3.4e38, float("inf"), float("-inf"), float("nan"), 0.5, 1e30)


def _pick(rng: Random, items: Any) -> Any:
    items = list(items)
    if not items:
        raise IndexError("nothing to mutate")
    return items[int(rng.integers(len(items)))]


def _size(rng: Random, old: int) -> int:
    return (
        int(_pick(rng, SMALL if rng.random() < 0.6 else SIZES))
        if rng.random() < 0.7
        else old + int(rng.integers(-2, 3))
    )


def _bounded(value: int) -> int:
    return max(-(1 << 63), min((1 << 63) - 1, value))


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph and the graphs inside its nodes."""
    found, queue = [], [model.graph]
    while queue:
        graph = queue.pop()
        found.append(graph)
        queue += [g for n in graph.node for a in n.attribute for g in (a.g, *a.graphs) if g.node]
    return found


def _node(model: onnx.ModelProto, rng: Random) -> onnx.NodeProto:
    return _pick(rng, [n for g in _graphs(model) for n in g.node])


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [v for g in _graphs(model) for v in (*g.input, *g.output)]


def attribute_value(model: onnx.ModelProto, rng: Random) -> None:
    attribute = _pick(rng, [a for g in _graphs(model) for n in g.node for a in n.attribute])
    if attribute.type == AttributeProto.INT:
        attribute.i = _bounded(_size(rng, attribute.i))
    elif attribute.type == AttributeProto.INTS:
        values = list(attribute.ints)
        how = rng.random()
        if values and how < 0.6:
            at = int(rng.integers(len(values)))
            values[at] = _bounded(_size(rng, values[at]))
        elif values and how < 0.75:
            values.pop()
        else:
            values += [_bounded(_size(rng, 1))] * int(rng.integers(1, 4))
        del attribute.ints[:]
        attribute.ints.extend(values)
    elif attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        if attribute.floats:
            attribute.floats[0] = _pick(rng, NUMBERS)
        attribute.f = _pick(rng, NUMBERS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = _pick(
            rng,
            [b"", b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"linear", b"constant", b"\xff\xfe", b"x" * 300],
        )
    elif attribute.type == AttributeProto.TENSOR:
        _mutate_tensor(attribute.t, rng)


def attribute_type(model: onnx.ModelProto, rng: Random) -> None:
    attribute = _pick(rng, [a for g in _graphs(model) for n in g.node for a in n.attribute])
    attribute.type = int(_pick(rng, AttributeProto.AttributeType.values()))


def attribute_gone(model: onnx.ModelProto, rng: Random) -> None:
    node = _pick(rng, [n for g in _graphs(model) for n in g.node if n.attribute])
    del node.attribute[int(rng.integers(len(node.attribute)))]


def attribute_new(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    names: list[str] = ["axis", "axes", "nonsense", ""]
    if onnx.defs.has(node.op_type):
        names += list(onnx.defs.get_schema(node.op_type).attributes) * 3
    name = _pick(rng, names)
    value = _pick(rng, [0, 1, -1, 7, 0.5, "NOTSET", [1, 1], [0], [2, 2, 2, 2], 1 << 40])
    node.attribute.append(helper.make_attribute(name or "empty", value))


def dimension(model: onnx.ModelProto, rng: Random) -> None:
    value = _pick(rng, [v for v in _values(model) if v.type.tensor_type.shape.dim])
    dim = _pick(rng, value.type.tensor_type.shape.dim)
    if rng.random() < 0.1:
        dim.dim_param = "n"
    else:
        dim.dim_value = _bounded(_size(rng, dim.dim_value))


def rank(model: onnx.ModelProto, rng: Random) -> None:
    shape = _pick(rng, [v for v in _values(model) if v.type.HasField("tensor_type")]).type.tensor_type.shape
    if shape.dim and rng.random() < 0.5:
        del shape.dim[int(rng.integers(len(shape.dim)))]
    else:
        shape.dim.add().dim_value = int(_pick(rng, [0, 1, 1, 2, 5]))


def value_type(model: onnx.ModelProto, rng: Random) -> None:
    value = _pick(rng, _values(model))
    value.type.tensor_type.elem_type = int(_pick(rng, [*range(24), 99]))


def _tensor(model: onnx.ModelProto, rng: Random) -> TensorProto:
    return _pick(
        rng,
        [t for g in _graphs(model) for t in g.initializer]
        + [a.t for n in model.graph.node for a in n.attribute if a.type == 4],
    )


def _mutate_tensor(tensor: TensorProto, rng: Random) -> None:
    how = int(rng.integers(6))
    if how == 0:
        tensor.data_type = int(_pick(rng, [*range(24), 77]))
    elif how == 1 and tensor.dims:
        at = int(rng.integers(len(tensor.dims)))
        tensor.dims[at] = _bounded(_size(rng, tensor.dims[at]))
    elif how == 2:
        tensor.dims.append(int(_pick(rng, [0, 1, 1, 2, -1, 1 << 40])))
    elif how == 3 and tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data)))]
    elif how == 4 and tensor.dims:
        tensor.dims.pop()
    else:
        _revalue(tensor, rng)


def _revalue(tensor: TensorProto, rng: Random) -> None:
    """One of the tensor's values changed: of integers an absurd one, as they are axes, shapes and counts."""
    array = np.array(numpy_helper.to_array(tensor))
    if not array.size or array.dtype.kind in "OUS":
        raise IndexError("no values")
    at = int(rng.integers(array.size))
    flat = array.reshape(-1)
    if array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        flat[at] = max(info.min, min(info.max, _size(rng, int(flat[at]))))
    elif array.dtype.kind == "b":
        flat[at] = not flat[at]
    else:
        with np.errstate(all="ignore"):
            flat[at] = _pick(rng, NUMBERS)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def weight(model: onnx.ModelProto, rng: Random) -> None:
    _mutate_tensor(_tensor(model, rng), rng)


def integer_weight(model: onnx.ModelProto, rng: Random) -> None:
    _revalue(_pick(rng, [t for g in _graphs(model) for t in g.initializer if t.data_type in (6, 7)]), rng)


def weight_gone(model: onnx.ModelProto, rng: Random) -> None:
    if rng.random() < 0.5 and model.graph.initializer:  # it becomes an input
        tensor = _pick(rng, model.graph.initializer)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        model.graph.initializer.remove(tensor)
        return
    model.graph.initializer.remove(_pick(rng, model.graph.initializer))


def input_known(model: onnx.ModelProto, rng: Random) -> None:
    """An input becomes an initializer of random numbers."""
    value = _pick(rng, [v for v in model.graph.input if v.type.HasField("tensor_type")])
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if np.prod(shape, dtype=float) > 1 << 16 or min(shape, default=0) < 0:
        raise IndexError("too large")
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    array = np.asarray(rng.integers(0, 3, shape)).astype(dtype)
    model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    if rng.random() < 0.7:
        model.graph.input.remove(value)


def wiring(model: onnx.ModelProto, rng: Random) -> None:
    """An operand is another value of the graph, or none."""
    graph = _pick(rng, _graphs(model))
    node = _pick(rng, [n for n in graph.node if n.input])
    known = (
        [v.name for v in graph.input] + [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output]
    )
    node.input[int(rng.integers(len(node.input)))] = _pick(rng, [*known, *known, "", "nowhere"])


def operands(model: onnx.ModelProto, rng: Random) -> None:
    """One operand more, one less, or two exchanged."""
    node = _pick(rng, [n for g in _graphs(model) for n in g.node if n.input])
    how = rng.random()
    if how < 0.4:
        del node.input[-1]
    elif how < 0.7:
        node.input.append(_pick(rng, [*node.input, ""]))
    else:
        order = rng.permutation(len(node.input))
        names = [node.input[i] for i in order]
        del node.input[:]
        node.input.extend(names)


def results(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    how = rng.random()
    if how < 0.4:
        node.output.append(f"more_{len(node.output)}")
    elif how < 0.7 and len(node.output) > 1:
        node.output[int(rng.integers(len(node.output)))] = ""
    else:
        node.output[0] = _pick(rng, [o for n in model.graph.node for o in n.output])


def operator(model: onnx.ModelProto, rng: Random) -> None:
    """Another operator with the same operands."""
    node = _node(model, rng)
    same = [
        s.name
        for s in onnx.defs.get_all_schemas()
        if not s.deprecated and s.min_input <= len(node.input) <= s.max_input
    ]
    node.op_type = _pick(rng, [*same, "", "Nonsense"])


def domain(model: onnx.ModelProto, rng: Random) -> None:
    _node(model, rng).domain = _pick(rng, ["ai.onnx", "com.microsoft", "ai.onnx.ml", "nowhere"])


def node_gone(model: onnx.ModelProto, rng: Random) -> None:
    graph = _pick(rng, _graphs(model))
    del graph.node[int(rng.integers(len(graph.node)))]


def node_twice(model: onnx.ModelProto, rng: Random) -> None:
    graph = _pick(rng, _graphs(model))
    copy = onnx.NodeProto.FromString(_pick(rng, graph.node).SerializeToString())
    if rng.random() < 0.6:
        for i, name in enumerate(copy.output):
            copy.output[i] = f"{name}_again"
        graph.output.add().name = copy.output[0]
    graph.node.append(copy)


def order(model: onnx.ModelProto, rng: Random) -> None:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in rng.permutation(len(nodes)))


def name(model: onnx.ModelProto, rng: Random) -> None:
    """A node, a value or an output gets an odd name, or one that is taken."""
    new = _pick(
        rng,
        [
            "",
            "main",
            "x y",
            "\u2603",
            "a" * 5000,
            "0",
            "%s",
            "../x",
            "\x1b[31m",
            "\x00",
            _pick(rng, [o for n in model.graph.node for o in n.output]),
        ],
    )
    how = rng.random()
    if how < 0.4:
        _node(model, rng).name = new
    elif how < 0.6:
        _pick(rng, _values(model)).name = new
    else:
        old = _pick(rng, [o for n in model.graph.node for o in n.output] + [v.name for v in model.graph.input])
        for node in model.graph.node:
            for part in (node.input, node.output):
                for i, one in enumerate(part):
                    if one == old:
                        part[i] = new
        for value in (*model.graph.input, *model.graph.output):
            if value.name == old:
                value.name = new


def version(model: onnx.ModelProto, rng: Random) -> None:
    how = rng.random()
    if how < 0.7 and model.opset_import:
        model.opset_import[0].version = int(
            _pick(rng, [1, 6, 7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 99, 0, -1])
        )
    elif how < 0.85:
        del model.opset_import[:]
    else:
        model.ir_version = int(_pick(rng, [0, 1, 3, 7, 8, 13, 1000]))


def outputs(model: onnx.ModelProto, rng: Random) -> None:
    how = rng.random()
    if how < 0.3:
        del model.graph.output[int(rng.integers(len(model.graph.output)))]
    elif how < 0.7:
        model.graph.output.add().name = _pick(
            rng, [o for n in model.graph.node for o in n.output] + [v.name for v in model.graph.input]
        )
    else:
        _pick(rng, model.graph.output).type.Clear()


MUTATIONS: tuple[tuple[int, Mutation], ...] = (
    (8, attribute_value), (1, attribute_type), (2, attribute_gone), (3, attribute_new), (5, dimension), (2, rank),
    (3, value_type), (4, weight), (6, integer_weight), (2, weight_gone), (2, input_known), (3, wiring), (3, operands),
    (1, results), (4, operator), (1, domain), (1, node_gone), (1, node_twice), (1, order), (2, name), (3, version),
    (1, outputs),
)  # fmt: skip


def mutated(source: onnx.ModelProto, rng: Random) -> bytes:
    """The bytes of a copy with one to three mutations; now and then its bytes are damaged too."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    weights = np.array([w for w, _ in MUTATIONS], float)
    done, wanted = 0, int(rng.choice([1, 1, 1, 2, 3]))
    for _ in range(40):
        if done == wanted:
            break
        mutation = MUTATIONS[int(rng.choice(len(MUTATIONS), p=weights / weights.sum()))][1]
        kept = model.SerializeToString()
        try:
            mutation(model, rng)
            model.SerializeToString()
            done += 1
        except Exception:  # nothing to mutate there, or a value that protobuf or NumPy refuses
            model.ParseFromString(kept)
    data = model.SerializeToString()
    if rng.random() < 0.03 and data:
        broken = bytearray(data)
        for _ in range(int(rng.integers(1, 5))):
            broken[int(rng.integers(len(broken)))] ^= 1 << int(rng.integers(8))
        data = bytes(broken[: int(rng.integers(len(broken)))] if rng.random() < 0.3 else broken)
    return data
