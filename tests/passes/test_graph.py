"""A graph that a pass left alone is the next pass's, and only then."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.passes.helpers import build
from tvmopt.passes import CancelCasts, CancelReshapes, EliminateIdentities
from tvmopt.passes.graph import Graph, graph_of, keep, sharing

op = relax.op


def chain(*kinds):
    """x cast through these types, then its negative."""

    def body(bb, x):
        for kind in kinds:
            x = bb.emit(op.astype(x, kind))
        return bb.emit(op.negative(x))

    return build({"x": ((7, 9), "float16")}, body)


@pytest.fixture
def read() -> Iterator[list[Any]]:
    """The functions that were read."""
    found: list[Any] = []
    begin = Graph.__init__

    def counted(self: Graph, func: Any) -> None:
        found.append(func)
        begin(self, func)

    with mock.patch.object(Graph, "__init__", counted):
        yield found


def test_passes_that_change_nothing_read_a_function_once(read: list[Any]) -> None:
    module = chain("float32")
    with sharing():
        for one in (CancelCasts(), CancelReshapes(), EliminateIdentities()):
            assert one(module)["main"].same_as(module["main"])
    assert len(read) == 1


def test_outside_nothing_is_kept(read: list[Any]) -> None:
    module = chain("float32")
    with sharing():
        CancelCasts()(module)
    CancelCasts()(module)
    CancelCasts()(module)
    assert len(read) == 3


def test_a_changed_function_is_read_again() -> None:
    module = chain("float32", "float16")
    with sharing():
        CancelReshapes()(module)  # leaves its graph
        shared = CancelCasts()(module)
        again = CancelCasts()(shared)
    assert tvm_ffi.structural_equal(shared, CancelCasts()(module))
    assert again["main"].same_as(shared["main"])
    assert not shared["main"].same_as(module["main"])


def test_a_graph_that_something_was_emitted_into_is_not_kept() -> None:
    func = chain("float32")["main"]
    with sharing():
        graph = graph_of(func)
        keep(graph)
        assert graph_of(func) is graph
        graph.emit(op.negative(func.params[0]), "more")
        keep(graph)
        assert graph_of(func) is not graph


def test_constants_are_not_held() -> None:
    module = build({"x": (4,)}, lambda bb, x: bb.emit(op.add(x, relax.const([1.0, 2, 3, 4], "float32"))))
    func = module["main"]
    with sharing():
        graph = graph_of(func)
        assert graph.array(func.body.blocks[0].bindings[0].value.args[1]) is not None
        keep(graph)
        assert not graph._arrays


def test_what_names_sizes_found_at_run_time_stays() -> None:
    """A binding of a shape has no reader, but tensors behind it have its sizes."""
    count = tirx.Var("count", "int64")
    bb = relax.BlockBuilder()
    x, sizes = relax.Var("x", relax.TensorType((8,), "float32")), relax.Var("sizes", relax.TensorType((1,), "int64"))
    with bb.function("main", [x, sizes]):
        with bb.dataflow():
            shape = bb.emit(op.tensor_to_shape(sizes))
            bb.match_cast(shape, relax.ShapeType([count]))
            made = bb.emit(op.zeros(relax.ShapeExpr([count]), "float32"))
            same = bb.emit(op.astype(made, "float32"))
            out = bb.emit_output(op.negative(same))
        bb.emit_func_output(out)
    module = EliminateIdentities()(CancelCasts()(bb.get()))
    assert "astype" not in module.script() and "match_cast" in module.script()
    tvm.compile(module, "llvm")
