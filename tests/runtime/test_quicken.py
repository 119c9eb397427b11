"""What `quicken` takes out of TVM's Python changes no result."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import _type_checker

from tvmopt.runtime.library import load_compiler


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_compiler()


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_arrays_are_iterated_over_in_order(count: int) -> None:
    array = tvm_ffi.Array([tvm.tirx.IntImm("int32", i) for i in range(count)])
    assert [int(i) for i in array] == list(range(count))
    first, second = iter(array), iter(array)
    assert [int(next(first)) for _ in range(min(count, 2))] == [int(next(second)) for _ in range(min(count, 2))]
    nested = tvm_ffi.Array([array, array])
    assert [len(list(inner)) for inner in nested] == [count, count]


def schedule() -> Schedule:
    x = tvm.te.placeholder((16,), name="x")
    return Schedule(tvm.te.create_prim_func([x, tvm.te.compute((16,), lambda i: x[i] + 1, name="y")]))


def test_no_move_of_a_schedule_checks_types_in_python() -> None:
    checked = _type_checker.type_checked(lambda: None).__code__
    moves = {name: method.__code__ for name, method in vars(Schedule).items() if hasattr(method, "__code__")}
    assert {"split", "fuse", "compute_at", "get_loops"} <= moves.keys()
    assert [name for name, code in moves.items() if code is checked] == []


def test_moves_still_work_and_refuse_what_is_wrong() -> None:
    sch = schedule()
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    outer, inner = sch.split(loop, [None, 4])
    assert [int(sch.get(one).extent) for one in (outer, inner)] == [4, 4]
    for wrong in (lambda: sch.split("y", [None, 4]), lambda: sch.get_loops(loop), lambda: sch.fuse(1, 2)):
        with pytest.raises(Exception, match=r"."):  # TVM's C++ says which type it wanted
            wrong()


def test_names_are_read_again_when_there_are_more() -> None:
    from tvm_ffi import registry

    from tvmopt.runtime.quicken import names_read_once

    before = registry.list_global_func_names
    with names_read_once():
        first = registry.list_global_func_names()
        assert sorted(first) == sorted(before())
        first.clear()  # a caller's list is its own
        tvm_ffi.register_global_func("tvmopt.test_quicken", lambda: 7, override=True)
        assert "tvmopt.test_quicken" in registry.list_global_func_names()
    assert registry.list_global_func_names is before
