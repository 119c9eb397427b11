"""Which kernels are ones over pictures, and what is refused: tiles moved over anything else would be wrong."""

import pytest
from tvm import te, tirx

from tests.scheduling.test_open_rows import func
from tvmopt.scheduling.cost_model import pixel_widths
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.open_pictures import Follows, Pictures, pictures_of

H, W, V = (tirx.Var(name, "int64") for name in "hwv")
K = te.reduce_axis((0, 3), name="k")


def test_strides_and_offsets_are_read_off_the_accesses():
    found = pictures_of(
        func((1, H, W, 4), (4,), out=(1, V, 6, 4),
             value=lambda x, b, n, y, z, c: te.sum(x[n, y * 2 + K * 3, z + 1, c] * b[c], axis=[K]))
    )  # fmt: skip
    assert isinstance(found, Pictures)
    x, b, _ = found.core.params
    assert found.places[x] == {0: Follows(0), 1: Follows(1, 2, 6), 2: Follows(2, 1, 1)} and found.places[b] == {}
    shapes = [[int(d) for d in p.ty.shape] for p in found.at(5).params]
    assert shapes == [[1, 7, 6, 4], [4], [1, 1, 5, 4]]


@pytest.mark.parametrize(
    "out, value",
    [
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y, z, c] * y.astype("float32")),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y, z, c] / tirx.Cast("float32", W)),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, H - 1 - y, z, c]),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y // 2, z, c]),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y, z - 1, c]),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y, y + z, c]),
        ((1, H, W, 4), lambda x, n, y, z, c: x[n, y, z, c] + x[n, y * 2, z, c]),
        ((1, H, W, 4), lambda x, n, y, z, c: te.if_then_else(y > 0, x[n, y, z, c], 0.0)),
        ((1, H, 4), lambda x, n, y, c: x[n, y, 0, c]),
        ((1, 4, H, W), lambda x, n, c, y, z: x[n, y, z, c]),
    ],
)
def test_what_does_not_follow_the_pixel_is_refused(out, value):
    assert isinstance(pictures_of(func((1, H, W, 4), out=out, value=value)), Declined)


def test_a_tensor_between_two_blocks_is_read_at_its_own_pixel_only():
    x = te.placeholder((1, H, W, 4), name="x")
    twice = te.compute(x.shape, lambda n, y, z, c: x[n, y, z, c] * 2.0, name="twice")
    found = te.compute((1, H, V, 4), lambda n, y, z, c: twice[n, y, z + 1, c], name="y")
    assert isinstance(pictures_of(te.create_prim_func([x, found], "int64")), Declined)


def covered(width: int, widths: tuple[int, ...]) -> list[int]:
    """Which pixels the tiles of a row compute, as `in_pixels` places them."""
    at, found = 0, []
    for wide, after in zip(widths, (*widths[1:], 0), strict=True):
        count, rest = divmod(width - at, wide)
        more = wide > 1 and rest > after and width >= wide
        for k in range(count + more):
            start = min(at + k * wide, width - wide) if wide > 1 else at + k
            found += range(start, start + wide)
        at = width if more else width - rest
    return found


@pytest.mark.parametrize("widest", range(1, 9))
def test_tiles_cover_each_row_and_stay_in_it(widest):
    widths = pixel_widths(widest)
    for width in range(1, 100):
        found = covered(width, widths)
        assert sorted(set(found)) == list(range(width))
        assert len(found) <= width + max(1, widest // 2)
