"""A kernel whose loops TVM cuts stays inside its tensors: beside each one lie numbers that nothing may change."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from tests.schedules.harness import module_of, rand
from tvmopt.lowering.partition import HINT, bound_partitions
from tvmopt.pipeline import lower
from tvmopt.targets import Machine
from tvmopt.tuning.kernel import compiled_module

EDGES = [1, 8, 17, 33, 64]
GUARD = 4096
"""Bytes before and behind each tensor."""


def fenced(array):
    """A tensor that is the middle of a buffer, and the buffer."""
    buffer = np.full(array.nbytes + 2 * GUARD + 64, 0xA5, "u1")
    start = -buffer.ctypes.data % 64
    middle = buffer[start + GUARD : start + GUARD + array.nbytes]
    middle[...] = np.ascontiguousarray(array).view("u1").ravel()
    return tvm.runtime.from_dlpack(middle.view(array.dtype).reshape(array.shape)), buffer, start


def intact(buffer, start, size):
    """Whether nothing was written beside the tensor."""
    return (buffer[: start + GUARD] == 0xA5).all() and (buffer[start + GUARD + size :] == 0xA5).all()


def run_fenced(func, arrays, shape):
    """The output of a scheduled function of float32 tensors, and whether it kept to its tensors."""
    tensors = [fenced(a) for a in (*arrays, np.full(shape, np.nan, "float32"))]
    compiled_module(func, Machine.load("cpu").with_cores(2))["main"](*(t for t, _, _ in tensors))
    sizes = [t.numpy().nbytes for t, _, _ in tensors]
    return tensors[-1][0].numpy(), all(intact(b, s, n) for (_, b, s), n in zip(tensors, sizes, strict=True))


def kernel_of(build, *inputs):
    """The one scheduled kernel of an expression."""
    module = lower(module_of(build, inputs), Machine.load("cpu").with_cores(2)).module
    (func,) = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


@pytest.mark.parametrize("n", EDGES)
def test_triangles_stay_inside_their_tensors(n):
    x = rand(n, n, seed=n)
    for k in (-3, 2):
        for op, reference in ((relax.op.tril, np.tril), (relax.op.triu, np.triu)):
            func = kernel_of(lambda bb, v, op=op, k=k: op(v, k), x)
            y, inside = run_fenced(func, [x], x.shape)
            assert inside, f"{op.__name__} of {n} x {n}, k = {k}"
            np.testing.assert_array_equal(y, reference(x, k))


@pytest.mark.parametrize("rows", [7, 30, 33])
def test_a_triangle_behind_a_product(rows):
    x, w = rand(rows, 16), rand(16, 41, seed=1)

    def build(bb, v, w):
        return relax.op.tril(bb.emit(relax.op.matmul(v, w)), -3)

    y, inside = run_fenced(kernel_of(build, x, w), [x, w], (rows, 41))
    assert inside
    np.testing.assert_allclose(y, np.tril(x @ w, -3), rtol=1e-4, atol=1e-4)


def test_a_length_that_is_loaded_cuts_no_loop():
    """Lengths beyond both ends of the loop."""
    lengths = te.placeholder((4,), "int32", "lengths")
    x = te.placeholder((4, 17), "float32", "x")
    out = te.compute((4, 17), lambda i, j: tirx.Select(j < lengths[i], x[i, j], tirx.const(0.0, "float32")))
    sch = Schedule(te.create_prim_func([lengths, x, out]))
    sch.annotate(sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])[-1], HINT, 1)
    given, data = np.array([-9, 0, 5, 99], "int32"), rand(4, 17)
    y, inside = run_fenced(sch.mod["main"], [given, data], (4, 17))
    assert inside
    np.testing.assert_array_equal(y, np.where(np.arange(17) < given[:, None], data, 0))


def test_tails_are_still_cut():
    """The rows of a product, a seam and a border are loops without conditions, as the families asked for."""
    x, w = rand(33, 16), rand(16, 40, seed=1)
    pictures = rand(1, 9, 9, 16)
    cut = [
        kernel_of(lambda bb, a, b: relax.op.matmul(a, b), x, w),
        kernel_of(lambda bb, a, b: relax.op.concat([a, relax.op.permute_dims(b)], 1), x[:16], rand(16, 16)),
        kernel_of(lambda bb, a: relax.op.nn.max_pool2d(a, (3, 3), padding=(1, 1), layout="NHWC"), pictures),
    ]
    hinted = [func for func in cut if HINT in func.script()]
    assert hinted and all(bound_partitions(func).same_as(func) for func in hinted)


def test_a_guard_of_every_block_is_still_cut():
    """The last of several pieces of the rows is shorter: a bound, and no branch in its loop."""
    x = te.placeholder((45, 8), "float32", "x")
    sch = Schedule(te.create_prim_func([x, te.compute((45, 8), lambda i, j: x[i, j] * 2, name="y")]))
    rows, _ = sch.get_loops(sch.get_sblock("y"))
    _piece, tile, _row = sch.split(rows, [2, 5, 5])
    sch.annotate(tile, HINT, 1)
    assert bound_partitions(sch.mod["main"]).same_as(sch.mod["main"])
    y, inside = run_fenced(sch.mod["main"], [data := rand(45, 8)], (45, 8))
    assert inside
    np.testing.assert_array_equal(y, data * 2)
