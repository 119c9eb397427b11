"""What a model costs before it is compiled: FLOPs, parameters, bytes, peak memory - for `tvmopt inspect`.

Everything is computed from the static ONNX graph, operator by operator, so the sum is the model's own work:
what a compiler fuses changes the bytes, never the FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.analysis.opcost import MATRIX, VIEWS, OpShapes, flops
from tvmopt.dims import Shapes

if TYPE_CHECKING:
    import onnx


QUANTIZATION = "tvmopt.quantization"
"""Under this key a file's metadata says how `tvmopt quantize` made it, as JSON."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the graph: its name, static shape, dtype name and bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class OpMetrics:
    """One node.

    Attributes:
        name: the ONNX node's name, or its first output's where it has none.
        op_type: operator.
        shape: of the first output.
        flops: operations; a multiply-add is two.
        macs: multiply-adds of convolutions and matrix products, 0 for the rest.
        parameters: elements of the weights read.
        weight_bytes: bytes of these weights.
        bytes: weights, inputs and outputs, each touched once (a view moves none; a gather what it reads).
    """

    name: str
    op_type: str
    shape: tuple[int, ...]
    flops: float
    macs: float
    parameters: int
    weight_bytes: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs a byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class ModelMetrics:
    """A model's cost at the shapes given.

    Attributes:
        name: the file's name or the graph's.
        inputs, outputs: tensors of the graph, weights left out.
        ops: every node, in graph order.
        parameters: elements of all floating-point and quantised weights, shared ones once, as in the file: a
            transposed copy that constant folding makes of a shared weight is no parameter.
        weight_bytes: their bytes.
        read_bytes: bytes of the weights that one inference reads: of a table that is looked up in, the rows.
        peak_activation_bytes: the most bytes of activations alive at once, run in graph order with no reuse
            in place; inputs and outputs included, weights not.
        peak_op: the node where that happens.
        timeline: bytes alive while each node runs, in graph order.
        sizes: the open sizes that all this is told at. symbols: the range of each of them.
        unknown: nodes left out because a shape is not static, or because they hold a subgraph.
        quantization: how `tvmopt quantize` made the file: method, preset, hashes of data and ranges; None for others.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    ops: tuple[OpMetrics, ...]
    parameters: int
    weight_bytes: int
    read_bytes: int
    peak_activation_bytes: int
    peak_op: str
    timeline: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    quantization: dict[str, Any] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)

    @property
    def flops(self) -> float:
        """Operations of one inference; a multiply-add is two."""
        return sum(op.flops for op in self.ops)

    @property
    def macs(self) -> float:
        """Multiply-adds of convolutions and matrix products: what papers call a network's FLOPs or MACs."""
        return sum(op.macs for op in self.ops)

    @property
    def bytes(self) -> int:
        """Bytes moved if no operator were fused."""
        return sum(op.bytes for op in self.ops)

    @property
    def floor_bytes(self) -> int:
        """Bytes that must move at the least: the weights that are read, inputs and outputs, each once."""
        return self.read_bytes + sum(t.nbytes for t in (*self.inputs, *self.outputs))

    @property
    def intensity(self) -> float:
        """FLOPs a byte, unfused."""
        return self.flops / self.bytes if self.bytes else 0.0

    def by_type(self) -> dict[str, tuple[int, float, int]]:
        """Operator -> (nodes, FLOPs, bytes), most FLOPs first."""
        groups: dict[str, tuple[int, float, int]] = {}
        for op in self.ops:
            count, work, moved = groups.get(op.op_type, (0, 0.0, 0))
            groups[op.op_type] = (count + 1, work + op.flops, moved + op.bytes)
        return dict(sorted(groups.items(), key=lambda item: -item[1][1]))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data, totals included."""
        totals = {key: getattr(self, key) for key in ("flops", "macs", "bytes", "floor_bytes", "intensity")}
        ops = [asdict(op) | {"intensity": op.intensity} for op in self.ops]
        return asdict(self) | totals | {"ops": ops}


def inspect(source: str | Path | bytes | onnx.ModelProto, shapes: Shapes | None = None) -> ModelMetrics:
    """Load a model, make it static - where sizes are open, at the named ones - and measure it.

    Args:
        source: as for :func:`tvmopt.importer.load`.
        shapes: shapes of inputs whose dimensions the model leaves open.

    Raises:
        ModelError: what :func:`tvmopt.importer.prepare` raises: a damaged file, an open number of dimensions.
    """
    from tvmopt.importer import load, open_model, prepare
    from tvmopt.importer.prepare import at_named

    name = Path(source).name if isinstance(source, (str, Path)) else ""
    loaded = load(source)
    prepared = prepare(loaded, shapes or {})
    ranges = open_model.read(prepared).ranges
    found = metrics(at_named(loaded, prepared), name, loaded)
    sizes = {symbol: known.opt for symbol, known in ranges.items()}
    symbols = {symbol: str(known) for symbol, known in ranges.items()}
    return replace(found, quantization=quantization_of(loaded), sizes=sizes, symbols=symbols)


def quantization_of(model: onnx.ModelProto) -> dict[str, Any] | None:
    """How `tvmopt quantize` made this file, as its metadata says; None for other files."""
    for entry in model.metadata_props:
        if entry.key == QUANTIZATION:
            try:
                found = json.loads(entry.value)
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def metrics(model: onnx.ModelProto, name: str = "", original: onnx.ModelProto | None = None) -> ModelMetrics:
    """Measure a prepared (static) model; its parameters are counted in the `original` file, if given.

    Nodes whose shapes shape inference does not find are listed in `unknown` and count nothing.
    """
    graph = model.graph
    tensors = infer_tensors(model)
    weights = {t.name for t in graph.initializer} | {
        out for node in graph.node if node.op_type == "Constant" for out in node.output
    }
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    ops, unknown = [], []
    for node in nodes:
        if _known(node, tensors):
            ops.append(_measure(node, tensors, weights))
        else:
            unknown.append(f"{node.name or node.output[0]} ({node.op_type})")
    inputs = tuple(tensors[i.name] for i in graph.input if i.name not in weights and i.name in tensors)
    outputs = tuple(tensors[o.name] for o in graph.output if o.name in tensors)
    used = {n for node in nodes for n in node.input if n in weights and n in tensors}
    real = [tensors[n] for n in used if not _is_index(tensors[n].dtype)]
    stored = _stored(original) if original is not None else real
    timeline = _timeline(nodes, tensors, weights, inputs, [o.name for o in outputs])
    peak = max(range(len(timeline)), key=timeline.__getitem__, default=-1)
    return ModelMetrics(
        name=name or graph.name,
        inputs=inputs,
        outputs=outputs,
        ops=tuple(ops),
        parameters=sum(prod(t.shape) for t in stored),
        weight_bytes=sum(t.nbytes for t in stored),
        read_bytes=_read_bytes(nodes, tensors, {t.name for t in real}),
        peak_activation_bytes=timeline[peak] if timeline else 0,
        peak_op=(nodes[peak].name or nodes[peak].output[0]) if timeline else "",
        timeline=tuple(timeline),
        unknown=tuple(unknown),
    )


def _stored(model: onnx.ModelProto) -> list[TensorInfo]:
    """The weights of a file that anything reads, `Constant` nodes with more than one element among them."""
    read = {n for node in model.graph.node for n in node.input}
    found = [_info(t.name, t.dims, t.data_type) for t in model.graph.initializer if t.name in read]
    for node in model.graph.node:
        for value in node.attribute if node.op_type == "Constant" else ():
            if value.name == "value" and prod(value.t.dims) > 1:
                found.append(_info(node.output[0], value.t.dims, value.t.data_type))
    return [t for t in found if not _is_index(t.dtype)]


def _read_bytes(nodes: Sequence[onnx.NodeProto], tensors: Mapping[str, TensorInfo], weights: set[str]) -> int:
    """Bytes of weights that one inference reads."""
    whole: set[str] = set()
    rows: dict[str, int] = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            if name in weights and node.op_type in ("Gather", "GatherND", "GatherElements") and index == 0:
                out = tensors.get(node.output[0])
                rows[name] = rows.get(name, 0) + (out.nbytes if out else tensors[name].nbytes)
            elif name in weights:
                whole.add(name)
    looked_up = sum(min(b, tensors[n].nbytes) for n, b in rows.items() if n not in whole)
    return looked_up + sum(tensors[n].nbytes for n in whole)


LONGEST = 1 << 16
"""Elements of a vector whose values ONNX's inference may follow: it makes a dimension of each, of some eighty bytes."""


def propagates(graph: Any) -> bool:
    """Whether ONNX's inference can follow the values of sizes in this graph: a Gather from a vector of 2^31 floats
    would take more memory than there is."""
    known = [v.type.tensor_type.shape.dim for v in [*graph.input, *graph.value_info]]
    return not any(len(dims) == 1 and dims[0].dim_value > LONGEST for dims in known)


def infer_tensors(model: onnx.ModelProto) -> dict[str, TensorInfo]:
    """Every tensor of the graph whose static shape is known, by name.

    Shape inference runs on a copy without the large weights' data, so that a model of several gigabytes costs
    no more than a small one.
    """
    import onnx

    skeleton = onnx.ModelProto()
    skeleton.ir_version = max(model.ir_version, 4)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    stored = {t.name for t in model.graph.initializer}
    graph.input.extend(i for i in model.graph.input if i.name not in stored)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= 1024 and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=propagates(graph)).graph
    tensors: dict[str, TensorInfo] = {}
    for value in [*inferred.input, *inferred.value_info, *inferred.output]:
        kind = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
        if value.type.HasField("tensor_type") and kind.HasField("shape") and min(dims, default=0) >= 0:
            tensors[value.name] = _info(value.name, dims, kind.elem_type)
    for tensor in model.graph.initializer:
        tensors[tensor.name] = _info(tensor.name, tensor.dims, tensor.data_type)
    return tensors


def _info(name: str, dims: Iterable[int], elem_type: int) -> TensorInfo:
    import onnx

    shape = tuple(int(d) for d in dims)
    label = onnx.TensorProto.DataType.Name(elem_type).lower()
    label = {"float": "float32", "double": "float64"}.get(label, label)
    bits = 4 if label in ("int4", "uint4", "float4e2m1") else 2 if label in ("int2", "uint2") else 0
    size = prod(shape)
    if bits:
        return TensorInfo(name, shape, label, -(-size * bits // 8))
    try:
        item = onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize
    except (KeyError, TypeError):
        item = 0
    return TensorInfo(name, shape, label, size * item)


def _is_index(dtype: str) -> bool:
    return dtype in ("int64", "bool", "string")


def _known(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo]) -> bool:
    names = [n for n in (*node.input, *node.output[:1]) if n]  # a second output (a mask) is often unused and untyped
    has_graph = any(a.HasField("g") or a.graphs for a in node.attribute)
    return not has_graph and all(n in tensors for n in names)


def _measure(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo], weights: set[str]) -> OpMetrics:
    from onnx import helper

    op = OpShapes(
        node.op_type,
        tuple(tensors[n].shape if n else () for n in node.input),
        tuple(tensors[n].shape for n in node.output if n in tensors),
        {a.name: helper.get_attribute_value(a) for a in node.attribute},
    )
    read = list(dict.fromkeys(n for n in node.input if n))
    own = [tensors[n] for n in read if n in weights and not _is_index(tensors[n].dtype)]
    work = flops(op)
    written = sum(tensors[n].nbytes for n in node.output if n in tensors)
    if node.op_type in VIEWS:
        moved = 0
    elif node.op_type in ("Gather", "GatherND", "GatherElements", "Slice"):
        moved = 2 * written + sum(tensors[n].nbytes for n in read[1:2] if node.op_type != "Slice")
    else:
        moved = written + sum(tensors[n].nbytes for n in read)
    return OpMetrics(
        name=node.name or node.output[0],
        op_type=node.op_type,
        shape=op.outputs[0] if op.outputs else (),
        flops=work,
        macs=_macs(op, work),
        parameters=sum(prod(t.shape) for t in own),
        weight_bytes=sum(t.nbytes for t in own),
        bytes=moved,
    )


def _macs(op: OpShapes, work: float) -> float:
    """Multiply-adds of a matrix operator; the bias is not one."""
    if op.op_type not in MATRIX:
        return 0.0
    has_bias = len(op.inputs) > 2 and op.op_type in ("Conv", "ConvTranspose", "Gemm")
    return (work - (prod(op.outputs[0]) if has_bias else 0)) / 2


def _timeline(
    nodes: Sequence[onnx.NodeProto],
    tensors: Mapping[str, TensorInfo],
    weights: set[str],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[str],
) -> list[int]:
    """Bytes of activations alive while each node runs; a view shares its source's memory."""
    storage = {t.name: t.name for t in inputs}
    for node in nodes:
        for out in filter(None, node.output):
            source = node.input[0] if node.op_type in VIEWS and node.input else out
            storage[out] = storage.get(source, out) if source not in weights else out
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, (*node.input, *node.output)):
            if name in storage:
                last[storage[name]] = index
    for name in outputs:
        if name in storage:
            last[storage[name]] = len(nodes)
    alive = {t.name: t.nbytes for t in inputs}
    timeline = []
    for index, node in enumerate(nodes):
        for out in filter(None, node.output):
            if storage[out] == out:
                alive[out] = tensors[out].nbytes if out in tensors else 0
        timeline.append(sum(alive.values()))
        for name in [n for n in alive if last.get(n, -1) <= index]:
            del alive[name]
    return timeline
