"""Prefetches of weights: asked for by loops, each line of the next panel once, and no price in the inner loop."""

from dataclasses import replace
from itertools import product as product_of

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

import tvmopt.schedules.cpu.winograd.compute as winograd
from tests.schedules.harness import close, open_module, run
from tvmopt import pipeline
from tvmopt.lowering.prefetch import AHEAD, PREFETCH, lower_prefetch, panel_stride
from tvmopt.schedules.cpu._winograd import Form
from tvmopt.schedules.cpu.gemm.schedule import AHEAD as FURTHER
from tvmopt.scheduling.open_loops import STEP
from tvmopt.targets import Machine


def product(rows, k, n):
    rng = np.random.default_rng(k)
    w, x = rng.standard_normal((k, n)).astype("float32"), rng.standard_normal((rows, k)).astype("float32")

    def build(bb, x):
        return relax.op.nn.relu(bb.emit(relax.op.matmul(x, relax.const(w))))

    return build, x, w


def scheduled(rows, k, n, machine):
    """The scheduled kernel of a product, prefetches not yet written out."""
    build, _, _ = product(rows, k, n)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, k), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(build(bb, x)))
        bb.emit_func_output(out)
    module = pipeline.lower(bb.get(), machine).module
    (func,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    return func.with_attr("global_symbol", "kernel")


@pytest.mark.parametrize(
    "size, columns, tiles, steps",
    [(5120, 32, 7, 160), (3072, 32, 28, 96), (30720, 32, 7, 240), (63, 9, 2, 7), (240, 16, 15, 4), (561, 17, 3, 33)],
)
def test_steps_times_stride_cover_the_panel(size, columns, tiles, steps):
    stride = panel_stride(size, columns, tiles, steps)
    assert 0 <= stride * tiles * steps - size < tiles * steps


@pytest.mark.parametrize("rows, k, n", [(49, 33, 960), (64, 9, 256), (197, 31, 96)])
def test_every_line_of_the_next_panel(rows, k, n):
    """What is fetched while panel 0 is multiplied: panel 1, and no more than a step's rounding of panel 2."""
    func = scheduled(rows, k, n, Machine.load("znver5").with_cores(1))
    asked: list = []
    structural_walk(func.body, ((tirx.For, lambda loop: asked.append(loop) if STEP in loop.annotations else None),))
    done = lower_prefetch(func)
    assert PREFETCH not in done.script() and STEP not in done.script()
    places: list = []
    structural_walk(done.body, ((tvm.ir.Call, lambda call: _place(call, places)),))
    shape = next(tuple(map(int, p.ty.shape)) for p in func.params if len(p.ty.shape) == 3)
    (panel, zero, column), lines = places[0], set()
    for values in product_of(*(range(int(loop.extent)) for loop in asked)):
        at = dict(zip((loop.loop_var for loop in asked), values, strict=True))
        lines.add(_value(column, at) // 16)
    assert len(places) == 1 and int(zero) == 0 and _value(panel, {}) == 1
    size, steps = shape[1] * shape[2], len(lines)
    assert set(range(-(-size // 16))) <= lines and max(lines) <= 2 * size // 16 and steps > 1


def open_product(shape, k, n, machine):
    """The kernel of a product of open rows, and the loops that count the steps in which it fetches."""
    module = pipeline.lower(open_module(product(1, k, n)[0], [(*shape, k)]), machine).module
    (func,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    loops: list = []
    structural_walk(func.body, ((tirx.For, lambda loop: loops.append(loop) if STEP in loop.annotations else None),))
    return func, loops


def test_weights_that_a_quarter_of_the_cache_holds_are_not_fetched():
    machine = replace(Machine.load("znver5").with_cores(1), l1d=4096)
    for k, n in ((33, 960), (9, 256)):
        assert not open_product(("rows",), k, n, machine)[1]
        assert open_product(("rows",), k, n, replace(machine, l2=16 * k * n - 16))[1]
        assert not open_product(("rows",), k, n, replace(machine, l2=16 * k * n))[1]


@pytest.mark.parametrize("k, n", [(33, 960), (9, 256)])
@pytest.mark.parametrize("shape", [("rows",), ("rows", 3), (3, "rows")])
def test_every_line_of_the_next_panel_whatever_the_number_of_tiles(shape, k, n):
    """Tiles of open rows share it, two or more, which a run counts; with none nothing divides by it."""
    machine = replace(Machine.load("znver5").with_cores(1), l1d=4096, l2=16 * k * n - 16)
    func, loops = open_product(shape, k, n, machine)
    (tiles,) = (loop for loop in loops if isinstance(loop.extent, tirx.Var))
    step = next(loop for loop in loops if int(loop.annotations.get(PREFETCH, 0)))
    places: list = []
    structural_walk(lower_prefetch(func).body, ((tvm.ir.Call, lambda call: _place(call, places)),))
    size = next(int(p.ty.shape[1] * p.ty.shape[2]) for p in func.params if _known(p.ty.shape))
    for number in (2, 3, 5, 8, 16):
        lines = {
            _value(column, {tiles.loop_var: t, step.loop_var: s, tiles.extent: number}) // 16
            for t in range(number) for s in range(int(step.extent)) for *_, column in places
        }  # fmt: skip
        assert set(range(-(-size // 16))) <= lines and max(lines) <= 2 * size // 16
    assert _value(places[0][-1], {tiles.loop_var: 0, step.loop_var: 1, tiles.extent: 0}) >= 0


@pytest.mark.parametrize(
    "rows, k, n, asked", [(1, 1024, 2048, True), (1, 64, 512, False), (2, 1024, 2048, True), (8, 1024, 2048, True)]
)
def test_one_tile_fetches_ahead_in_its_own_panel(rows, k, n, asked):
    """Where its weights are more than L2 holds: each line of a panel but for those that it begins with, and of the
    next one as many as it was ahead."""
    func = scheduled(rows, k, n, Machine.load("znver5").with_cores(1))
    steps: list = []
    structural_walk(func.body, ((tirx.For, lambda loop: steps.append(loop) if STEP in loop.annotations else None),))
    done = lower_prefetch(func)
    assert bool(steps) is asked and AHEAD not in done.script()
    if not asked:
        return
    places: list = []
    structural_walk(done.body, ((tvm.ir.Call, lambda call: _place(call, places)),))
    lines = set()
    for values in product_of(*(range(int(loop.extent)) for loop in steps)):
        at = dict(zip((loop.loop_var for loop in steps), values, strict=True))
        for panel, zero, column in places:
            assert int(zero) == 0 and isinstance(Analyzer().simplify(panel), tirx.Var)
            lines.add(_value(column, at) // 16)
    width = next(int(p.ty.shape[2]) for p in func.params if len(p.ty.shape) == 3)
    assert lines == set(range(FURTHER // 16, (k * width + FURTHER) // 16))


@pytest.mark.parametrize("size, c, o, out", [(14, 48, 64, 2), (12, 33, 96, 4), (28, 64, 64, 4)])
def test_every_line_of_the_next_block_of_winograd(size, c, o, out, monkeypatch):
    """What is fetched while U[p, i, j] is multiplied: the block behind it, `C * nr` numbers further on in memory, also
    from the last place of a panel into the next panel."""
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(out), 0.0))
    w = np.ones((o, 3, 3, c), "float32")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, size, size, c), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = relax.op.nn.conv2d(x, relax.const(w), padding=1, data_layout="NHWC", kernel_layout="OHWI")
            done = bb.emit_output(bb.emit(y))
        bb.emit_func_output(done)
    module = pipeline.lower(bb.get(), Machine.load("znver5").with_cores(1)).module
    (func,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    asked: list = []
    structural_walk(func.body, ((tirx.For, lambda loop: asked.append(loop) if STEP in loop.annotations else None),))
    loops: list = []
    structural_walk(func.body, ((tirx.For, loops.append),))
    places: list = []
    structural_walk(lower_prefetch(func).body, ((tvm.ir.Call, lambda call: _place(call, places)),))
    shape = next(tuple(map(int, p.ty.shape)) for p in func.params if len(p.ty.shape) == 5)
    strides = [int(np.prod(shape[k + 1 :])) for k in range(5)]
    here = places[0]
    block, steps = strides[2], [loop.loop_var for loop in asked]

    def flat(place, at):
        return sum(_value(index, at) * stride for index, stride in zip(place, strides, strict=True))

    first = {var: 0 for var in steps}
    assert flat(here, first) == block  # at the start of U[0, 0, 0]: U[0, 0, 1]
    last = {loop.loop_var: int(loop.extent) - 1 for loop in loops if _uses(here[1:3], loop.loop_var)}
    assert flat(here, {**first, **last}) == strides[0]  # at the start of U[0, tile, tile], its last: U[1, 0, 0]
    lines = set()
    for values in product_of(*(range(int(loop.extent)) for loop in asked)):
        at = dict(zip(steps, values, strict=True))
        lines |= {(flat(place, at) - block) // 16 for place in places}
    assert set(range(-(-block // 16))) <= lines and max(lines) <= 2 * block // 16


def _known(shape):
    return all(isinstance(d, tirx.IntImm) for d in shape)


def _uses(indices, var):
    found: list = []
    for index in indices:
        structural_walk(index, ((tirx.Var, lambda v: found.append(v) if v.same_as(var) else None),))
    return bool(found)


def _place(call, found):
    if isinstance(call, tvm.ir.Call) and str(getattr(call.op, "name", "")).endswith("call_extern"):
        found.append(call.args[1].args[0].indices)


def _value(index, at):
    """An index with its loop variables given; the others are 0."""
    return int(
        Analyzer().simplify(
            structural_map(index, (tirx.Var, lambda var: tirx.const(at.get(var, 0), str(var.ty.dtype))))
        )
    )


@pytest.mark.parametrize("rows, k, n", [(49, 160, 960), (128, 64, 768)])
def test_accumulators_stay_in_registers(rows, k, n):
    """LLVM's own prefetch made it store all accumulators each step: 128x64x768 took 3.1 times as long."""
    machine = Machine.load("znver5").with_cores(1)
    module = pipeline.rewrite_kernels(tvm.IRModule({"kernel": scheduled(rows, k, n, machine)}))
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3, config=pipeline.BUILD_CONFIG):
        library = tvm.compile(module, target=machine.tvm_target()).mod
    lines = library.inspect_source("s").splitlines()
    fetches = [i for i, line in enumerate(lines) if "prefetcht1" in line]
    assert fetches
    for start in fetches:
        body = []
        for line in lines[start:]:
            body.append(line)
            if line.strip().startswith("j"):
                break
        assert sum("vfmadd" in line for line in body) >= 14
        stores = [line for line in body if "vmov" in line and line.rstrip().endswith(")")]
        assert not stores, "\n".join(stores)


@pytest.mark.parametrize("rows, k, n", [(49, 31, 965), (33, 7, 257), (17, 64, 100), (197, 9, 96)])
def test_numbers(rows, k, n):
    build, x, w = product(rows, k, n)
    (y,), how = run(build, [x])
    close(y, np.maximum(x.astype("float64") @ w, 0), k)
    assert [s.family for s in how.values()] == ["gemm"]


def test_kernels_without_the_annotation_are_left_alone():
    func = scheduled(1, 64, 100, Machine.load("znver5").with_cores(1))  # one row tile: nothing to hide behind
    assert lower_prefetch(func).same_as(func)
