"""Kernels with open sizes that are not rows: their own loops, right at every size."""

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import Open, close, open_module

SIZES = [(1, 1), (1, 7), (3, 8), (2, 9), (5, 15), (1, 16), (2, 17), (3, 31), (1, 33), (4, 101), (1, 600)]


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def check(build, shapes, reference, length=1, families=("generic",)):
    model = Open(open_module(build, shapes))
    assert tuple(how for how, _ in model.how.values()) == families
    for batch, seq in SIZES:
        known = {"batch": batch, "seq": seq}
        inputs = [random(*(known.get(d, d) for d in s)) for s in shapes]
        expected = reference(*(x.astype("float64") for x in inputs))
        close(model.guarded(inputs, expected.shape), expected, length)


def test_a_mask_of_length_by_length_is_added_and_scaled():
    def build(bb, x, mask):
        half = relax.const(0.5, "float32")
        return relax.op.tanh(bb.emit(relax.op.add(bb.emit(relax.op.multiply(x, half)), mask)))

    shapes = [("batch", 4, "seq", "seq"), ("batch", 1, 1, "seq")]
    check(build, shapes, lambda x, m: np.tanh(x * 0.5 + m))


def test_heads_are_turned():
    build = lambda bb, x: relax.op.permute_dims(x, [0, 2, 1, 3])  # noqa: E731
    check(build, [("batch", "seq", 3, 5)], lambda x: x.transpose(0, 2, 1, 3), families=("elementwise",))
    build = lambda bb, x: relax.op.permute_dims(x, [1, 0])  # noqa: E731
    check(build, [("batch", "seq")], lambda x: x.T, families=("elementwise",))


@pytest.mark.parametrize("axes, shape, other", [
    ((0, 2, 1), ("batch", 48, "seq"), ("batch", "seq", 48)),
    ((0, 2, 1), ("batch", "seq", 48), ("batch", 48, "seq")),
    ((0, 3, 1, 2), ("batch", "seq", 3, 16), ("batch", 16, "seq", 3)),
    ((2, 0, 1), ("seq", 5, 32), (32, "seq", 5)),
    ((1, 0), ("seq", 20), (20, "seq")),
])  # fmt: skip
def test_transposes_in_tiles_of_a_line(axes, shape, other):
    def build(bb, x, y):
        return relax.op.add(bb.emit(relax.op.permute_dims(x, axes)), y)

    model = Open(open_module(build, [shape, other]))
    for batch, seq in SIZES:
        x, y = (random(*({"batch": batch, "seq": seq}.get(d, d) for d in s)) for s in (shape, other))
        np.testing.assert_array_equal(model.guarded([x, y], y.shape), x.transpose(axes) + y)


def test_sums_over_an_open_axis():
    check(lambda bb, x: relax.op.sum(x, [1]), [("batch", "seq", 20)], lambda x: x.sum(1), 600)
    check(lambda bb, x: relax.op.max(x, [1]), [("batch", "seq", 3)], lambda x: x.max(1))
    check(lambda bb, x: relax.op.sum(x, [-1]), [("batch", "seq")], lambda x: x.sum(-1), 600 * 600, ("rows",))


@pytest.mark.parametrize("axis", [0, 1])
def test_tensors_are_joined(axis):
    def build(bb, x, y):
        return relax.op.concat([x, y], axis)

    check(build, [("batch", "seq"), ("batch", "seq")], lambda x, y: np.concatenate([x, y], axis))


def test_padding_and_flipping():
    check(lambda bb, x: relax.op.nn.pad(x, [0, 0, 1, 2]), [("batch", "seq")], lambda x: np.pad(x, ((0, 0), (1, 2))))
    check(lambda bb, x: relax.op.flip(x, 1), [("batch", "seq", 3)], lambda x: x[:, ::-1])


def test_why_a_kernel_is_no_tiles_of_rows_is_said_in_words():
    """One row of this transpose is a copy; several are none."""
    built = Open(open_module(lambda bb, x: relax.op.permute_dims(x, [0, 2, 1]), [(2, "n", 7)]))
    notes = " ".join(note for _, note in built.how.values())
    assert "NoneType" not in notes and notes


PICTURES = [(1, 1, 1), (2, 7, 8), (1, 9, 15), (3, 16, 17), (1, 31, 33), (1, 1, 70)]


@pytest.mark.parametrize("channels", [1, 3, 8, 9])
def test_pictures_of_few_channels_are_turned(channels):
    for axes, shape in [((0, 2, 3, 1), ("n", channels, "h", "w")), ((0, 3, 1, 2), ("n", "h", "w", channels))]:
        model = Open(open_module(lambda bb, x, axes=axes: relax.op.permute_dims(x, axes), [shape]))
        for n, h, w in PICTURES:
            x = random(*({"n": n, "h": h, "w": w}.get(d, d) for d in shape))
            np.testing.assert_array_equal(model.guarded([x], x.transpose(axes).shape), x.transpose(axes))


def test_channels_of_pictures_are_joined_without_a_condition_for_each():
    model = Open(open_module(lambda bb, *x: relax.op.concat(x, 3), [("n", "h", "w", c) for c in (24, 1, 7)]))
    for n, h, w in PICTURES:
        parts = [random(n, h, w, c) for c in (24, 1, 7)]
        expected = np.concatenate(parts, 3)
        np.testing.assert_array_equal(model.guarded(parts, expected.shape), expected)


def test_a_channel_of_pictures_is_padded():
    model = Open(open_module(lambda bb, x: relax.op.nn.pad(x, [0, 0, 0, 0, 0, 0, 1, 2]), [("n", "h", "w", 5)]))
    for n, h, w in PICTURES:
        x = random(n, h, w, 5)
        expected = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 2)))
        np.testing.assert_array_equal(model.guarded([x], expected.shape), expected)
