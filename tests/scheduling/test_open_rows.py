"""Which open axes are rows, and what is refused: a kernel moved along an axis that is not one would be wrong."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, te, tirx
from tvm.tirx.analysis import undefined_vars

import tvmopt
from tests.importer import onnx_check
from tests.schedules.harness import open_module
from tvmopt.importer.sizes import NAMED_SIZES
from tvmopt.pipeline import lower
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.open_rows import Rows, is_open, rows_of, with_size_variables
from tvmopt.targets import Machine

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def func(*shapes, out, value):
    """`out[i...] = value(tensors..., i...)`."""
    tensors = [te.placeholder(s, name=f"x{k}") for k, s in enumerate(shapes)]
    result = te.compute(out, lambda *i: value(*tensors, *i), name="y")
    return te.create_prim_func([*tensors, result], "int64")


def test_rows_of_one_and_of_two_symbols():
    one = rows_of(func((N, 4), (4,), out=(N, 4), value=lambda x, b, i, j: x[i, j] + b[j]))
    assert isinstance(one, Rows)
    assert one.groups == ((N,),) and one.moved == ({0: 0}, {}, {0: 0})
    both = rows_of(func((N, M, 4), out=(N, M, 4), value=lambda x, i, j, k: x[i, j, k] * 2.0))
    assert isinstance(both, Rows)
    assert [len(g) for g in both.groups] == [2] and both.moved == ({1: 0}, {1: 0})


def test_a_smaller_operand_keeps_symbols_apart():
    found = rows_of(func((N, M, 4), (M, 4), out=(N, M, 4), value=lambda x, r, i, j, k: x[i, j, k] + r[j, k]))
    assert isinstance(found, Rows)
    assert [len(g) for g in found.groups] == [1, 1] and found.moved == ({0: 0, 1: 1}, {0: 1}, {0: 0, 1: 1})


def test_a_table_whose_size_is_known_is_moved_along():
    found = rows_of(func((N, 4), (512, 4), out=(N, 4), value=lambda x, t, i, j: x[i, j] + t[i, j]))
    assert isinstance(found, Rows) and found.moved == ({0: 0}, {0: 0}, {0: 0})


def test_the_function_at_a_number_of_rows_is_static():
    found = rows_of(func((N, M, 4), out=(N, M, 4), value=lambda x, i, j, k: x[i, j, k] * 2.0))
    assert isinstance(found, Rows) and not is_open(found.at(5))
    assert [[int(d) for d in p.ty.shape] for p in found.at(5).params] == [[1, 5, 4], [1, 5, 4]]


def test_sizes_that_contain_one_another_get_names_of_their_own():
    shape, doubled = (N + 1, 4), ((N + 1) * 2, 4)
    named, sizes = with_size_variables(func(shape, out=doubled, value=lambda x, i, j: x[i // 2, j]))
    first, second = [p.ty.shape[0] for p in named.params]
    assert isinstance(first, tirx.Var) and isinstance(second, tirx.Var) and not first.same_as(second)
    tvm.ir.assert_structural_equal([sizes[first], sizes[second]], [N + 1, (N + 1) * 2])
    assert not any(v.same_as(N) for v in undefined_vars(named.body, [])), "loops count by the names"


def test_a_size_that_is_written_as_a_sum_and_as_a_difference_gets_one_name():
    """The kernel kept the sum, and with it a variable that none of its tensors has (Funnel's decoder)."""
    sum_, difference = (N + 1) // 2 + -1, (N + 1) // 2 - 1
    named, _ = with_size_variables(func((difference, 4), out=(sum_, 4), value=lambda x, i, j: x[i, j]))
    first, second = [p.ty.shape[0] for p in named.params]
    assert isinstance(first, tirx.Var) and first.same_as(second)


K = te.reduce_axis((0, N), name="k")


@pytest.mark.parametrize(
    "shapes, out, value",
    [
        (((N, N),), (N, N), lambda x, i, j: x[i, j] + 1.0),
        (((N, N),), (N, N), lambda x, i, j: x[j, i]),
        (((N, 4),), (N, 4), lambda x, i, j: x[N - 1 - i, j]),
        (((N, 4),), (N, 4), lambda x, i, j: x[i, j] + x[0, j] + i),
        (((N, 4),), (N, 4), lambda x, i, j: x[i, j] * i.astype("float32")),
        (((N, 4),), (N, 4), lambda x, i, j: x[i, j] / tirx.Cast("float32", N)),
        (((N, 4),), (N, 4), lambda x, i, j: te.if_then_else(i > 0, x[i - 1, j], x[i, j])),
        (((N, 4),), (4,), lambda x, j: te.sum(x[K, j], axis=[K])),
        (((N, 4),), (4,), lambda x, j: x[0, j]),
        (((N, 4), (M, 4)), (N, 4), lambda x, z, i, j: x[i, j] + z[M - 1, j]),
    ],
)
def test_what_is_not_rows_is_refused(shapes, out, value):
    assert isinstance(rows_of(func(*shapes, out=out, value=value)), Declined)


def test_rows_read_at_two_places_are_refused():
    found = rows_of(func((N, 4), out=(N, 4), value=lambda x, i, j: x[i, j] + x[0, j]))
    assert isinstance(found, Declined) and found.reason == "an operand that is read at other rows too"


def test_what_a_kernel_costs_is_that_at_the_named_sizes() -> None:
    w = np.ones((64, 32), "float32")
    module = open_module(lambda bb, x: relax.op.matmul(x, relax.const(w)), [["n + 1", 64]])
    low = lower(module, Machine.load("x86-64-v3"))
    (kernel,) = low.kernels
    assert kernel.flops == 2 * 64 * 32 * 2  # of a size that nobody names: n is 1
    module["main"] = module["main"].with_attr(NAMED_SIZES, {"n": 99})
    (kernel,) = lower(module, Machine.load("x86-64-v3")).kernels
    assert kernel.flops == 2 * 64 * 32 * 100


@pytest.mark.parametrize("rows", [1, 3])
def test_threads_share_rows_or_what_is_in_one(rows):
    """A mask of a million places over any number of rows was a parallel loop in a parallel loop, which LLVM's generator
    refuses."""
    places = 1 << 20
    made = onnx_check.model(
        [helper.make_node("Where", ["w", "x", "c"], ["y"])], [onnx_check.value("x", ("m", 1, 1))],
        [onnx_check.value("y", None)], {"w": np.arange(places)[None] % 3 == 0, "c": np.float32(-1e4)},
    )  # fmt: skip
    compiled = tvmopt.compile(made, shape={"m": "1..8@2"}, threads=2, verify=False, records=False).model
    x = np.arange(1, rows + 1, dtype=np.float32).reshape(rows, 1, 1)
    np.testing.assert_array_equal(compiled(x), np.where(np.arange(places)[None] % 3 == 0, x, np.float32(-1e4)))
