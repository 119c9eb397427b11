"""An ONNX model evaluated in double precision, node by node - the numbers that every engine is measured against.

Real numbers (float16, bfloat16, float32) are float64 from the first initializer to the last output: a cast between them
rounds nothing. Integers, booleans and quantised values are exact, with the wrap-around of their type. A result beyond
the largest number of its declared type is infinite, as it is in an engine.

    own            products, convolutions, pools, norms, recurrences, attention, data movement, quantisation
    function       an operator whose schema has a body: that body
    reference      everything else: onnx.reference's implementation, given float64
    onnxruntime    where that fails: one node in the types of the model; `notes` say so

The same evaluator runs in float32, or with operands rounded to 16 bits (:class:`Arithmetic`): a sample of what rounding
does to the model.

Large weights are in the working type while a node reads them: all at once would be several times the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.attention import KEEPERS
from tvmopt.analysis.oracle.fallback import CONTROL, Fallback, function_body
from tvmopt.analysis.oracle.table import KINDS, OPERATORS
from tvmopt.analysis.oracle.values import (
    EXACT,
    KEPT,
    Arithmetic,
    Array,
    Call,
    Unfit,
    Unsupported,
    Value,
    is_real,
    limit,
    widened,
)
from tvmopt.importer.external import LARGE, array_of
from tvmopt.importer.load import load
from tvmopt.importer.protos import count
from tvmopt.importer.structure import sort_graphs
from tvmopt.operators.stored import as_stored

HELD = 1 << 26
"""Bytes of large weights that are held in the working type: a loop's body reads the same ones again."""
MOST_STEPS = 1 << 18
"""Nodes of bodies of loops, of all trips of a run: some seconds. A trip count that inputs decide may be 2^63."""

Observe = Callable[[str, Value], "Value | None"]
"""Sees each tensor as it is made; what it returns instead takes its place."""


class Oracle:
    """One model, ready to be evaluated again and again.

    Args:
        model: an ONNX model or its file.
        arithmetic: double precision, unless rounding is to be sampled.

    Attributes:
        inputs, outputs: names, in order.
        notes: operators that were not evaluated in double precision.
    """

    def __init__(self, model: Any, arithmetic: Arithmetic = EXACT) -> None:
        from tvmopt.importer.own import expanded

        if isinstance(model, (str, Path)):
            model = load(model, mapped=True)
        if model.functions:
            model = expanded(model)
        model = sort_graphs(model)  # a file may have its nodes in any order
        self.arithmetic = arithmetic
        self.opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self.ir_version = model.ir_version
        self.graph = model.graph
        self.large = {t.name: t for t in self.graph.initializer if _is_large(t)}
        self.constants = {t.name: self._constant(t) for t in self.graph.initializer if t.name not in self.large}
        self.constants |= {t.values.name: self._sparse(t) for t in self.graph.sparse_initializer}
        stored = {*self.large, *self.constants}
        self.inputs = [v.name for v in self.graph.input if v.name not in stored]
        self.outputs = [v.name for v in self.graph.output]
        self.notes: list[str] = []
        self._known: Mapping[str, Value] = {}  # of the run
        self._last: dict[str, Value] = {}  # of the large constants, the latest at the end
        self._kinds = {v.name: v.type.tensor_type.elem_type for v in self.graph.input}
        self._attributes: dict[int, tuple[Any, dict[str, Any]]] = {}  # with the node, so that its id stays its own
        self._bodies: dict[int, tuple[Any, Any]] = {}
        self._fallback = Fallback(self.opsets, model.ir_version, self.notes)
        self.place = ""
        """Which body is evaluated, for which time: the numbers of the subgraphs that were entered on the way there."""
        self._entered: Counter[str] = Counter()
        self._steps = 0  # nodes of bodies that the run has evaluated

    def run(
        self, feeds: Mapping[str, Any], outputs: Iterable[str] | None = None, observe: Observe | None = None,
        known: Mapping[str, Value] | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Outputs by name: float64 for every real type, the declared type for all others.

        Args:
            outputs: names of tensors, also inner ones; default: the model's outputs.
            observe: sees, and may replace, each tensor of the main graph.
            known: what these tensors are for all that read them, the caches of attention among them; only what
                `outputs` then need is computed.

        Raises:
            Unsupported: an operator has no definition here, nor in onnx.reference, nor in onnxruntime; or loops make
                more trips than anybody waits for.
        """
        wanted = list(outputs if outputs is not None else self.outputs)
        self.place = ""
        self._entered.clear()
        self._steps = 0
        scope = dict(self.constants)
        for name in {*self.inputs, *self._kinds} & feeds.keys():
            scope[name] = self.value(feeds[name])
        nodes = self.graph.node
        if known is not None:
            nodes = self.needed(wanted, known)
            used = {*wanted, *(n for node in nodes for n in (*node.output, *reads(node)))}
            known = {n: v for n, v in known.items() if n in used}  # others need not be widened
        self._known = {n: Value(widened(v.array, self.arithmetic.work), v.kind) for n, v in (known or {}).items()}
        scope |= self._known
        with np.errstate(all="ignore"):
            self._run_nodes(nodes, scope, self._last_uses(nodes, wanted), observe, known or {})
        missing = [n for n in wanted if n not in scope and n not in self.large]
        if missing:
            raise Unsupported(f"the model computes no tensor {missing[0]!r}")
        return {n: self._read(n, scope).array for n in wanted}

    def value(self, array: Any) -> Value:
        """An array of the outside, in the numbers at work."""
        if isinstance(array, (list, tuple)) or array is None:
            return Value(array, np.dtype(object))
        array = np.asarray(array)
        return Value(widened(array, self.arithmetic.work), array.dtype)

    # -- graphs ------------------------------------------------------------------------------------------

    def needed(self, wanted: Iterable[str], known: Collection[str]) -> list[Any]:
        """The nodes that compute these tensors from those that are known."""
        need, kept = set(wanted), []
        for node in reversed(self.graph.node):
            if need & set(node.output):
                kept.append(node)
                need.update(n for n in reads(node) if n not in known)
        return kept[::-1]

    def _last_uses(self, nodes: Iterable[Any], wanted: Iterable[str]) -> dict[int, list[str]]:
        """Index of a node -> tensors that nothing behind it reads."""
        last: dict[str, int] = {}
        for index, node in enumerate(nodes):
            last.update(dict.fromkeys([*node.output, *reads(node)], index))
        keep = {*wanted, *self.constants}
        found: dict[int, list[str]] = {}
        for name, index in last.items():
            if name and name not in keep:
                found.setdefault(index, []).append(name)
        return found

    def _run_nodes(
        self, nodes: Any, scope: dict[str, Value], dead: Mapping[int, list[str]], observe: Observe | None = None,
        known: Collection[str] = (),
    ) -> None:  # fmt: skip
        for index, node in enumerate(nodes):
            for name, value in zip(node.output, self._run_node(node, scope), strict=False):
                if not name or value is None:
                    continue
                replaced = observe(name, value) if observe is not None else None
                if name not in known:
                    scope[name] = value if replaced is None else replaced
            for name in dead.get(index, ()):
                scope.pop(name, None)

    def subgraph(self, graph: Any, scope: Mapping[str, Value], given: Mapping[str, Value]) -> list[Value]:
        """The outputs of a body of Loop, If or Scan, which sees the tensors around it."""
        self._steps += 1 + len(graph.node)
        if self._steps > MOST_STEPS:
            raise Unsupported(f"its loops compute more than {MOST_STEPS:,} nodes with these inputs")
        inner = {**scope, **{t.name: self._constant(t) for t in graph.initializer}, **given}
        around = self.place
        self._entered[around] += 1
        self.place = f"{around}{self._entered[around]}/"
        try:
            self._run_nodes(graph.node, inner, {})
        finally:
            self.place = around
        return [inner[o.name] for o in graph.output]

    def _run_node(self, node: Any, scope: dict[str, Value]) -> list[Value | None]:
        values = [self._read(n, scope) if n else None for n in node.input]
        domain = node.domain or "ai.onnx"
        if id(node) not in self._attributes:
            self._attributes[id(node)] = node, {a.name: self._attribute(a) for a in node.attribute}
        call = Call(
            node, self.opsets.get(domain, 1), self._attributes[id(node)][1],
            [v and v.kind for v in values], self._arithmetic(values),
            lambda graph, given: self.subgraph(graph, scope, given), self.kept, self._known,
        )  # fmt: skip
        return self.evaluate(call, domain, values)

    def _arithmetic(self, values: Iterable[Value | None]) -> Arithmetic:
        """That of a node: float64 where all real numbers that it reads are declared so."""
        kinds = {v.kind for v in values if v is not None and is_real(v.kind)}
        if kinds != {np.dtype(np.float64)} or self.arithmetic.work == np.float64:
            return self.arithmetic
        return replace(self.arithmetic, work=np.float64, operands=None)

    def kept(self, name: str, array: Array, kind: str) -> Array:
        """Numbers as a decoder's cache has them that stores them as `kind`: a tensor of this name."""
        return as_stored(array, kind)

    def evaluate(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """The results of one node, those that are kept in caches as they are stored there."""
        try:
            results = self._evaluated(call, domain, values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise Unfit(f"{call.op}: {error}") from error
        if call.op in KEEPERS or call.get(KEPT) is None:
            return results
        return [v and Value(call.kept(index, v.array), v.kind) for index, v in enumerate(results)]

    def _evaluated(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """The results of one node, by the first way that has a definition of it."""
        operator = OPERATORS.get((domain, call.op))
        arrays = [v.array if v is not None else None for v in values]
        if operator is not None:
            try:
                result = operator(call, *arrays)
                return self._typed(call, result if isinstance(result, (list, tuple)) else [result])
            except Unsupported:
                if call.op in CONTROL or (call.op in KEEPERS and call.get(KEPT) is not None):
                    raise  # nothing else has the scope of a body, or rounds its caches before it reads them
        if id(call.node) not in self._bodies:
            self._bodies[id(call.node)] = call.node, function_body(call, domain)
        body = self._bodies[id(call.node)][1]
        if body is not None:
            try:
                return self._run_body(body, values)
            except Unsupported:  # a body may lean on what ONNX leaves open
                pass
        return self._typed(call, self._fallback.run(call, domain, values))

    def _run_body(self, body: Any, values: list[Value | None]) -> list[Value | None]:
        """The results of a function of the schema."""
        opsets = self.opsets
        self.opsets = {**opsets, **{o.domain or "ai.onnx": o.version for o in body.opset_import}}
        try:
            scope = {n: v for n, v in zip(body.input, values, strict=False) if v is not None}
            scope |= dict.fromkeys([n for n in body.input if n not in scope], Value(None, np.dtype(object)))
            scope[""] = Value(None, np.dtype(object))
            self._run_nodes(body.node, scope, {})
        finally:
            self.opsets = opsets
        return [scope.get(n) for n in body.output]

    def _typed(self, call: Call, results: Iterable[Any]) -> list[Value | None]:
        """Results with the types that the model declares for them."""
        kind = next((k for k in call.kinds if k is not None and is_real(k)), np.dtype(np.float32))
        declared = KINDS.get(call.op)
        found: list[Value | None] = []
        for index, result in enumerate(results):
            if isinstance(result, Value):
                found.append(Value(self._stored(result.array, result.kind), result.kind))
                continue
            if isinstance(result, list):  # a sequence: its elements are of the type of what it is made of
                found.append(Value(result, kind if kind in call.kinds else np.dtype(object)))
                continue
            if result is None or isinstance(result, str):
                found.append(Value(result, np.dtype(object)))
                continue
            array = np.asarray(result)
            if not is_real(array.dtype):
                found.append(Value(array, array.dtype))
                continue
            own = declared(call, index, array) if declared is not None else kind
            wide = widened(array, self.arithmetic.work)
            found.append(Value(self._stored(limit(wide, own) if self.arithmetic.limits else wide, own), own))
        return found

    def _stored(self, array: Any, kind: np.dtype[Any]) -> Any:
        """Rounded to the declared type, where that is what is sampled."""
        if not self.arithmetic.stores or not is_real(kind) or kind.itemsize >= array.dtype.itemsize:
            return array
        if self.arithmetic.limits:
            return array.astype(kind).astype(array.dtype)
        share, exponent = np.frexp(array)  # as many digits as the type has, whatever the size
        return np.ldexp(share.astype(kind).astype(array.dtype), exponent)

    # -- constants ---------------------------------------------------------------------------------------

    def _read(self, name: str, scope: Mapping[str, Value]) -> Value:
        """A tensor; a large weight is made now, unless it is among those that were read last."""
        if name in scope:
            return scope[name]
        value = self._last.pop(name, None) or self._constant(self.large[name])
        self._last[name] = value
        held = sum(one.array.nbytes for one in self._last.values())
        while held > HELD:
            held -= self._last.pop(next(iter(self._last))).array.nbytes
        return value

    def _constant(self, tensor: Any) -> Value:
        return self.value(array_of(tensor))

    def _sparse(self, tensor: Any) -> Value:
        from onnx import numpy_helper

        values = numpy_helper.to_array(tensor.values)
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        where = numpy_helper.to_array(tensor.indices)
        if where.ndim == 1:
            dense.reshape(-1)[where] = values
        else:
            dense[tuple(where.T)] = values
        return self.value(dense)

    def _attribute(self, attribute: Any) -> Any:
        import onnx

        if attribute.type == onnx.AttributeProto.TENSOR:
            return self._constant(attribute.t)
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            return self._sparse(attribute.sparse_tensor)
        found = onnx.helper.get_attribute_value(attribute)
        if isinstance(found, bytes):
            return found.decode("utf-8", "replace")
        if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            return list(found)
        if attribute.type == onnx.AttributeProto.STRINGS:
            return [s.decode("utf-8", "replace") for s in found]
        return found


def _is_large(tensor: Any) -> bool:
    """Whether an initialiser is made when it is read."""
    return 4 * count(tensor.dims) >= LARGE


def reads(node: Any) -> list[str]:
    """Names that a node and its subgraphs read."""
    found = [n for n in node.input if n]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                found += reads(inner)
            found += [o.name for o in graph.output]
    return found
