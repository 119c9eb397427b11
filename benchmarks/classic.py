"""The classic networks of the suite: graphs that ship inside the ``onnx`` package, with real weights - for `models`.

Each weight is drawn on the way through the graph, once its layer's real input is known: outputs keep their scale.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def classic(source: str, seed: int = 0) -> onnx.ModelProto:
    """A light graph of the onnx package with real initialisers in place of its `ConstantOfShape` nodes.

    As in the files of the model zoo that the graphs were made from (IR version 3), every initialiser is a
    graph input as well.
    """
    light = Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{source}.onnx"
    model = onnx.load(light)
    graph = model.graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    shapes = {
        node.output[0]: tuple(int(d) for d in stored[node.input[0]])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    } | {name: array.shape for name, array in stored.items() if array.dtype == np.float32}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    weights = _draw_weights(model, nodes, shapes, stored, np.random.default_rng([seed, zlib.crc32(source.encode())]))

    read = {name for node in nodes for name in node.input}
    kept = {n: a for n, a in stored.items() if n in read} | weights
    data = [i for i in graph.input if i.name in read and i.name not in stored]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in kept.items())
    types = [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in graph.initializer]
    graph.input.extend([*data, *types])
    onnx.checker.check_model(model)
    return model


def shrunk(model: onnx.ModelProto, side: int) -> onnx.ModelProto:
    """The same network for smaller pictures, for processors that are emulated: the average over all pixels of the last
    layer stays one, and the first fully connected layer keeps as many columns as it still has inputs.

    Args:
        model: as :func:`classic` makes it. side: of a picture, in pixels.
    """
    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    stored = {t.name: t for t in graph.initializer}
    for value in graph.input:
        if value.name not in stored:
            for dim in value.type.tensor_type.shape.dim[2:]:
                dim.dim_value = side
    for node in graph.node:
        window = next((list(a.ints) for a in node.attribute if a.name == "kernel_shape"), [])
        if node.op_type == "AveragePool" and window == [7, 7]:
            node.op_type = "GlobalAveragePool"
            del node.attribute[:]
        if node.op_type == "Reshape" and node.input[0] not in stored:
            flat = np.array([1, -1], np.int64)
            stored[node.input[1]].CopyFrom(numpy_helper.from_array(flat, node.input[1]))
    del graph.value_info[:]
    for node in [n for n in graph.node if n.op_type == "Gemm" and n.input[1] in stored]:
        known = {v.name: v for v in onnx.shape_inference.infer_shapes(small).graph.value_info}
        columns = known[node.input[0]].type.tensor_type.shape.dim[1].dim_value
        weight = numpy_helper.to_array(stored[node.input[1]])
        stored[node.input[1]].CopyFrom(numpy_helper.from_array(weight[:, :columns].copy(), node.input[1]))
        value = next(v for v in graph.input if v.name == node.input[1])
        value.type.tensor_type.shape.dim[1].dim_value = columns
    onnx.checker.check_model(small, full_check=True)
    return small


def _draw_weights(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    shapes: dict[str, tuple[int, ...]],
    stored: dict[str, np.ndarray],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Draw every weight on the way through the graph, each once its layer's real input is known."""
    values = dict(stored)
    for graph_input in model.graph.input:
        if graph_input.name not in stored:
            dims = [d.dim_value for d in graph_input.type.tensor_type.shape.dim]
            values[graph_input.name] = rng.standard_normal(dims, dtype=np.float32)
    last_gemm = [node for node in nodes if node.op_type in ("Gemm", "Conv")][-1]
    uses: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    weights: dict[str, np.ndarray] = {}
    root = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Reshape" and node.input[0] in shapes}

    def put(name: str, array: np.ndarray) -> None:
        if name in shapes and name not in weights:
            weights[name] = values[name] = array.astype(np.float32).reshape(shapes[name])

    for node in nodes:
        names = list(node.input)
        if node.op_type in ("Conv", "Gemm"):
            weight = root.get(names[1], names[1])
            put(weight, rng.standard_normal(shapes[weight], dtype=np.float32))
            if len(names) > 2:
                put(names[2], np.zeros(shapes[names[2]]))
            spread = float(_run_node(model, node, values)[0].std())
            scale = np.float32((3.0 if node is last_gemm else 1.0) / spread)
            weights[weight] *= scale
            if names[1] != weight:
                values[names[1]] = values[names[1]] * scale
            if len(names) > 2:
                weights[names[2]][...] = rng.normal(0, 0.1, shapes[names[2]])
        elif node.op_type == "BatchNormalization":
            x = values[names[0]].astype(np.float64)
            axes = (0, *range(2, x.ndim))
            put(names[1], rng.uniform(0.5, 1.5, shapes[names[1]]))
            put(names[2], rng.normal(0, 0.1, shapes[names[2]]))
            put(names[3], x.mean(axes))
            put(names[4], x.var(axes) * rng.uniform(0.9, 1.1, shapes[names[4]]) + 1e-3)
        else:
            for name in names:  # a Caffe "Scale" layer: Unsqueeze(w) then Mul or Add
                if name in shapes and name not in weights:
                    scale_like = "bias" not in name and not name.endswith("_b_0")
                    if node.op_type == "Reshape":
                        put(name, rng.standard_normal(shapes[name]))
                    elif scale_like:
                        put(name, rng.uniform(0.5, 1.5, shapes[name]))
                    else:
                        put(name, rng.normal(0, 0.1, shapes[name]))
        for name, array in zip(node.output, _run_node(model, node, values), strict=False):
            values[name] = array
        for name in filter(None, names):  # drop what nothing reads any more: VGG-19 would need gigabytes
            uses[name] -= 1
            if not uses[name] and name not in weights and name not in stored:
                del values[name]
    return weights


def _run_node(model: onnx.ModelProto, node: onnx.NodeProto, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of one node, from onnxruntime."""
    import onnxruntime

    feeds = {name: values[name] for name in node.input if name}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(node.output[0])]
    one = onnx.helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=model.opset_import, ir_version=8
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(one.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))
