"""What a convolution of NCHW pictures fetches ahead: the lines that a channel reads which comes soon."""

from itertools import product

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_walk

from tests.schedules.cpu.test_planes import CASES, arguments, convolve
from tests.schedules.harness import close, machines, module_of
from tvmopt.pipeline import lower
from tvmopt.schedules.cpu.planes import choice
from tvmopt.schedules.cpu.planes import schedule as planes
from tvmopt.schedules.cpu.planes.ahead import AHEAD, COPY, fetch_ahead
from tvmopt.targets import Machine

LINE = 16
MACHINE = Machine.load("x86-64-v4").with_cores(1)


def scheduled(x, w, strides, pads, dilation, groups):
    """The scheduled kernel of a convolution, nothing rewritten behind its schedule yet."""

    def build(bb, x):
        options = dict(strides=strides, padding=pads, dilation=dilation, groups=groups)
        return relax.op.nn.conv2d(x, relax.const(w), **options)

    module = lower(module_of(build, [x]), MACHINE).module
    kernels = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    (func,) = (f for f in kernels if collected(f.body, tirx.For, lambda loop: AHEAD in loop.annotations))
    return func.with_attr("global_symbol", "kernel")


def collected(node, kind, wanted=lambda one: True):
    """What lies in a statement, the outermost first."""
    found: list = []
    structural_walk(node, ((kind, lambda one: found.append(one) if wanted(one) else None),))
    return found


def line(source, indices, values):
    """The line of a place in the copy, which begins where a line does; variables without a value are 0."""
    number = 0
    for index, size in zip(indices, source.shape, strict=True):
        number = number * size + index
    known = structural_map(number, (tirx.Var, lambda var: tirx.const(values.get(var, 0), str(var.ty.dtype))))
    return int(Analyzer().simplify(known)) // LINE


@pytest.mark.parametrize("case", ["3x3", "1x1", "phases", "three phases", "one phase of two", "dilated", "groups"])
def test_every_line_that_the_channel_reads(monkeypatch, case):
    monkeypatch.setattr(choice, "between_transposes", lambda *asked: float("inf"))
    monkeypatch.setattr(planes, "rows_ahead", lambda problem: 1)
    func = scheduled(*arguments(case))
    (channels,) = collected(func.body, tirx.For, lambda loop: AHEAD in loop.annotations)
    ky, kx = channels.body, channels.body.body
    (realize,) = collected(kx, SBlockRealize)
    load = next(one for one in collected(realize.block.body, TensorLoad) if one.source.name == COPY)
    places = dict(zip((iv.var for iv in realize.block.iter_vars), realize.iter_values, strict=True))
    read = [structural_map(index, (tirx.Var, lambda var: places.get(var, var))) for index in load.indices]
    along = [loop for loop in collected(func.body, tirx.For) if loop.loop_var in undefined_vars(read[-1], [])]
    pixels = [loop for loop in along if loop not in (channels, ky, kx)]

    done = fetch_ahead(func)
    assert AHEAD not in done.script()
    fetched = [call.args[1].args[0] for call in collected(done.body, tvm.ir.Call, _is_fetch)]
    tiles = [loop for loop in pixels if loop in collected(func.body, tirx.For, lambda one: _holds(one, channels))]
    inner = [loop for loop in pixels if loop not in tiles]
    for tile, row in product((0, -1), range(int(ky.extent))):
        at = {ky.loop_var: row} | {loop.loop_var: tile % int(loop.extent) for loop in tiles}
        got = {line(one.source, one.indices, at) for one in fetched}
        wanted = {
            line(load.source, read, at | {channels.loop_var: 1, kx.loop_var: tap} | _values(inner, place))
            for tap in range(int(kx.extent))
            for place in product(*(range(int(loop.extent)) for loop in inner))
        }
        assert wanted <= got and len(got) <= 2 * len(wanted)


def _is_fetch(call):
    return str(getattr(call.op, "name", "")).endswith("call_extern")


def _holds(loop, other):
    return any(one.same_as(other) for one in collected(loop.body, tirx.For))


def _values(loops, place):
    return dict(zip((loop.loop_var for loop in loops), place, strict=True))


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("ahead", [1, 8])
@pytest.mark.parametrize("case", [name for name, (_, channels, *_) in CASES.items() if channels > 1])
def test_results_are_the_same(monkeypatch, machine, ahead, case):
    monkeypatch.setattr(planes, "rows_ahead", lambda problem: ahead if problem.high == 1 else 0)
    x, w, *rest = arguments(case)
    got, want, _ = convolve(machine, x, w, *rest)
    close(got, want, w[0].size)


def problem(channels, mr, vectors, copied, taps=(3, 3), high=1):
    return planes.PlanesProblem(
        n=1, o=64, oh=20, ow=20, rows=20, columns=20, groups=1, panels=8, mr=mr, tile=16 * vectors, high=high, pitch=21,
        k=(channels, *taps), lanes=16, cores=1, threads=False, streamed=False, copied=copied, phases=1, reach=2,
        fma_ports=2, l2=1 << 20,
    )  # fmt: skip


def test_short_runs_of_large_copies_are_fetched():
    assert planes.rows_ahead(problem(512, 8, 3, 1 << 20)) == 1
    assert planes.rows_ahead(problem(96, 12, 2, 1 << 19, taps=(1, 1))) == 5  # 60 cycles, 12 a channel
    assert planes.rows_ahead(problem(5, 12, 2, 1 << 19, taps=(1, 1))) == 0  # there is no such channel
    assert planes.rows_ahead(problem(512, 8, 3, 1 << 16)) == 0  # near
    assert planes.rows_ahead(problem(512, 2, 8, 1 << 20)) == 0  # a long run
    assert planes.rows_ahead(problem(512, 1, 1, 1 << 20, high=4)) == 0  # strips of a channel's own
