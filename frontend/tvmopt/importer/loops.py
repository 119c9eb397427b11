"""A Loop that a run goes through: its body is a program of its own, which `main` has called trip by trip.

    while going:                                    main:  s, rows = loop0(going, 0, s, x)
        going, trip, s, row = body(trip, s, x)      loop0: a function of the virtual machine, `passes/run_loops.py`
        rows.append(row)                            body:  a module of one function, compiled like a model

`main` calls ``loop0`` as an unknown function; the bodies are in its attribute :data:`LOOPS`.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax, tirx

from tvmopt.dims import Dim, Size, symbols_of
from tvmopt.errors import UnsupportedOp
from tvmopt.importer.converters.common import Build, const
from tvmopt.importer.converters.context import Inputs
from tvmopt.importer.lowbits import elem_type_of, storage_dtype
from tvmopt.importer.protos import free_names, make_type, open_shape
from tvmopt.importer.roll import ENDLESS
from tvmopt.importer.sizes import shape_of, shape_to_tvm

LOOPS = "tvmopt.loops"
"""Attribute of `main`: the body of each loop that it calls, by name: a module with a `main` of its own."""

LOOP_NAME = re.compile(r"loop\d+")
"""Under which `main` calls a loop."""

FORM = "tvmopt.loop"
"""Attribute of a body's `main`: how many states go from trip to trip, and how many rows a trip gives.

Its parameters are the number of the trip, the states, and values from outside; its results whether another trip
follows, the number of that one, the states and the rows, each with an axis of 1 in front."""

STEP, MORE, NEXT, GOING = "tvmopt/step", "tvmopt/more", "tvmopt/next", "tvmopt/going"
LIMIT, FRONT, SCALAR = "tvmopt/limit", "tvmopt/front", "tvmopt/scalar"
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


class Host(Protocol):
    """What of an importer is used here: of the model around the loop, and of the body."""

    bb: relax.BlockBuilder
    types: dict[str, tuple[str, tuple[Size, ...]]]
    opsets: dict[str, int]
    loops: dict[str, tvm.IRModule]
    _nodes: dict[str, Any]
    _inputs: dict[str, Any]

    def convert_graph(self, graph: onnx.GraphProto) -> tuple[Any, dict[str, str]]: ...


def convert_loop(outer: Host, inner: Host, node: onnx.NodeProto, inputs: Inputs, name: str) -> list[Any]:
    """The results of a loop.

    Args:
        outer: the importer of the graph around it. inner: a new one, for the body.
        name: of its node, for messages.
    """
    body = next(a.g for a in node.attribute if a.name == "body")
    graph = onnx.GraphProto(name=name)
    graph.node.extend(body.node)
    graph.value_info.extend([*body.value_info, *body.output])
    states = len(node.input) - 2
    graph.input.extend([body.input[0], *body.input[2:]])
    captured = _captured(outer, inner, body, graph, name)
    limit = _limit(inner, graph, inputs[0])
    outputs = _add_ends(inner, graph, body, states, limit is not None or LIMIT in inner._nodes)
    graph.output.extend(outputs)
    b = Build(outer.bb, name)
    going = b.reshape(inputs[1], ()) if inputs[1] is not None else const(True, "bool")
    if limit is not None:
        limit = b.cast(b.reshape(limit, ()), "int64")
        captured.append(limit)
        going = b.both(going, b.less(const(0, "int64"), limit))
    elif isinstance(inputs[0], np.ndarray):
        going = b.both(going, b.less(const(0, "int64"), b.reshape(b.number(inputs[0].reshape(-1)[0]), ())))
    elif LIMIT in inner._nodes and int(inner._nodes[LIMIT].value.numpy()) <= 0:
        going = const(False, "bool")
    captured += _sizes(outer, inner, graph, [*inputs[2:], *captured])
    module, _ = inner.convert_graph(graph)
    rows = len(outputs) - 2 - states
    main = module["main"].with_attr(FORM, [states, rows])
    module.update_func(module.get_global_var("main"), main)
    symbol = f"loop{len(outer.loops)}"
    outer.loops[symbol] = module
    results = list(main.ret_ty.fields)[2:]
    kinds = [
        *results[:states],
        *(_stacked(outer, n, r) for n, r in zip(node.output[states:], results[states:], strict=True)),
    ]
    arguments = [going, const(0, "int64"), *inputs[2:], *captured]
    call = relax.op.call_pure_packed(symbol, *arguments, ty_args=[relax.TupleType(kinds)])
    whole = outer.bb.emit(call)
    made = [outer.bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(kinds))]
    count = tirx.Var("trips", "int64")  # one for all of them: they are equally long
    for i in range(states, len(made)):
        if shape_of(made[i]) is None:
            shape = [count, *list(results[i].shape.values)[1:]]
            made[i] = outer.bb.match_cast(made[i], relax.TensorType(shape, str(results[i].dtype)))
    return made


def _captured(outer: Host, inner: Host, body: onnx.GraphProto, graph: onnx.GraphProto, name: str) -> list[Any]:
    """The tensors that the body takes from outside, which become inputs of its graph; constants are told at once."""
    found = []
    for free in sorted(free_names(body)):
        value = outer._nodes.get(free)
        if free in outer.types:
            inner.types[free] = outer.types[free]
        if isinstance(value, np.ndarray | tvm.ir.GenericConst):
            inner._nodes[free] = value
            continue
        shape = shape_of(value)
        if not isinstance(value, relax.Var) or shape is None or free not in outer.types:
            raise UnsupportedOp(
                f"Loop cannot be imported: its body reads '{free}', which is no tensor of known shape.",
                where=f"node '{name}'",
                fix="export the model without this node",
            )
        kind = make_type(elem_type_of(outer.types[free][0]), shape)
        graph.input.append(onnx.ValueInfoProto(name=free, type=kind))
        found.append(value)
    return found


def _limit(inner: Host, graph: onnx.GraphProto, given: Any) -> Any:
    """The trip count where a run computes it, as an input of the body; one that is known is told the body."""
    if given is None:
        return None
    if isinstance(given, np.ndarray):  # a size, open ones as what stands for them
        inner._nodes[LIMIT] = given.reshape(())
        inner.types[LIMIT] = ("int64", ())
        return None
    if isinstance(given, tvm.ir.GenericConst):
        value = int(np.ravel(given.value.numpy())[0])
        if value < ENDLESS:
            inner._nodes[LIMIT] = const(value, "int64")
            inner.types[LIMIT] = ("int64", ())
        return None
    graph.input.append(helper.make_tensor_value_info(LIMIT, INT64, ()))
    return given


def _add_ends(
    inner: Host, graph: onnx.GraphProto, body: onnx.GraphProto, states: int, limited: bool
) -> list[onnx.ValueInfoProto]:
    """Add to the graph of a body the number of the next trip, whether there is one, and an axis in front of each row;
    its outputs."""
    make = helper.make_node
    trip, condition = body.input[0].name, body.output[0].name
    for name, value, dtype in ((STEP, 1, "int64"), (FRONT, [0], "int64"), (SCALAR, np.zeros(0), "int64")):
        inner._nodes[name], inner.types[name] = const(value, dtype), (dtype, np.shape(value))
    nodes = [
        make("Add", [trip, STEP], [NEXT], name=NEXT),
        make("Reshape", [condition, SCALAR], [MORE], name=MORE),
    ]
    scalars = [(NEXT, INT64), (MORE, BOOL)]
    going = MORE
    if limited:
        nodes += [
            make("Less", [NEXT, LIMIT], [STEP + "s"], name=STEP),
            make("And", [MORE, STEP + "s"], [GOING], name=GOING),
        ]
        scalars += [(STEP + "s", BOOL), (GOING, BOOL)]
        going = GOING
    graph.value_info.extend(helper.make_tensor_value_info(n, kind, ()) for n, kind in scalars)
    outputs = [helper.make_tensor_value_info(going, BOOL, ()), helper.make_tensor_value_info(NEXT, INT64, ())]
    outputs += body.output[1 : 1 + states]
    for index, row in enumerate(body.output[1 + states :]):
        name = f"tvmopt/row{index}"
        old = inner.opsets.get("", 1) < 13
        nodes.append(make("Unsqueeze", [row.name] if old else [row.name, FRONT], [name], name=name))
        if old:
            nodes[-1].attribute.append(helper.make_attribute("axes", [0]))
        kind = make_type(row.type.tensor_type.elem_type, (1, *(open_shape(row.type) or ())))
        outputs.append(onnx.ValueInfoProto(name=name, type=kind))
    graph.node.extend(nodes)
    return outputs


def _sizes(outer: Host, inner: Host, graph: onnx.GraphProto, given: list[Any]) -> list[Any]:
    """Inputs of the model whose shapes tell the body open sizes that none of the values it is given tells."""
    values = [*graph.input, *graph.output, *graph.value_info]
    used = symbols_of(d for v in values for d in open_shape(v.type) or ())
    arrays = [v for v in inner._nodes.values() if isinstance(v, np.ndarray)]
    used |= symbols_of(d for a in arrays for d in a.ravel())
    told = {str(d) for v in given for d in shape_of(v) or () if isinstance(d, Dim) and d.is_symbol}
    more = []
    for index, value in enumerate(outer._inputs.values()):
        mine = {str(d) for d in shape_of(value) or () if isinstance(d, Dim) and d.is_symbol}
        if mine & (used - told):
            told |= mine
            name = f"tvmopt/sizes{index}"
            kind = make_type(elem_type_of(str(value.ty.dtype)), shape_of(value) or ())
            graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
            more.append(value)
    return more


def _stacked(outer: Host, name: str, row: Any) -> Any:
    """The type of what a loop collects: of known length, or of one that only a run tells."""
    known = outer.types.get(name)
    dtype = str(row.dtype)
    if known is None:
        return relax.TensorType(dtype=dtype, ndim=len(row.shape.values))
    return relax.TensorType(shape_to_tvm(known[1]), storage_dtype(known[0]))
