"""An If that a run decides beside open sizes: two loops of one trip at the most - for `relax.py`.

    y = a(x) if c else b(x)        y0 = zeros
                                   y1 = loop0(c, y0, x)        body: a(x)
                                   y  = loop1(not c, y1, x)    body: b(x)

TVM's inference crashes on branches with symbolic shapes; loops are functions of the virtual machine that say what they
give (`loops.py`), and a body that is not taken costs a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper
from tvm import relax

from tvmopt.errors import UnsupportedOp
from tvmopt.importer.converters.common import Build, const
from tvmopt.importer.converters.context import Inputs
from tvmopt.importer.loops import Host, convert_loop
from tvmopt.importer.lowbits import storage_dtype
from tvmopt.importer.protos import describe_type, dtype_name, make_type, open_shape

ONCE = "tvmopt/once"
"""The name of False inside a branch: no other trip follows."""


def convert_either(
    outer: Host, inner: Callable[[], Host], node: onnx.NodeProto, inputs: Inputs, name: str, values: str
) -> list[Any]:
    """The results of an If.

    Args:
        outer: the importer of the graph around it. inner: makes a new one, for a branch.
        name: of its node, for messages. values: what on the command line binds the inputs that decide.

    Raises:
        UnsupportedOp: its branches give tensors of different shapes.
    """
    graphs = {a.name: a.g for a in node.attribute}
    branches = [graphs["then_branch"], graphs["else_branch"]]
    kinds = _kinds(branches, name, values)
    b = Build(outer.bb, name)
    condition = b.reshape(inputs[0], ())
    outer._nodes[ONCE], outer.types[ONCE] = const(False, "bool"), ("bool", ())
    results = [b.zeros(shape, storage_dtype(dtype)) for dtype, shape in kinds]
    for graph, going in zip(branches, (condition, b.unary(relax.op.logical_not, condition)), strict=True):
        loop = helper.make_node("Loop", ["", "", *(v.name for v in graph.output)], list(node.output), name=name)
        loop.attribute.append(helper.make_attribute("body", _trip(graph)))
        results = convert_loop(outer, inner(), loop, Inputs([None, going, *results]), name)
    return results


def _kinds(branches: list[onnx.GraphProto], name: str, values: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Element type and shape of each result, the same in both branches."""
    kinds = []
    for then, other in zip(*(graph.output for graph in branches), strict=True):
        shapes = [open_shape(v.type) for v in (then, other)]
        same = shapes[0] == shapes[1] and then.type.tensor_type.elem_type == other.type.tensor_type.elem_type
        if shapes[0] is None or not same:
            told = " and ".join(describe_type(v.type) for v in (then, other))
            raise UnsupportedOp(
                f"If cannot be imported: a run decides it, sizes are open, and its branches give {told}.",
                where=f"node '{name}'",
                fix=f"bind the sizes: --shape NAME:N for each, or what decides: {values}",
            )
        kinds.append((dtype_name(then.type.tensor_type.elem_type), shapes[0]))
    return kinds


def _trip(branch: onnx.GraphProto) -> onnx.GraphProto:
    """The body of the loop that computes a branch: it looks at nothing that a trip hands on."""
    body = onnx.GraphProto(name=branch.name)
    trip = helper.make_tensor_value_info("tvmopt/trip", TensorProto.INT64, ())
    states = [onnx.ValueInfoProto(name=f"tvmopt/before{i}", type=v.type) for i, v in enumerate(branch.output)]
    body.input.extend([trip, helper.make_tensor_value_info("tvmopt/alive", TensorProto.BOOL, ()), *states])
    body.node.extend(branch.node)
    body.value_info.extend(branch.value_info)
    once = onnx.ValueInfoProto(name=ONCE, type=make_type(TensorProto.BOOL, ()))
    body.output.extend([once, *branch.output])
    return body
