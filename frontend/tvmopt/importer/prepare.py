"""From a loaded model to one as static as it gets: shapes bound, opset converted, functions inlined, constants
folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.dims import Dim, Range, Shapes, at
from tvmopt.errors import ModelError, TvmoptError, collect
from tvmopt.importer import decoder, open_model, pairs, roll
from tvmopt.importer.external import array_of
from tvmopt.importer.fold import Folder
from tvmopt.importer.isolate import isolated
from tvmopt.importer.opset import convert_opset
from tvmopt.importer.protos import (
    byte_size,
    copy_tensor,
    count,
    describe_type,
    live,
    make_type,
    node_reads,
    normal_domain,
    open_shape,
    subgraphs,
    to_tensor,
)
from tvmopt.importer.ranges import choose
from tvmopt.importer.schemas import schema_of
from tvmopt.importer.shapes import bind_shapes, bind_values
from tvmopt.importer.structure import scopes
from tvmopt.importer.symbols import Symbols
from tvmopt.runtime.library import load_compiler
from tvmopt.targets.memory import free_memory

OLDEST_IR = 8
"""IR version of prepared models: initialisers need not be inputs (4), opset 17 belongs to it (8)."""

MOST_TRIES = 32
"""How often a model is walked at the most, with other branches of Ifs that sizes decide."""

Weights = dict[str, TensorProto]


def prepare(
    model: onnx.ModelProto,
    shapes: Shapes | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
    has_converter: Callable[[str, str], bool] | None = None,
) -> onnx.ModelProto:
    """A model that computes what `model` computes, as static as its inputs are.

    Args:
        model: a model that :func:`tvmopt.importer.load` gave; it is left unchanged.
        shapes: sizes for inputs whose dimensions the model leaves open, by input name
            (``{"x": (1, 3, 224, 224)}``) or by the name of a symbolic dimension (``{"batch": (1,)}``). A size may be a
            range, ``"1..512@128"``; what is not mentioned stays open.
        values: inputs known at compile time, by name; they become constants.
        has_converter: says which operators the importer takes as they are; others are replaced by their
            definition in ONNX's standard where that is a function. By default the importer's own table.

    Returns:
        A model with the inputs in the original order, without functions, dead nodes and unused weights.
        Its constants, shape arithmetic included, are initialisers; its ``value_info`` has every known type. What is
        known of open sizes is in it, too: `tvmopt.importer.open_model`.

    Raises:
        ModelError: nodes that contradict their inputs, or inputs whose number of dimensions is open.
        InputError: names or sizes in `shapes` or `values` that do not fit the model; a model of two forms of a decoder.
    """
    known = has_converter or _importer_table()
    skeleton, weights = _split(model)
    inputs = [v for v in skeleton.graph.input if v.name not in weights]  # weights of IR 3 are listed, too
    del skeleton.graph.input[:]
    skeleton.graph.input.extend(inputs)
    bind_values(skeleton.graph, values or {})
    pairs.refuse_both(skeleton)
    weights.update((t.name, t) for t in skeleton.graph.initializer)
    del skeleton.graph.initializer[:]
    roles = decoder.find(list(skeleton.graph.input), skeleton.graph.output)
    if roles:
        decoder.name_sizes(skeleton.graph.input, roles, shapes or {})
    symbols = bind_shapes(skeleton.graph, shapes or {})
    symbols.decoder = roles
    result = isolated(lambda: _fold(skeleton, weights, known, symbols), "preparation", model.graph.name)
    return _assemble(result, weights)


def prepare_named(
    model: onnx.ModelProto,
    shapes: Shapes | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
) -> onnx.ModelProto:
    """:func:`prepare`, and sizes that stay open bound to the named ones: for words that look at one size."""
    return at_named(model, prepare(model, shapes, values), values)


def at_named(
    model: onnx.ModelProto, prepared: onnx.ModelProto, values: Mapping[str, npt.ArrayLike] | None = None
) -> onnx.ModelProto:
    """What :func:`prepare` made of `model`, with the sizes that stayed open bound to the named ones."""
    ranges = open_model.read(prepared).ranges
    if not ranges:
        return prepared
    named = {name: known.opt for name, known in ranges.items()}
    inputs = [(value.name, open_shape(value.type) or ()) for value in prepared.graph.input]
    return prepare(model, {name: at(shape, named) for name, shape in inputs}, values)


def _importer_table() -> Callable[[str, str], bool]:
    load_compiler()  # before `relax` imports TVM, and torch with it
    from tvmopt.importer.relax import has_converter

    return has_converter


@dataclass(frozen=True)
class _Folded:
    """What travels back from the child: the graph, new constants, names of the old weights that are kept.

    A constant is one array and the shape it is broadcast to, so repeated elements travel once.
    """

    skeleton: bytes
    constants: dict[str, tuple[npt.NDArray[Any], tuple[int, ...]]]
    kept: tuple[str, ...]


def _split(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """A copy of the model without its weights, and the weights themselves, not copied."""
    skeleton = onnx.ModelProto(
        ir_version=max(model.ir_version, OLDEST_IR),
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    skeleton.opset_import.extend(model.opset_import or [helper.make_opsetid("", 1)])
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name or "graph"
    for part in ("input", "output", "node", "value_info"):
        getattr(graph, part).extend(getattr(model.graph, part))
    _normal_domains(skeleton)
    if _has_doubles(model):
        _write_defaults(skeleton)
    weights = {t.name: t for t in model.graph.initializer}
    for sparse in model.graph.sparse_initializer:
        weights[sparse.values.name] = _dense(sparse)
    return skeleton, weights


def _normal_domains(model: onnx.ModelProto) -> None:
    """Call the default domain by its empty name everywhere: to ONNX's inference "ai.onnx" is another one."""
    for entries in (model.opset_import, *(f.opset_import for f in model.functions)):
        for entry in entries:
            entry.domain = normal_domain(entry.domain)
    for _, nodes, _ in scopes(model):
        for node in nodes:
            node.domain = normal_domain(node.domain)


def _has_doubles(model: onnx.ModelProto) -> bool:
    """Whether an input or a weight is float64."""
    given = any(v.type.tensor_type.elem_type == TensorProto.DOUBLE for v in model.graph.input)
    return given or any(t.data_type == TensorProto.DOUBLE for t in model.graph.initializer)


def _write_defaults(model: onnx.ModelProto) -> None:
    """Write down the numbers that are meant where an attribute is left out: they are float32 (an epsilon of 1e-5 is
    0.0000099999997), which float64 shows and float32 does not."""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    for _, nodes, _ in scopes(model):
        for node in nodes:
            schema = schema_of(node.op_type, node.domain, opsets.get(node.domain, 1))
            given = {a.name for a in node.attribute}
            for name, attribute in schema.attributes.items() if schema is not None else ():
                default = attribute.default_value
                inexact = default.type == onnx.AttributeProto.FLOAT and float(str(np.float32(default.f))) != default.f
                if inexact and name not in given:
                    node.attribute.append(helper.make_attribute(name, default.f))


def _dense(sparse: onnx.SparseTensorProto) -> TensorProto:
    """A sparse initialiser written out."""
    name, dims = sparse.values.name, tuple(sparse.dims)
    size = byte_size(sparse.values.data_type, count(dims))
    where = f"sparse initialiser '{name}'"
    if any(d <= 0 for d in dims) or size > free_memory():
        raise ModelError(f"A sparse tensor of shape {list(dims)} cannot be written out.", where=where)
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(dims, values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"The indices of a sparse tensor do not fit: {error}.", where=where) from None
    return to_tensor(dense, name)


def _fold(
    skeleton: onnx.ModelProto, weights: Weights, has_converter: Callable[[str, str], bool], symbols: Symbols
) -> _Folded:
    """The risky part: version conversion, shape inference, evaluation."""
    given = weights.keys()
    converted, weights = convert_opset(skeleton, weights)
    folder, nodes, ranges = _walked(converted, weights, has_converter, symbols)
    used = set().union(*(node_reads(n) for n in nodes)) | folder.results | roll.inner_names(nodes)
    model = _skeleton(folder, converted, nodes)
    if symbols := folder.symbols:
        values = {name: array for name, array in folder.open_values.items() if name in used}
        ends = [symbols.limits({n: getattr(r, end) for n, r in ranges.items()}) for end in ("max", "opt")]
        decided = {n: Range(0, most, ends[1][n]) for n, most in ends[0].items()}
        known = open_model.Open(ranges, symbols.left(ranges), values, _growing(folder), decided)
        open_model.write(model, known)
    constants = {k: v for k, v in folder.constants.items() if k in used and k not in given}
    made = {k: array_of(t) for k, t in weights.items() if k in used and k not in given}
    kept = tuple(k for k in given if k in used)
    packed = {k: (_distinct(a), a.shape) for k, a in (made | constants).items()}
    return _Folded(model.SerializeToString(), packed, kept)


def _walked(
    model: onnx.ModelProto, weights: Weights, has_converter: Callable[[str, str], bool], symbols: Symbols
) -> tuple[Folder, list[onnx.NodeProto], dict[str, Range]]:
    """The walk over a model, the nodes that an output depends on, and the ranges of its open sizes.

    A size that turns out to be a number was open to the nodes in front of the one that says so: with it, the walk
    begins again, and asks them whether they fit it.
    """
    while True:
        folder, nodes, ranges = _tried(model, weights, has_converter, symbols)
        replaced = folder.symbols.replaced
        if not any(name in replaced and isinstance(replaced[name][0], int) for name in symbols.names):
            return folder, nodes, ranges
        model = _with_inputs(model, folder.types)
        left = {name: given for name, given in folder.symbols.ranges.items() if name in folder.symbols.names}
        symbols = replace(symbols, names=folder.symbols.names, ranges=left)


def _with_inputs(model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto]) -> onnx.ModelProto:
    """A copy whose inputs have these types."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for value in copied.graph.input:
        value.type.CopyFrom(types[value.name])
    return copied


def _tried(
    model: onnx.ModelProto, weights: Weights, has_converter: Callable[[str, str], bool], symbols: Symbols
) -> tuple[Folder, list[onnx.NodeProto], dict[str, Range]]:
    """One walk. Where one of two ways was taken (`Walk.chosen`) and a problem stands behind it, the other one is
    tried: of the ways taken before the first problem, the last one first. So Ifs whose problems stand before the next
    If cost one walk each.

    Raises:
        ModelError: the problems of the first try.
    """
    first: TvmoptError | None = None
    choices: tuple[int, ...] = ()
    for _ in range(MOST_TRIES):
        folder = Folder(model, weights, has_converter, symbols=deepcopy(symbols), choices=choices)
        if symbols.decoder.positions:  # less than the past and the new tokens together
            past = folder.open_shape(symbols.decoder.caches[0].past) or (0,) * 4
            new = folder.open_shape(symbols.decoder.positions) or (0, 0)
            folder.below[symbols.decoder.positions] = past[decoder.LENGTH_AXIS] + new[1]
        try:
            folder.run()
            if problems := folder.problems + _wrong_outputs(folder):
                raise collect(problems[:100])
            nodes = live(folder.nodes, folder.results)
            return folder, nodes, choose(folder, nodes) if folder.symbols else {}
        except TvmoptError as error:
            first = first or error
        taken = [*choices, *[0] * (len(folder.asked) - len(choices))][: folder.in_doubt]
        left = [i for i, (way, ways) in enumerate(zip(taken, folder.asked, strict=False)) if way + 1 < ways]
        if not left:
            break
        choices = (*taken[: left[-1]], taken[left[-1]] + 1)
    assert first is not None
    raise first


def _growing(folder: Folder) -> tuple[tuple[str, str], ...]:
    """The caches whose length is a symbol by itself, and the outputs that they leave by."""
    pairs = [(cache.past, cache.present) for cache in folder.symbols.decoder.caches]
    lengths = {past: (folder.open_shape(past) or (0,) * 4)[decoder.LENGTH_AXIS] for past, _ in pairs}
    kept = tuple(pair for pair in pairs if isinstance(lengths[pair[0]], Dim))
    same = {str(lengths[past]) for past, _ in kept}
    return kept if len(same) == 1 and same <= set(folder.symbols.names) else ()


def _wrong_outputs(folder: Folder) -> list[ModelError]:
    """Outputs declared of another element type than the graph computes: no runtime knows which is meant."""
    problems = []
    for value in folder.model.graph.output:
        kind, declared = folder.types.get(value.name), value.type
        if kind is None or not kind.tensor_type.elem_type or not declared.tensor_type.elem_type:
            continue
        if kind.tensor_type.elem_type != declared.tensor_type.elem_type:
            text = f"Output '{value.name}' is {describe_type(kind)}, but declared {describe_type(declared)}."
            fix = "correct the declared type, or cast the output"
            problems.append(ModelError(text, where=f"output '{value.name}'", fix=fix))
    return problems


def _distinct(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The part of a broadcast view that is not repetition."""
    axes = zip(array.strides, array.shape, strict=True)
    return array[tuple(slice(0, 1) if stride == 0 and size else slice(None) for stride, size in axes)]


def _skeleton(folder: Folder, source: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """The folded model without its initialisers."""
    model = onnx.ModelProto(ir_version=source.ir_version, producer_name=source.producer_name)
    model.producer_version = source.producer_version
    model.opset_import.extend(helper.make_opsetid(d, v) for d, v in folder.opsets.items())
    graph = model.graph
    graph.name = source.graph.name
    roll.write_types(folder, nodes)
    graph.node.extend(nodes)
    _distinct_names(graph)
    graph.input.extend(onnx.ValueInfoProto(name=v.name, type=folder.types[v.name]) for v in source.graph.input)
    for value in source.graph.output:
        kind = folder.types.get(value.name)
        graph.output.append(onnx.ValueInfoProto(name=value.name, type=_unnamed(value.type) if kind is None else kind))
    border = {v.name for v in [*graph.input, *graph.output]}
    for name in (o for n in nodes for o in n.output if o and o not in border):
        if (shape := folder.open_shape(name)) is not None:
            kind = make_type(folder.types[name].tensor_type.elem_type, shape)
            graph.value_info.append(onnx.ValueInfoProto(name=name, type=kind))
    return model


def _unnamed(declared: onnx.TypeProto) -> onnx.TypeProto:
    """A type of the file, for a result that nothing was found out about. The file's names of sizes are any text, and
    stand for no sizes of the folded model."""
    kind = onnx.TypeProto()
    kind.CopyFrom(declared)
    for dim in kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ():
        if dim.dim_param:
            dim.Clear()
    return kind


def _distinct_names(graph: onnx.GraphProto, taken: set[str] | None = None) -> None:
    """Number nodes of the same name: reports speak of nodes by name, and onnxruntime insists. `taken`: those of the
    graphs around this one."""
    taken = set() if taken is None else taken
    for node in graph.node:
        name, n = node.name, 1
        while name and name in taken:
            n += 1
            name = f"{node.name}_{n}"
        taken.add(name)
        node.name = name
        for inner in subgraphs(node):
            _distinct_names(inner, taken)


def _assemble(folded: _Folded, weights: Weights) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(folded.skeleton)
    for name in folded.kept:
        copy_tensor(model.graph.initializer.add(), weights[name])
    for name, (array, shape) in folded.constants.items():
        model.graph.initializer.append(to_tensor(np.broadcast_to(array, shape), name))
    return model
