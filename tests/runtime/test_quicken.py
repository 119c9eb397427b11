"""What `quicken` takes out of TVM's Python changes no result."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import _type_checker

from tvmopt.runtime.library import load_compiler
from tvmopt.runtime.tensors import numbers


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


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "uint32", "int64", "bool", "bfloat16", ">i4"]
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (3, 0, 2), (3, 4, 5), (17, 33)])
def test_constants_are_copied_as_they_are(dtype: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.random.default_rng(0).integers(0, 99, shape).astype(kind)
    for one in (array, array.T, array[::-1] if shape else array, np.broadcast_to(array, (2, *shape))):
        made = relax.const(one, kind.name)
        assert (made.value.numpy() == one).all() and made.value.shape == one.shape
        assert str(made.value.dtype) == kind.name == str(made.ty.dtype)
        found = numbers(made.value)
        assert found.dtype == kind.newbyteorder("=") and found.shape == one.shape and (found == one).all()
        if dtype == "float32" and one.size > 1:
            assert found.ctypes.data == made.value.data_ptr() and not found.flags.writeable
            if one.flags.writeable:
                one[...] += 1  # the constant has numbers of its own
                assert (found != one).all()


def test_constants_of_other_types_than_the_array() -> None:
    array = np.array([[1.5, 2.5], [3.5, -4.5]])
    for given, dtype in ((array, None), (array, "float32"), (array, "int32"), (2.5, "float32"), ([1, 2], "int64")):
        made = relax.const(given, dtype)
        assert str(made.value.dtype) == (dtype or "float32")
        assert (made.value.numpy() == np.asarray(given).astype(dtype or "float32")).all()


def test_names_that_are_looked_up_are_those_that_would_be_read() -> None:
    from tvm_ffi import registry

    from tvmopt.runtime.quicken import names_looked_up

    before = registry.init_ffi_api
    for namespace in ("relax", "tirx.transform", "topi.nn", "s_tir.schedule", "node"):
        eager, lazy = ModuleType("eager"), ModuleType("lazy")
        lazy.PrinterConfig = eager.PrinterConfig = None  # type: ignore[attr-defined]
        sys.modules |= {"eager": eager, "lazy": lazy}
        before(namespace, "eager")
        with names_looked_up():
            assert registry.init_ffi_api is tvm_ffi.init_ffi_api is not before
            tvm_ffi.init_ffi_api(namespace, "lazy")
        names = [name for name in vars(eager) if not name.startswith("__")]
        assert names
        assert (vars(lazy)["PrinterConfig"] is None) == (namespace != "node")  # of the library, where it has one
        for name in names:
            assert (getattr(lazy, name) is None) == (getattr(eager, name) is None)
            assert getattr(lazy, name) is getattr(lazy, name)
        for name in ("no_such_name", "__path__"):
            with pytest.raises(AttributeError, match=name):
                getattr(lazy, name)
    assert registry.init_ffi_api is tvm_ffi.init_ffi_api is before
    tvm_ffi.register_global_func("node.test_quicken", lambda: 7, override=True)
    assert lazy.test_quicken() == 7


def test_a_cpu_needs_no_support_of_other_devices() -> None:
    """In a process of its own: other tests import all of TVM. A GPU's target brings what it needs."""
    code = """
import sys
from tvmopt.compiler.whole import warm
from tvmopt.targets import Machine
warm()
Machine.load("znver5").tvm_target()
assert not [m for m in sys.modules if m.startswith(("tvm.backend.cuda.ptx", "cuda.bindings", "torch"))]
assert "TVM_DEVICE_BACKEND_AUTOLOAD" not in __import__("os").environ
Machine.load("nvidia-h100").tvm_target()
assert "tvm.backend.cuda.ptx" in sys.modules
import tvm
assert tvm.tirx.cuda is sys.modules["tvm.backend.cuda"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
