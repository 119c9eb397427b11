"""ONNX to Relax: TVM's importer, with our converters and names in front of it - the last step of an import.

TVM's :class:`ONNXGraphImporter` is subclassed, never patched. What differs from it:

* a node is looked up by domain *and* operator, in our table first (:mod:`tvmopt.importer.converters`);
* every binding is named after the ONNX node it came from, so that provenance survives the passes, which keep
  the names of bindings;
* a ShapeExpr or PrimValue that a converter of TVM's returns becomes a constant; a value that the preparation knows to
  consist of open sizes is no node at all, but an array that converters compute with (`open_model.py`);
* ``main`` always returns a tuple, and its parameters and bindings are C identifiers (nvcc refuses others).
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection
from dataclasses import replace
from itertools import count as count_from
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend as stock

from tvmopt.dims import FOUND, Dim, OpenSize, Size, is_found, is_open, symbols_of
from tvmopt.errors import ModelError, TvmoptError, UnsupportedOp, collect, last_line
from tvmopt.extensions import converters
from tvmopt.importer import decoder, open_model
from tvmopt.importer.branches import inputs_behind
from tvmopt.importer.converters import CONVERTERS, Context, Inputs, find
from tvmopt.importer.converters.below import Below, below
from tvmopt.importer.converters.common import Build
from tvmopt.importer.converters.context import open_size, selected_by
from tvmopt.importer.converters.sized import shape_as_data
from tvmopt.importer.converters.static_inputs import COMPILE_TIME
from tvmopt.importer.either import convert_either
from tvmopt.importer.external import array_of
from tvmopt.importer.loops import LOOPS, convert_loop
from tvmopt.importer.lowbits import elem_type_of, pack, storage_dtype
from tvmopt.importer.protos import (
    attributes,
    count,
    dtype_name,
    node_name,
    normal_domain,
    open_shape,
    opset_versions,
)
from tvmopt.importer.provenance import NODES, Names, named
from tvmopt.importer.roll import is_rolled
from tvmopt.importer.sizes import LEAST_SIZES, NAMED_SIZES, from_tvm, shape_of, shape_to_tvm, sizes_of
from tvmopt.importer.symbols import CUT_BEFORE_SELECTION
from tvmopt.importer.types import Imported, TensorSpec

STOCK_DOMAINS = {
    "": frozenset(stock._get_convert_map())
    - {"Attention", "FastGelu", "BiasGelu", "MatMulInteger16", "SkipLayerNormalization"}
    - {"EmbedLayerNormalization", "AllClassNMS"},
    "com.microsoft": frozenset(
        {"Attention", "Gelu", "FastGelu", "BiasGelu", "MatMulInteger16", "SkipLayerNormalization"}
        | {"EmbedLayerNormalization"}
    ),
}
"""What TVM's table holds, by the domain each entry implements (TVM itself ignores domains)."""

UPPER_BOUNDS = "tir_var_upper_bound"
"""TVM's attribute of `main` for memory planning: the largest value of each open size."""

CACHES = "tvmopt.caches"
"""Our attribute of `main`: of each cache that grows, the number of the input and of the output that it is."""

SCORES = "tvmopt.scores"
"""Our attribute of `main`: the number of the output that a decoder's scores are."""

ADD_A_CONVERTER = "register a converter: docs/how-to/add-operator.md"

UNREAD_ELEMENTS = 1 << 16
"""Float weights from this size on are not read in a trial: no converter looks at their values."""

KEEPS_TUPLE = {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"} | {
    "Optional",
    "OptionalGetElement",
    "SequenceMap",
    "Identity",
}
"""Operators whose one output is a sequence, which Relax has as a tuple."""


def has_converter(domain: str, op_type: str) -> bool:
    """Whether this operator is converted, by us, by TVM or by the importer itself (If)."""
    domain = normal_domain(domain)
    own = find(domain, op_type) is not None or (domain, op_type) in {("", "If"), ("", "Constant")}
    return own or op_type in STOCK_DOMAINS.get(domain, ())


def operators() -> list[tuple[str, str]]:
    """Domain and name of every operator of :func:`has_converter`, for a process that prepares a model without TVM."""
    taken = {*CONVERTERS, *converters(), ("", "If"), ("", "Constant")}
    return sorted(taken | {(domain, name) for domain, names in STOCK_DOMAINS.items() for name in names})


class Importer(stock.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no types
    """TVM's importer with domains, names and constants as the module docstring says."""

    def __init__(self, model: onnx.ModelProto, trial: bool = False, dynamic: bool = False) -> None:
        super().__init__({}, "float32")
        self.dynamic = dynamic
        self._nodes: dict[str, Any] = {}
        self.opsets = opset_versions(model)
        self.trial = trial
        self.names = Names()
        self.open = open_model.read(model)
        self.header = onnx.ModelProto(opset_import=model.opset_import, metadata_props=model.metadata_props)
        self.loops: dict[str, Any] = {}
        self.types: dict[str, tuple[str, tuple[Size, ...]]] = {}
        self._roots: dict[Any, str] = {}
        self._below: dict[Any, Below] = {}
        self._failed: set[str] = set()
        self.errors: list[ModelError] = []
        self._graph = onnx.GraphProto()

    def convert_graph(self, graph: onnx.GraphProto) -> tuple[Any, dict[str, str]]:
        """The module, and the ONNX node of each binding's name."""
        self._graph = graph
        self._read_types(graph)
        self._parse_graph_initializers(graph)
        self._parse_graph_input(graph)
        sized = self.open.ranges or self.open.decided
        branches = not sized and any(node.op_type == "If" for node in graph.node)
        params = list(self._inputs.values())
        node_names = Names()  # bindings may share a name with a parameter: they are told apart by identity
        failure = None
        with self.bb.function("main", params=params):
            with contextlib.nullcontext() if branches else self.bb.dataflow():
                try:
                    result = self._convert_body(graph, node_names)
                except Exception as error:  # raised below: TVM complains of a builder left with open blocks
                    result, failure = relax.Tuple([]), error
                if not branches:
                    result = self.bb.emit_output(result)
            self.bb.emit_func_output(result)
        if failure:
            raise failure
        module = self.bb.get()
        attrs: dict[str, Any] = {"num_input": len(params), NODES: node_names.original}
        if known := self.open.ranges | self.open.decided:
            attrs[UPPER_BOUNDS] = {name: size.max for name, size in known.items()}
            attrs[NAMED_SIZES] = {name: size.opt for name, size in known.items()}
            attrs[LEAST_SIZES] = {name: size.min for name, size in known.items()}
        if self.open.caches:
            places = [v.name for v in graph.input if v.name in self._inputs], [v.name for v in graph.output]
            if decoder.LOGITS in places[1]:
                attrs[SCORES] = places[1].index(decoder.LOGITS)
            attrs[CACHES] = [[side.index(n) for side, n in zip(places, pair, strict=True)] for pair in self.open.caches]
        if self.loops:
            attrs[LOOPS] = self.loops
        main = named(module["main"], self._roots).with_attrs(attrs)
        module.update_func(module.get_global_var("main"), main)
        return (relax.transform.ConvertToDataflow()(module) if branches else module), node_names.original

    def _convert_body(self, graph: onnx.GraphProto, names: Names) -> Any:
        """The tuple of the graph's outputs, its nodes emitted."""
        self._convert_nodes(graph, names)
        if self.errors:
            raise collect(self.errors)
        makers = {output: node_name(node) for node in graph.node for output in node.output}
        return relax.Tuple([self._result(o.name, makers.get(o.name, "")) for o in graph.output])

    def _result(self, name: str, maker: str) -> Any:
        """An output of the graph, which the node `maker` computes; an empty one is made at run time (TVM cannot load
        empty constants)."""
        value = self._nodes[name]
        if value is None:
            raise UnsupportedOp(
                f"The output '{name}' is an optional one of its operator that is not computed.",
                where=f"node '{maker}'",
                fix="export the model without this output",
            )
        if isinstance(value, np.ndarray):
            return shape_as_data(Build(self.bb, name), value, self.types[name][0])
        if isinstance(value, tvm.ir.GenericConst) and value.value.numpy().size == 0:
            shape = [int(d) for d in value.ty.shape]
            return Build(self.bb, name).emit(relax.op.zeros(shape, str(value.ty.dtype)))
        return value

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._nodes[tensor.name] = _unread(tensor) if self.trial else None
            if self._nodes[tensor.name] is None:
                self._nodes[tensor.name] = _constant(array_of(tensor))
            self.types.setdefault(tensor.name, (dtype_name(tensor.data_type), tuple(tensor.dims)))

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        for value in graph.input:
            if value.name in self._nodes:
                continue  # an initialiser that IR version 3 lists as an input too
            dtype, shape = self.types.get(value.name, ("object", None))
            if shape is None or dtype == "object":
                raise ModelError(
                    f"Input '{value.name}' is a tensor of strings, which TVM lacks."
                    if shape is not None
                    else f"Input '{value.name}' has sizes without names.",
                    where=f"input '{value.name}'",
                    fix="call importer.prepare first",
                )
            kind = relax.TensorType(shape_to_tvm(shape), storage_dtype(dtype))
            var = relax.Var(self.names.fresh(value.name, "input"), kind)
            self._nodes[value.name] = self._inputs[value.name] = var

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: :mod:`tvmopt.importer.check` has listed them all, with names and reasons."""

    def _parse_attr(self, attr_proto: Any) -> dict[str, Any]:
        """Attributes in the form that TVM's converters expect: bytes for strings, protos for tensors."""
        return {a.name: _stock_attribute(helper.get_attribute_value(a)) for a in attr_proto}

    def _convert_nodes(self, graph: onnx.GraphProto, names: Names) -> None:
        for node in graph.node:
            if node.output and all(o in self.open.values for o in node.output):
                self._nodes.update((o, self.open.values[o]) for o in node.output)  # sizes: nothing to compute
                continue
            name = node_name(node)
            binding = names.fresh(name, "n")
            inputs = Inputs(self._nodes[i] if i else None for i in node.input)
            if self._failed.intersection(node.input):
                results = self._stand_ins(node, binding)  # a refused node is behind this one
            else:
                try:
                    results = self._convert_node(node, name, binding, inputs, names)
                except ModelError as error:
                    self.errors.append(error)
                    results = self._stand_ins(node, binding)
            for output, result in zip(node.output, results, strict=False):
                if output and result is not None:
                    self._nodes[output] = self._known_sizes(result, output, binding)
            self._learn(node, inputs)
            for output in node.output:
                if output and output not in self._nodes:
                    self._nodes[output] = None
                    if self.errors:
                        self._failed.add(output)

    def _learn(self, node: onnx.NodeProto, inputs: Inputs) -> None:
        """What is known of the integers that a node computes."""
        found = below(node, list(inputs), self._known_below(inputs))
        for output, one in zip(node.output, found, strict=True):
            if one is not None and isinstance(value := self._nodes.get(output), relax.Var):
                self._below[value] = one

    def _known_below(self, inputs: Inputs) -> list[Below | None]:
        return [self._below.get(value) if isinstance(value, relax.Var) else None for value in inputs]

    def _stand_ins(self, node: onnx.NodeProto, binding: str) -> list[Any]:
        """Placeholders of a refused node's outputs, as inferred, to find the next refusals too."""
        types = [self.types.get(o) for o in node.output]
        zeros = [relax.op.zeros(shape_to_tvm(t[1]), t[0]) if t and t[0] != "object" else None for t in types]
        return [None if z is None else self._emit(z, binding) for z in zeros]

    def _convert_node(self, node: onnx.NodeProto, name: str, binding: str, inputs: Inputs, names: Names) -> list[Any]:
        """The node's results, bound to variables called `binding`."""
        domain = normal_domain(node.domain)
        inputs = self._data(node, inputs)
        if (domain, node.op_type) == ("", "If"):
            if self.open.ranges or self.open.decided:
                values = self._deciding(node)
                found = convert_either(self, self._for_body, node, inputs, name, values)
                return [self._emit(r, binding) for r in found]
            return [None if r is None else self._emit(r, binding) for r in self._convert_if(node, inputs, names)]
        context = Context(
            op_type=node.op_type,
            domain=domain,
            opset=self.opsets.get(domain, 1),
            name=name,
            outputs=tuple(node.output),
            output_types=tuple(self.types.get(o) for o in node.output),
            node=node,
            stock_converter=lambda i, a: self._convert_stock(node, name, i, a),
            node_inputs=inputs,
            input_elem_types=tuple(self._elem_type(i) for i in node.input),
            below=tuple(self._known_below(inputs)),
            subgraph=lambda graph, values: self._convert_subgraph_inline(graph, values, names),
        )
        if any(i and v is None for i, v in zip(node.input, inputs, strict=True)):
            raise context.unsupported("it reads an optional output that TVM does not compute")
        try:
            if node.op_type == "Unique" and not domain and not self.dynamic:
                raise context.unsupported("TVM computes it with a function of its compiler, which an artifact lacks")
            if is_rolled(node):
                result = tuple(convert_loop(self, self._for_body(), node, inputs, name))
            elif convert := find(domain, node.op_type):
                result = convert(self.bb, inputs, attributes(node), context)
            elif node.op_type in STOCK_DOMAINS.get(domain, ()):
                result = self._convert_stock(node, name, inputs, self._parse_attr(node.attribute))
            else:
                raise context.unsupported("it has no converter", ADD_A_CONVERTER)
            results = self._results(node, result)  # binding them infers their types, which can fail too
            return [None if r is None else self._emit(r, binding) for r in results]
        except ModelError:
            raise
        except Exception as error:  # foreign code on foreign input: whatever it says is the reason
            if unknown := open_size(node, inputs):
                raise context.unsupported(unknown, CUT_BEFORE_SELECTION) from error
            if isinstance(error, OpenSize):
                raise context.unsupported(str(error), self._bind(node)) from error
            if any(is_open(shape_of(i) or ()) for i in inputs if isinstance(i, relax.Expr)):
                what = "it needs numbers for its sizes, and some are open"
                raise context.unsupported(what, self._bind(node)) from error
            told = last_line(error).rstrip(".")[:300]
            raise context.unsupported(f"{type(error).__name__}: {told}") from error

    def _for_body(self) -> Importer:
        """An importer of the body of a loop, which knows what this one knows of open sizes."""
        inner = Importer(self.header, self.trial, self.dynamic)
        inner.open = replace(inner.open, caches=())
        return inner

    def _read_types(self, graph: onnx.GraphProto) -> None:
        """Learn what a graph says of its tensors; of sizes that are equal, one name."""
        same, given = self.open.equal(), {value.name for value in graph.input}
        for value in [*graph.input, *graph.value_info, *graph.output]:
            if (shape := open_shape(value.type)) is not None:
                if value.name not in given:
                    shape = tuple(same.get(size, size) for size in shape)
                self.types[value.name] = (dtype_name(value.type.tensor_type.elem_type), shape)

    def _bind(self, node: onnx.NodeProto) -> str:
        """How to bind the open sizes of a node's inputs."""
        shapes = [self.types[i][1] for i in node.input if i in self.types]
        names = sorted(set().union(*map(symbols_of, shapes))) or ["NAME"]
        if any(name in self.open.decided for name in names):
            return CUT_BEFORE_SELECTION
        each = " ".join(f"--shape {name}:NUMBER" for name in names)
        return f"bind the size: {each}" if len(names) == 1 else f"bind the sizes, or some of them: {each}"

    def _data(self, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
        """The inputs, with sizes that the operator reads as data in tensors; what only says a shape stays an array."""
        slots = COMPILE_TIME.get((normal_domain(node.domain), node.op_type), ())
        made = []
        for index, (name, value) in enumerate(zip(node.input, inputs, strict=True)):
            if isinstance(value, np.ndarray) and index not in slots:
                value = shape_as_data(Build(self.bb, name), value, self.types[name][0])
            made.append(value)
        return Inputs(made)

    def _known_sizes(self, value: Any, output: str, binding: str) -> Any:
        """The value with the sizes that the walk found, where TVM's own inference has others or none.

        Raises:
            UnsupportedOp: neither has any: nothing could be compiled for it.
        """
        known = self.types.get(output)
        tensor = isinstance(value, relax.Var) and isinstance(value.ty, relax.TensorType)
        if tensor and not isinstance(value.ty.shape, relax.ShapeExpr) and not self.dynamic:
            if known is None:
                what = f"The shape of '{output}' is not known."
            else:  # no kernel is written for a size that is 1 in one run and not in others
                what = f"The shape of '{output}' is not certain: values decide whether sizes of its inputs agree."
            raise UnsupportedOp(what, where=f"node '{binding}'", fix=CUT_BEFORE_SELECTION)
        if known is None or not is_open(known[1]) or not isinstance(value, relax.Var):
            return value
        if not isinstance(value.ty, relax.TensorType) or shape_of(value) == known[1]:
            return value
        if shape_of(value) is None:
            var = self.bb.match_cast(value, relax.TensorType(shape_to_tvm(known[1]), str(value.ty.dtype)), binding)
        else:  # a view; CanonicalizeBindings crashes on a match_cast of one known shape to another
            var = self.bb.emit(relax.op.reshape(value, shape_to_tvm(known[1])), binding)
        self._roots[var] = binding
        return var

    def _elem_type(self, name: str) -> int:
        """The ONNX element type of a value, 0 where unknown."""
        return elem_type_of(self.types[name][0]) if name in self.types else 0

    def _convert_subgraph_inline(self, graph: onnx.GraphProto, values: Any, names: Names) -> list[Any]:
        """The outputs of a body whose inputs are `values`, its nodes emitted here."""
        outer = dict(self._nodes)
        try:
            self._nodes.update(zip((v.name for v in graph.input), values, strict=True))
            self._parse_graph_initializers(graph)
            self._convert_nodes(graph, names)
            return [self._nodes[o.name] for o in graph.output]
        finally:
            self._nodes = outer

    def _convert_stock(self, node: onnx.NodeProto, name: str, inputs: Any, attrs: dict[str, Any]) -> Any:
        """TVM's converter for `node`, quiet, with inputs and attributes in its own conventions."""
        stock_attrs = {k: _stock_attribute(v) for k, v in attrs.items()}
        stock_attrs["tvm_custom"] = {"name": name, "num_outputs": len(node.output)}
        opset = self.opsets.get("", 1)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return self._convert_operator(node.op_type, stock.onnx_input(inputs), stock_attrs, opset)

    def _results(self, node: onnx.NodeProto, result: Any) -> list[Any]:
        """One expression an output."""
        if isinstance(result, tuple | list):
            return list(result)
        if node.op_type in KEEPS_TUPLE:
            return [result]
        if isinstance(result, relax.Tuple):
            return list(result.fields)
        result = self.bb.normalize(result)
        if isinstance(result.ty, relax.TupleType):
            whole = result if isinstance(result, relax.Var) else self.bb.emit(result)
            return [relax.TupleGetItem(whole, i) for i in range(len(result.ty.fields))]
        return [result]

    def _emit(self, expr: Any, name: str) -> Any:
        """Bind `expr` to a variable of that name; constants stay constants, shapes become them."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._emit(field, name) for field in expr.fields])
        if not isinstance(expr, tvm.ir.Expr):
            return expr  # TVM's mark of an empty optional, which only Optional... operators look at
        expr = self.bb.normalize(expr)
        if isinstance(expr, relax.ShapeExpr):
            dims = list(expr.values)
            if all(isinstance(d, tvm.tirx.IntImm) for d in dims):
                return relax.const(np.array([int(d) for d in dims]), "int64")
            expr = relax.op.shape_to_tensor(expr)
        elif isinstance(expr, tvm.tirx.IntImm | tvm.tirx.FloatImm):
            return relax.const(expr.value, str(expr.ty))
        elif isinstance(expr, tvm.ir.GenericConst):
            return expr
        elif isinstance(expr, relax.Var):
            if expr not in self._roots and expr not in self._inputs.values():
                self._roots[expr] = name
            return expr
        var = self.bb.emit(expr, name)
        self._roots[var] = name
        return var

    def _convert_if(self, node: onnx.NodeProto, inputs: Inputs, names: Names) -> list[Any]:
        """If: each branch is a scope of its own; what it emits is computed only when it is taken."""
        attrs = {a.name: a.g for a in node.attribute}
        condition = inputs[0]
        if len(condition.ty.shape):
            condition = self.bb.emit(relax.op.reshape(condition, ()))
        then, other = (self._convert_branch(attrs[k], names) for k in ("then_branch", "else_branch"))
        result = self.bb.emit(relax.If(condition, then, other))
        if not self.dynamic:
            _one_shape(node, then.body.ty, other.body.ty, self._deciding(node))
        if len(node.output) == 1:
            return [result]
        return [relax.TupleGetItem(result, i) for i in range(len(node.output))]

    def _deciding(self, node: onnx.NodeProto) -> str:
        """What on the command line binds the inputs that decide which branch is taken."""
        names = inputs_behind(self._graph.node, self._graph.input, node.input[0])
        return " ".join(f"--value {name}=NUMBER" for name in names or ["NAME"])

    def _convert_branch(self, graph: onnx.GraphProto, names: Names) -> Any:
        outer = dict(self._nodes)
        self._read_types(graph)
        self.bb._begin_binding_block()
        try:
            self._parse_graph_initializers(graph)
            self._convert_nodes(graph, names)
            values = [self._nodes[o.name] for o in graph.output]
            result = values[0] if len(values) == 1 else relax.Tuple(values)
            if not isinstance(result, relax.Var):
                result = self.bb.emit(result)
        finally:
            self._nodes = outer
            block = self.bb._end_block()
        return relax.SeqExpr([block], result)


def _constant(array: Any) -> Any:
    """A constant of the array's own dtype (relax.const would narrow int64 to int32)."""
    array = pack(array)
    return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape)))


def _unread(tensor: onnx.TensorProto) -> Any:
    """A large float weight with its memory left untouched, None for any other tensor: enough for a trial."""
    if tensor.data_type not in (tensor.FLOAT, tensor.FLOAT16) or count(tensor.dims) < UNREAD_ELEMENTS:
        return None
    return relax.const(tvm.runtime.empty(tuple(tensor.dims), dtype_name(tensor.data_type)))


def _stock_attribute(value: Any) -> Any:
    """An attribute as TVM's converters want it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if not isinstance(value, bytes) and hasattr(value, "__iter__"):
        return tuple(_stock_attribute(v) for v in value)
    return value


def to_relax(model: onnx.ModelProto, trial: bool = False, dynamic: bool = False) -> Imported:
    """The Relax module of a prepared model (functions inlined). Its `main` has the variables of open sizes in its
    parameters' shapes, and as attributes their upper bounds (:data:`UPPER_BOUNDS`) and named sizes
    (`NAMED_SIZES`).

    Args:
        model: what :func:`tvmopt.importer.prepare` gives.
        trial: leave the values of large weights out: the module has the right form, for a try at low cost.
        dynamic: let outputs be sequences (nested tuples), and tensors whose size only a run tells.

    Raises:
        UnsupportedOp: nodes that no converter takes; all of them that can be found in one go.
        ModelError: the model is not what :func:`tvmopt.importer.prepare` gives.
    """
    importer = Importer(model, trial, dynamic)
    try:
        module, nodes = importer.convert_graph(model.graph)
    except TvmoptError:
        raise
    except KeyError as error:
        raise ModelError(
            f"Tensor {error} is read but no node computes it.", fix="repair the model, or export it again"
        ) from error
    initial = {t.name for t in model.graph.initializer}
    return Imported(
        module=module,
        inputs=tuple(
            TensorSpec(v.name, importer.types[v.name][1], importer.types[v.name][0])
            for v in model.graph.input
            if v.name not in initial
        ),
        outputs=_output_specs(model.graph, module, dynamic, {*importer.open.ranges, *importer.open.decided}),
        model=model,
        nodes=nodes,
        ranges=importer.open.ranges,
        conditions=importer.open.conditions,
        decoder=decoder.find((v for v in model.graph.input if v.name not in initial), model.graph.output),
    )


def _one_shape(node: onnx.NodeProto, then: Any, other: Any, values: str) -> None:
    """Refuse branches of an If whose results have different shapes."""
    pairs = zip(*(getattr(kind, "fields", None) or [kind] for kind in (then, other)), strict=True)
    for output, (one, two) in zip(node.output, pairs, strict=False):
        if all(isinstance(kind, relax.TensorType) for kind in (one, two)) and sizes_of(one) != sizes_of(two):
            told = " and ".join(f"{kind.dtype}{list(sizes_of(kind) or ())}" for kind in (one, two))
            raise UnsupportedOp(
                f"If cannot be imported: a run decides it, and its branches give '{output}' as {told}.",
                where=f"node '{node_name(node)}'",
                fix=f"if one branch is never taken, bind the inputs that decide: {values}",
            )


def _output_specs(graph: onnx.GraphProto, module: Any, dynamic: bool, taken: Collection[str]) -> tuple[TensorSpec, ...]:
    """Names from ONNX, shapes and dtypes from what was built; a size that only a run tells is a symbol (`FOUND`) that
    is not `taken`, with `dynamic` -1."""
    fields = module["main"].body.body.ty.fields  # the function's own type names no size that values decide
    found: dict[Any, Size] = {}
    specs = []
    for value, field in zip(graph.output, fields, strict=True):
        if not isinstance(field, relax.TensorType):
            specs.append(TensorSpec(value.name, (len(field.fields),), "sequence"))
            continue
        shape = sizes_of(field)
        if shape is None:
            if not isinstance(field.shape, relax.ShapeExpr) and not dynamic:
                raise ModelError(
                    f"The size of output '{value.name}' is decided by values, at run time, and so is its rank.",
                    where=f"output '{value.name}'" + selected_by(graph, value.name),
                    fix="cut the model before the node with a data-dependent size",
                )
            shape = (-1,) * field.ndim
        if not dynamic and isinstance(field.shape, relax.ShapeExpr):
            shape = tuple(_found(d, found, taken) for d in field.shape.values)
        declared, dtype = dtype_name(value.type.tensor_type.elem_type or 1), str(field.dtype)
        specs.append(TensorSpec(value.name, shape, declared if storage_dtype(declared) != declared else dtype))
    return tuple(specs)


def _found(size: Any, found: dict[Any, Size], taken: Collection[str]) -> Size:
    """A size in TVM's words, what values decide as a symbol of its own: `found7` for ``min(300, found6)``, too."""
    try:
        known = from_tvm(size)
        if not isinstance(known, Dim) or known.is_symbol or not any(map(is_found, known.symbols() & set(taken))):
            return known
        key: Any = str(known)
    except ValueError:
        key = size if isinstance(size, tvm.tirx.Var) else str(size)
    if key not in found:
        free = (name for i in count_from(0) if (name := f"{FOUND}{i}") not in taken)
        found[key] = Dim.symbol(next(name for name in free if Dim.symbol(name) not in found.values()))
    return found[key]
