"""Shapes inferred and constants folded, node by node, in one walk: a graph becomes as static as its inputs.

Exported transformers compute their shapes at run time (Shape, Gather, Concat, Reshape ...). Walking the graph
in order, each node is one of three:

* a node whose inputs are all constants is replaced by its value;
* a node that stands for others - a function, an If with a known condition, a Loop with a known trip count, a
  Scan - is replaced by them, and the walk goes on with the first of these;
* any other node stays, and ONNX infers the types of its outputs from the types *and values* of its inputs,
  which is what makes ``Reshape(x, Concat(...))`` static once the Concat is a constant.

So every Shape of a static tensor becomes a constant, and with it everything computed from shapes. Where sizes are
open, the same arithmetic runs on symbols (`open_values.py`), and `open_shapes` says the shapes that ONNX's
inference leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from tvmopt.dims import interval, is_open, parse
from tvmopt.errors import ModelError, UnsupportedOp, last_line
from tvmopt.importer import blocked, contrib, control, fractions, own, places, rules, sequences
from tvmopt.importer.contrib_schemas import DOMAIN as CONTRIB
from tvmopt.importer.evaluate import evaluate, foldable
from tvmopt.importer.fit import misfit
from tvmopt.importer.inline import expand_function, schema_function
from tvmopt.importer.open_shapes import (
    agree,
    classic_types,
    contrib_types,
    grouped_attention,
    open_types,
    own_types,
    packed_rows,
    selected_types,
)
from tvmopt.importer.open_values import evaluate as evaluate_open
from tvmopt.importer.protos import (
    MOST_ELEMENTS,
    attributes,
    byte_size,
    count,
    describe_type,
    human,
    make_type,
    node_name,
    node_reads,
    normal_domain,
    operator,
    static_shape,
    to_tensor,
    words,
)
from tvmopt.importer.schemas import described, schema_of
from tvmopt.importer.symbols import Undecided
from tvmopt.importer.walk import DATA_BYTES, Walk
from tvmopt.importer.windows import POOLS, windows

SAME_AS_FIRST = frozenset(
    {"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SimplifiedLayerNormalization"}
    | {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RotaryEmbedding"}
)
"""Operators without a schema in onnx (com.microsoft) whose first output has the type of the first input."""

NO_INFERENCE = frozenset({"MeanVarianceNormalization", "GroupNormalization"})
"""Operators of ai.onnx whose result has the type of their first input, which onnx does not infer."""

MOST_AXES = 64
LARGE_NUMBER = re.compile(r"\d{10}")
"""In the text of an open size: a multiple that may be beyond what is supported."""
PRODUCTS = frozenset({"MatMulNBits", "MatMulBnb4"})
"""Operators without a schema in onnx whose result has the rows of the first input, and as many columns as `N` says."""


HANDLERS = (
    rules.HANDLERS, control.HANDLERS, contrib.HANDLERS, blocked.HANDLERS, places.HANDLERS, sequences.HANDLERS,
)  # fmt: skip
"""The rules that expand nodes, by domain and operator: the first that has one decides."""


class Folder(Walk):
    """The walk over one model; its results are :attr:`nodes`, :attr:`constants` and :attr:`types`."""

    def run(self) -> None:
        """Look at the inputs, then walk all nodes of the graph."""
        for value in self.model.graph.input:
            self._check_size(f"input '{value.name}'", {value.name: value.type})
        super().run()

    def _one(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Fold, keep or expand one node; what it expands to is still to be processed."""
        key = (normal_domain(node.domain), node.op_type)
        if key in self.functions:
            return self._expand(node, self.functions[key])
        if (key in control.HANDLERS or key in places.HANDLERS) and (reason := self._misfit(node)):
            raise self._contradiction(node, reason)
        handler = next((table[key] for table in HANDLERS if key in table), None)
        expansion = handler(self, node) if handler else None
        if expansion is not None:
            return expansion
        return self.infer_and_emit(node)

    def infer_and_emit(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Infer types; fold the node, or expand it by its definition, or keep it."""
        key = (normal_domain(node.domain), node.op_type)
        self._settle(node, lambda: agree(self, node))
        types, contradiction = self._infer(node)
        if self._open_value(node, types):
            return []
        self._settle(node, lambda: self._open_types(node, types))
        disagreement = self._disagreement(node, types)
        if disagreement:
            self.problems.append(disagreement)
        elif self._empty(node, types) or self._fold(node, types):
            return []
        elif empty := self._empty_beside_open(node, types):
            return empty
        elif contradiction:
            self.problems.append(contradiction)
        if not self.has_converter(*key):
            inputs = [self.types.get(i) if i else onnx.TypeProto() for i in node.input]
            function = schema_function(node, self.opsets.get(key[0], 1), inputs)
            if function is not None:
                return self._expand(node, function, standard=True)
        self._check_size(f"node '{node_name(node)}' ({operator(node)})", types)
        self.types.update(types)
        self.emit(node)
        return []

    def _expand(
        self, node: onnx.NodeProto, function: onnx.FunctionProto, standard: bool = False
    ) -> list[onnx.NodeProto]:
        nodes, pairs = expand_function(node, function, self.fresh)
        for entry in function.opset_import:
            domain = normal_domain(entry.domain)
            ours = self.opsets.setdefault(domain, entry.version)
            if not standard and ours != entry.version:
                self._require_same(function, domain, ours, entry.version)
        copies = [helper.make_node("Identity", [source], [name], name=f"{name}/Identity") for name, source in pairs]
        return nodes + copies

    def _require_same(self, function: onnx.FunctionProto, domain: str, ours: int, theirs: int) -> None:
        """A function body of another opset is fine as long as its operators did not change in between."""
        for node in function.node:
            if normal_domain(node.domain) != domain:
                continue
            try:
                since = {onnx.defs.get_schema(node.op_type, v, domain).since_version for v in (ours, theirs)}
            except (onnx.defs.SchemaError, TypeError):
                continue
            if len(since) > 1 and node.op_type in CHANGED:
                text = f"Function '{function.name}' uses {node.op_type} of opset {theirs}, the model {ours}."
                self.problems.append(
                    ModelError(
                        text,
                        where=f"function '{function.name}', node '{node_name(node)}'",
                        fix="export the model and its functions with one opset",
                    )
                )

    def _infer(self, node: onnx.NodeProto) -> tuple[dict[str, onnx.TypeProto], ModelError | None]:
        """Types of the node's outputs, as far as they can be known, and why the node cannot be."""
        schema = self._schema(node)
        if schema is None:
            return self._declared(node), None
        known = {name: self.types[name] for name in node_reads(node) if name in self.types}
        if any(i and i not in known for i in node.input):
            return {}, None
        imports = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        try:
            types: dict[str, onnx.TypeProto] = shape_inference.infer_node_outputs(
                schema, _in_full(node), known, self._data(node), opset_imports=imports, ir_version=8
            )
            self._windowed(node, types)
            self._one_number(node, types)
            if not node.domain and node.op_type in NO_INFERENCE:
                types[node.output[0]] = known[node.input[0]]
            return types, None
        except Exception as error:
            return {}, self._contradiction(node, last_line(error))

    def _open_value(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> bool:
        """Compute a node whose inputs are open sizes and constants; says whether it did."""
        names = [i for i in node.input if i]
        open_ = any(i in self.open_values or i in self.fractions for i in names)
        if not open_ or len(node.output) != 1 or node.output[0] not in types:
            return False
        args = [self.fractions.get(i, self.sizes(i)) for i in names]
        known = [a for a in args if a is not None]
        elem_type = types[node.output[0]].tensor_type.elem_type
        if len(known) != len(args):
            return False
        shares = any(i in self.fractions for i in names)
        array = None if shares else evaluate_open(node, known, elem_type, self.symbols)
        if array is None:
            array = fractions.evaluate(node, known, elem_type, self.symbols)
        if array is None:
            return False
        parts = any(isinstance(number, fractions.Part) for number in array.ravel())
        if parts or (elem_type == TensorProto.BOOL and is_open(array.ravel())):
            self.set_fraction(node, array, elem_type)
        else:
            self.set_open_value(node, array, elem_type)
        return True

    def _settle(self, node: onnx.NodeProto, step: Callable[[], str | None]) -> None:
        """A step that says of open sizes what a node asks of them; it gives what contradicts that, if anything."""
        try:
            if text := step():
                self.problems.append(self._contradiction(node, text))
        except Undecided as error:
            self.problems.append(
                UnsupportedOp(
                    f"{operator(node)} cannot be imported: {error}.",
                    where=f"node '{node_name(node)}'",
                    fix=error.fix,
                )
            )

    def _open_types(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> str | None:
        """Complete the inferred types by what is known of open sizes, in place; what contradicts that, if anything."""
        selected_types(self, node, types)
        for name, shape in zip(node.output, open_types(self, node, types), strict=False):
            if name in types and shape is not None:
                if any(isinstance(size, int) and abs(size) > MOST_ELEMENTS for size in shape):
                    return self._misfit(node) or f"output '{name}' would be [{', '.join(map(str, shape))}]"
                types[name] = make_type(types[name].tensor_type.elem_type, shape)
        if normal_domain(node.domain) == "ai.onnx.ml":
            types.update(classic_types(self, node))
        return None

    def _disagreement(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> ModelError | None:
        """What ONNX's shape functions let pass: negative sizes, and inputs that do not belong together."""
        if reason := self._misfit(node):
            return self._contradiction(node, reason)
        for name, kind in types.items():
            if any(d.dim_value < 0 for d in kind.tensor_type.shape.dim):
                return self._contradiction(node, f"output '{name}' would be {describe_type(kind)}")
        return None

    def _misfit(self, node: onnx.NodeProto) -> str:
        """Why the node contradicts its inputs, or the empty string."""
        domain = normal_domain(node.domain)
        return misfit(self, node, described(node.op_type, domain, self.opsets.get(domain, 1)))

    def _schema(self, node: onnx.NodeProto) -> Any:
        """The operator's schema at the model's opset, or its first one; None where ONNX has none."""
        domain = normal_domain(node.domain)
        return schema_of(node.op_type, domain, self.opsets.get(domain, 1))

    def _windowed(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
        """Correct the shape of a pooling: ONNX's inference counts windows of the older opsets that start in the
        padding behind the image, which no runtime computes."""
        if node.op_type not in POOLS or normal_domain(node.domain):
            return
        given, shape = attributes(node), self.shape(node.input[0])
        kernel = given.get("kernel_shape", ())
        if shape is None or len(shape) != len(kernel) + 2:
            return
        lengths = {"strides": len(kernel), "dilations": len(kernel), "pads": 2 * len(kernel)}
        if any(len(given[k]) not in (0, n) for k, n in lengths.items() if k in given):
            return
        out = [*shape[:2], *windows(given, shape[2:], kernel).out]
        for name in (o for o in node.output if o in types):
            if min(out) >= 0:
                types[name] = helper.make_tensor_type_proto(types[name].tensor_type.elem_type, out)

    def _one_number(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
        """Complete the type of a GatherND that gives one number, which ONNX's inference leaves without a rank."""
        if node.op_type != "GatherND" or normal_domain(node.domain) or node.output[0] not in types:
            return
        kind = types[node.output[0]].tensor_type
        data, position = (self.open_shape(name) for name in node.input)
        if not kind.HasField("shape") and data is not None and position == (len(data),):
            types[node.output[0]] = make_type(kind.elem_type, ())

    def _data(self, node: onnx.NodeProto) -> dict[str, TensorProto]:
        """Values of the small constant inputs."""
        data = {}
        for name in node.input:
            kind = self.types.get(name)
            if not name or kind is None or not self.is_constant(name):
                continue
            shape = static_shape(kind)
            if shape is not None and byte_size(kind.tensor_type.elem_type, count(shape)) <= DATA_BYTES:
                array = self.array(name)
                if array is not None:
                    data[name] = to_tensor(array, name)
        return data

    def _declared(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """Types of an operator without a schema: as the model declares them, or like its first input."""
        types = {o: self.declared[o] for o in node.output if o in self.declared}
        if node.op_type in SAME_AS_FIRST and node.input and node.input[0] in self.types:
            types[node.output[0]] = self.types[node.input[0]]
            if node.op_type.startswith("Skip") and len(node.output) > 3 and node.output[3]:  # the sum
                types[node.output[3]] = self.types[node.input[0]]
        shape = self.open_shape(node.input[0]) if node.op_type in PRODUCTS and node.input else None
        if shape:
            elem = self.types[node.input[0]].tensor_type.elem_type
            columns = int(attributes(node).get("N", 0))
            types[node.output[0]] = make_type(elem, (*shape[:-1], columns))
        if node.op_type == "GroupQueryAttention":
            types |= grouped_attention(self, node)
        if node.op_type == "GatherBlockQuantized":
            types |= packed_rows(self, node)
        if normal_domain(node.domain) == CONTRIB:
            types |= contrib_types(self, node)
        if normal_domain(node.domain) == own.DOMAIN and node.op_type in own.INPUTS:
            types |= own_types(self, node)
        return types

    def _contradiction(self, node: onnx.NodeProto, reason: str) -> ModelError:
        inputs = ", ".join(f"'{i}' {describe_type(self.types[i])}" for i in node.input if i in self.types)
        return ModelError(
            f"{operator(node)} does not fit its inputs: {reason.rstrip('.')}.",
            where=f"node '{node_name(node)}', inputs {inputs or 'none'}",
            fix="if you gave --shape, check it; else the model contradicts itself",
        )

    def _empty(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> bool:
        """Replace a node whose outputs have no elements by constants: kernels dislike nothing to do."""
        names = [o for o in node.output if o]
        kinds = [types.get(o) for o in names]
        shapes = [static_shape(k) for k in kinds]
        if not names or any(s is None or count(s) or k is None for s, k in zip(shapes, kinds, strict=True)):
            return False
        for name, kind, shape in zip(names, kinds, shapes, strict=True):
            assert kind is not None and shape is not None
            dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
            try:
                self.set_constant(name, np.zeros(shape, dtype))
            except ValueError:  # of no elements, and yet with an axis longer than any memory
                raise self._contradiction(node, f"the shape of '{name}' would be {list(shape)}") from None
        return True

    def _empty_beside_open(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> list[onnx.NodeProto]:
        """The same beside open sizes that inputs have: nodes that make the output; none where it has elements."""
        names = [o for o in node.output if o]
        kind = types.get(names[0]) if len(names) == 1 else None
        shape = self.shape_of_type(kind)
        if kind is None or shape is None or 0 not in shape or node.op_type == "ConstantOfShape":
            return []
        alike = [i for i in node.input if i and self.types.get(i) == kind]
        if alike:
            return [helper.make_node("Identity", alike[:1], names, name=node_name(node))]
        given = [(i, axis, size) for i in node.input if i for axis, size in enumerate(self.open_shape(i) or ())]
        nodes, sizes = [], []

        def make(op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
            output = output or self.fresh(f"{node_name(node)}/{op}")
            nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
            return output

        for size in shape:
            number = self.fresh(f"{node_name(node)}/number")
            if isinstance(size, int):
                self.set_constant(number, np.array([size]))
                sizes.append(number)
                continue
            place = next(((i, axis) for i, axis, other in given if other == size), None)
            if place is None:
                return []
            self.set_constant(number, np.array([place[1]]))
            sizes.append(make("Gather", [make("Shape", [place[0]]), number], axis=0))
        nothing = helper.make_tensor("value", kind.tensor_type.elem_type, [1], [0])
        make("ConstantOfShape", [make("Concat", sizes, axis=0)], names[0], value=nothing)
        return nodes

    def _fold(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> bool:
        """Replace a node of constant inputs by its value; says whether it did."""
        names = [i for i in node.input if i]
        if not all(self.is_constant(i) for i in names):
            return False
        shapes = [static_shape(types.get(o)) for o in node.output if o]
        elements = None if any(s is None for s in shapes) else sum(count(s) for s in shapes if s is not None)
        size = sum(
            byte_size(types[o].tensor_type.elem_type, count(s))
            for o, s in zip((o for o in node.output if o), shapes, strict=True)
            if s is not None
        )
        if size > self.budget:
            return False
        arrays = {i: self.array(i) for i in names}
        inputs = {k: v for k, v in arrays.items() if v is not None}
        if not foldable(node, inputs, elements):
            return False
        expected = {
            o: (t.tensor_type.elem_type, static_shape(t)) for o, t in types.items() if t.HasField("tensor_type")
        }
        values = evaluate(node, inputs, self.opsets.get("", 1), expected)
        if values is None:
            return False
        for name, array in values.items():
            self.set_constant(name, array)
        self.budget -= max(0, size - sum(a.nbytes for a in inputs.values()))
        return True

    def _check_size(self, where: str, types: dict[str, onnx.TypeProto]) -> None:
        """A tensor above all free memory is a lie of the file, or needs another machine; open sizes count as 1, but for
        large multiples of them. An axis that 32 bits do not count is refused, however much memory there is: what TVM
        makes of indices may have them."""
        for name, kind in types.items():
            shape = static_shape(kind)
            tensor = kind.tensor_type
            least = shape if shape is not None else [self._least(d) for d in tensor.shape.dim]
            size = byte_size(tensor.elem_type, count(least))
            if len(least) > MOST_AXES:
                text = f"Tensor '{name}' has {len(least)} dimensions; {MOST_AXES} are the most that NumPy has."
                self.problems.append(ModelError(text, where=where, fix="export a model whose tensors have fewer"))
            elif size > self.memory:
                at = "" if shape is not None else " at least"
                self.problems.append(
                    ModelError(
                        f"Tensor '{name}' would take{at} {human(size)}; {human(self.memory)} of memory are free.",
                        where=f"{where}, {describe_type(kind)}",
                        fix="bind smaller shapes, or use a machine with more memory",
                    )
                )
            elif max(least, default=0) > MOST_ELEMENTS:
                self.problems.append(
                    ModelError(
                        f"An axis of tensor '{name}' has {max(least)} elements; at most {MOST_ELEMENTS} are supported.",
                        where=f"{where}, {describe_type(kind)}",
                        fix="bind smaller shapes, or split the axis in two",
                    )
                )

    def _least(self, dim: onnx.TensorShapeProto.Dimension) -> int:
        """How many elements an axis has at least; an open size counts as 1 where it has no number of ten digits."""
        if dim.dim_value > 0 or not LARGE_NUMBER.search(dim.dim_param) or dim.dim_param.startswith("unk__"):
            return max(int(dim.dim_value), 1)
        low: float = interval(parse(dim.dim_param), self.symbols.known())[0]
        return max(1, int(min(low, 1 << 62)))


def _in_full(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with the default that ONNX's inference forgets: an STFT is one-sided unless it says otherwise."""
    if node.op_type != "STFT" or normal_domain(node.domain) or "onesided" in attributes(node):
        return node
    full = onnx.NodeProto()
    full.CopyFrom(node)
    full.attribute.append(helper.make_attribute("onesided", 1))
    return full


CHANGED = words(
    """Attention BatchNormalization Clip Dropout GroupNormalization Hardmax LogSoftmax Pad ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Resize
    Slice Softmax Split Squeeze TopK Unsqueeze Upsample"""
)
"""Operators whose form (not only their types) changed between opsets that are in use."""
