"""Data movement against NumPy: transposes, seams, shuffles, gathers; each recognised by one family only."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, te, topi

from tests.schedules.harness import machines, run
from tvmopt.schedules.cpu import elementwise, layout
from tvmopt.schedules.cpu.layout.lower import transpose_of
from tvmopt.scheduling.blocks import blocks_of

F = "float32"


def prim(make, *shapes):
    inputs = [te.placeholder(s, F, f"x{i}") for i, s in enumerate(shapes)]
    out = make(*inputs)
    outputs = [out] if isinstance(out, te.Tensor) else list(out)
    return te.create_prim_func([*inputs, *outputs]), [tuple(int(d) for d in o.shape) for o in outputs]


def check(make, reference, scheduled, execute, machine, *shapes, knobs=None):
    func, outputs = prim(make, *shapes)
    assert elementwise.recognise(func, machine) is None
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(F) for s in shapes]
    want = reference(*arrays)
    want = want if isinstance(want, (tuple, list)) else [want]
    for got, exact in zip(execute(scheduled(layout, func, knobs), arrays, outputs), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("knobs", [{}, {"tile": 8, "parallel": 1}])
def test_transpose(edge, knobs, scheduled, execute, machine):
    if edge > 1:
        tools = (scheduled, execute, machine)
        check(lambda x: topi.transpose(x, (1, 0)), lambda x: x.T, *tools, (edge, 37), knobs=knobs)
        check(
            lambda x: topi.transpose(x, (0, 2, 1)),
            lambda x: x.swapaxes(1, 2),
            *tools,
            (2, edge, edge),
            knobs=knobs,
        )


SHAPES = [
    ((17, 33), (1, 0)),
    ((16, 16), (1, 0)),
    ((31, 8), (1, 0)),  # shorter than a square
    ((2, 16, 7, 7), (0, 2, 3, 1)),  # an image, whose rows lie together in both
    ((2, 7, 7, 19), (0, 3, 1, 2)),
    ((3, 31, 2, 40), (3, 1, 2, 0)),
    ((3, 40, 2, 31), (0, 3, 2, 1)),
    ((1, 300, 18), (0, 2, 1)),  # more than one run of squares
]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kind", ["float32", "uint8", "float16", "int64"])
def test_squares_in_registers(machine, cores, kind):
    for shape, order in SHAPES:
        x = np.random.default_rng(len(shape)).integers(0, 200, shape).astype(kind)
        (y,), how = run(lambda bb, a, order=order: relax.op.permute_dims(a, order), [x], machine, cores)
        assert {one.family for one in how.values()} == {"layout"}
        np.testing.assert_array_equal(y, x.transpose(order))


def test_bits_that_are_not_numbers_stay():
    x = np.arange(32 * 17, dtype="uint32").reshape(32, 17) + np.uint32(0x7F800001)  # NaNs that signal, with payloads
    (y,), _ = run(lambda bb, a: relax.op.permute_dims(a, (1, 0)), [x.view("float32")])
    np.testing.assert_array_equal(y.view("uint32"), x.T)


def test_squares_of_a_part_of_a_concatenation():
    x, z = (np.random.default_rng(i).standard_normal((2, 24, 5, 5)).astype("float32") for i in range(2))

    def build(bb, a, b):
        parts = [bb.emit(relax.op.permute_dims(v, (0, 2, 3, 1))) for v in (a, b)]
        return relax.op.concat(parts, axis=3)

    (y,), _ = run(build, [x, z])
    np.testing.assert_array_equal(y, np.concatenate([x.transpose(0, 2, 3, 1), z.transpose(0, 2, 3, 1)], axis=3))


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "int64"])
@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("long, read", [(8, 7), (9, 8), (4, 16), (31, 17), (33, 32), (7, 15), (160, 9)])
def test_neighbours_that_come_from_several_places_in_turn(machine, dtype, turns, long, read):
    x = np.random.default_rng(1).integers(-100, 100, (long, 3, turns, read)).astype(dtype)
    (y,), how = run(lambda bb, x: relax.op.permute_dims(x, (3, 1, 0, 2)), [x], machine)
    np.testing.assert_array_equal(y, x.transpose(3, 1, 0, 2))
    assert [s.family for s in how.values()] == ["layout"]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("by", [2, 3, 4])
@pytest.mark.parametrize("height, width, channels", [(5, 8, 16), (3, 9, 8), (1, 31, 33), (7, 7, 9)])
def test_phases_of_a_transposed_convolution(machine, by, height, width, channels):
    """Pixels and phases as one axis, [N, H, W, s, s, C] to [N, C, H * s, W * s]: read as quotient and remainder."""
    (x,) = (np.arange(2 * height * width * by * by * channels, dtype=F).reshape(2, height, width, by * by * channels),)

    def build(bb, x):
        parts = bb.emit(relax.op.reshape(x, (2, height, width, by, by, channels)))
        turned = bb.emit(relax.op.permute_dims(parts, (0, 5, 1, 3, 2, 4)))
        return relax.op.reshape(turned, (2, channels, height * by, width * by))

    (y,), how = run(build, [x], machine)
    want = x.reshape(2, height, width, by, by, channels).transpose(0, 5, 1, 3, 2, 4)
    np.testing.assert_array_equal(y, want.reshape(y.shape))
    assert {s.family for s in how.values()} == {"layout"}


def test_which_blocks_are_squares():
    def found(make, *shapes):
        func, _ = prim(make, *shapes)
        return [transpose_of(block) for block in blocks_of(func)]

    (image,) = found(lambda x: topi.transpose(x, (0, 2, 3, 1)), (2, 24, 7, 5))
    assert (image.read.extent, image.written.extent, [a.extent for a in image.outer]) == (35, 24, [2])
    assert found(lambda x: topi.transpose(x, (0, 2, 1)), (1, 24, 20))[0].outer == ()
    cast, moved = found(lambda x: topi.transpose(topi.cast(x, "float64"), (1, 0)), (24, 20))
    assert cast is None and moved.bits == 64
    assert found(lambda x: topi.strided_slice(x, (0, 0), (24, 20), (1, 2)), (24, 20)) == [None]
    assert found(lambda x: topi.reshape(x, (20, 24)), (24, 20)) == [None]
    (phases,) = found(lambda x: topi.transpose(x, (3, 1, 0, 2)), (40, 3, 2, 64))
    assert (phases.turns, phases.turn.source, phases.written.extent, phases.shorter) == (2, 64, 40, 64)
    assert found(lambda x: topi.transpose(x, (3, 1, 0, 2)), (40, 3, 3, 64))[0].turn is None


def test_short_axes_interleave(scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    for channels in (2, 3, 4, 8):
        check(
            lambda x: topi.transpose(x, (0, 2, 3, 1)),
            lambda x: x.transpose(0, 2, 3, 1),
            *tools,
            (1, channels, 9, 11),
        )
        check(
            lambda x: topi.transpose(x, (0, 3, 1, 2)),
            lambda x: x.transpose(0, 3, 1, 2),
            *tools,
            (1, 9, 11, channels),
        )


@pytest.mark.parametrize("groups", [2, 3, 4, 8])
def test_channel_shuffle(groups, scheduled, execute, machine):
    c = groups * 10

    def shuffle(x):
        split = topi.reshape(x, (1, 6, 6, groups, 10))
        return topi.reshape(topi.transpose(split, (0, 1, 2, 4, 3)), (1, 6, 6, c))

    def reference(x):
        return x.reshape(1, 6, 6, groups, 10).swapaxes(3, 4).reshape(1, 6, 6, c)

    check(shuffle, reference, scheduled, execute, machine, (1, 6, 6, c))
    func, _ = prim(shuffle, (1, 6, 6, c))
    assert "T.unroll" in scheduled(layout, func).script()


def test_concatenate(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    shapes = [(3, edge), (3, edge), (3, 5)]
    check(lambda *x: topi.concatenate(x, axis=1), lambda *x: np.concatenate(x, 1), *tools, *shapes)
    check(lambda *x: topi.concatenate(x, axis=0), lambda *x: np.concatenate(x, 0), *tools, (edge, 5), (3, 5))
    check(
        lambda *x: topi.nn.relu(topi.concatenate(x, axis=1)),
        lambda *x: np.maximum(np.concatenate(x, 1), 0),
        *tools,
        *shapes,
    )


def test_split_and_slices(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    check(lambda x: topi.split(x, [edge], axis=1), lambda x: (x[:, :edge], x[:, edge:]), *tools, (4, edge + 3))
    check(
        lambda x: topi.strided_slice(x, [0, 0], [4, 3 * edge], [1, 3]),
        lambda x: x[:, : 3 * edge : 3],
        *tools,
        (4, 3 * edge + 1),
    )


def test_pad(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    check(lambda x: topi.nn.pad(x, (1, 1), (0, 2)), lambda x: np.pad(x, ((1, 0), (1, 2))), *tools, (3, edge))
    spatial = ((0, 0), (1, 1), (2, 1), (0, 0))
    check(
        lambda x: topi.nn.pad(x, (0, 1, 2, 0), (0, 1, 1, 0)),
        lambda x: np.pad(x, spatial),
        *tools,
        (1, 4, 5, edge),
    )


@pytest.mark.parametrize("behind", [(2,), (1,), (2, 3), (8,), (9,), (1, 1)])
def test_concatenate_before_short_axes(edge, behind, scheduled, execute, machine):
    """Few numbers behind the seam are one loop with it, cut where the seam is: no branch for each of them."""
    shapes = ((3, edge, *behind), (3, 5, *behind))
    tools = (scheduled, execute, machine)
    for knobs in ({"parallel": 0}, {"parallel": 1}):
        check(lambda *x: topi.concatenate(x, 1), lambda *x: np.concatenate(x, 1), *tools, *shapes, knobs=knobs)
    func, _ = prim(lambda *x: topi.concatenate(x, 1), *shapes)
    assert ("loop_partition_hint" in scheduled(layout, func).script()) is bool(np.prod(behind) <= 8)


@pytest.mark.parametrize("make", [
    lambda x: topi.exp(x),
    lambda x: topi.sum(x, axis=1),
    lambda x: te.compute((16, 8), lambda i, j: x[i, 2 * j], attrs={"tvmopt.kernel": "other"}),
])  # fmt: skip
def test_declines(make, machine):
    assert layout.recognise(prim(make, (16, 16))[0], machine) is None
