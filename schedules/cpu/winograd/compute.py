"""Convolution by Winograd's forms: F(4x4, 3x3) takes 36 multiplications for 16 outputs instead of 144, F(2x2, 3x3) 16
for 4 instead of 36 - for the family.

    V[i, j]  = B^T d B                       input tile d, 6x6 stepping by 4, or 4x4 stepping by 2
    M[i, j]  = sum_c V[i, j, c] * U[i, j, c, o]        36 or 16 small GEMMs;  U = G g G^T at compile time
    Y        = A^T M A                       4x4 or 2x2 outputs

The matrices come from Toom-Cook interpolation at 0, 1, -1, 1/2, -2 and infinity, or at 0, 1, -1 and infinity (Lavin &
Gray 2016, section 5.1, for the algorithm; Barabasz et al. 2018, "Error analysis and improving the accuracy of Winograd
convolution", table 3, for the points: the usual 0, +-1, +-2 err twice as much). Against float64, for outputs of
variance 1 and 64 to 512 channels (56x56 to 7x7), F(4x4)'s err 1.1e-6 to 2.5e-6 rms and 2.9e-5 at most, F(2x2)'s 2.6e-7
to 6.1e-7 and 3.2e-6, the direct form's 4.2e-7 to 1.0e-6 and 8.7e-6: F(2x2) errs less than it, its sums being nine times
shorter. `exact=True` turns both off.

U is 4 times as large as the weights for F(4x4), 1.8 times for F(2x2): where U comes from memory, or few 4x4 tiles cover
the image (7x7: 64 outputs computed for 49), the small tile is ahead.

Other windows have a form along each axis (`_winograd.py`): 5x5 is F(2x2, 5x5), with tiles of 6x6 as well; 2x2, which
transposed convolutions of 4x4 by 2 are made of, F(4x4, 2x2). A window along one axis alone (1xk, kx1, signals) has
F(4, 3), F(4, 5) or, of k taps, F(4, 4) for every four of them: a part's first input is a tile behind that of the part
before, so that all parts multiply the same transformed tiles::

    k = 11   7 elements of a tile, 3 parts: 21 multiplications for 4 outputs instead of 44

They err 5e-7 to 1e-6 rms. The tile of a window with dilation d reads every d-th pixel: the phases are pictures of their
own. A signal's tiles lie along its rows, as those of a picture do, for its cores share these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from tvm import relax, runtime, te, tirx

from tvmopt.lowering.common import (
    INJECTIVE,
    NAMED_SIZE,
    call_fusable,
    call_with_pattern,
    constant,
    image_sizes,
    is_open,
    known,
    least_size,
    named_size,
    operand_types,
    pictures,
    sizes,
    static_shape,
)
from tvmopt.lowering.repeats import packed_once
from tvmopt.lowering.window import border_marks
from tvmopt.schedules.cpu._panels import pack_panels
from tvmopt.schedules.cpu._winograd import (
    AT_ONCE,
    FORM,
    FORMS,
    KERNEL,
    Form,
    Window,
    choose_form,
    forms,
    output_tile,
)
from tvmopt.scheduling.byte_cost import Product, float_traffic
from tvmopt.scheduling.cost_model import choose_tile, shared_panels
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.open_borders import COUNT, FLAT, REACH, SQUARE
from tvmopt.targets import Machine

POINTS: dict[int, tuple[float, ...]] = {
    1: (),
    4: (0.0, 1.0, -1.0),
    5: (0.0, 1.0, -1.0, 0.5),
    6: (0.0, 1.0, -1.0, 0.5, -2.0),
    7: (0.0, 1.0, -1.0, 0.5, -2.0, -0.5),
    8: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0),
}
"""By the size of the tile: where Toom-Cook interpolates, besides infinity."""
COLUMNS = 512
"""Columns of a product of weights: it stays in the caches, and is below what OpenBLAS gives to several threads, which
then wait for each other for longer than they multiply."""
OPEN_TILES = 8
"""Tiles of a row that the widest register tile has where the image is open."""
BF16_MARGIN = 1.25
"""How far ahead fp32's Winograd must be to replace a bf16 convolution: measured before its weights lay in one run."""


@cache
def matrices(out: int, taps: int = KERNEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T [out, tile], G [tile, taps], B^T [tile, tile]) in float64, tile = out + taps - 1.

    With points p_i: A^T[k, i] = p_i^k, G[i, k] = p_i^k / prod_{j != i}(p_i - p_j), and row i of B^T holds the
    coefficients of prod_{j != i}(x - p_j); the last row and column stand for infinity.

    >>> at, g, bt = matrices(4)
    >>> d, k = np.arange(6.0) ** 2, np.array([1.0, -2.0, 3.0])
    >>> np.allclose(at @ ((g @ k) * (bt @ d)), [d[i : i + 3] @ k for i in range(4)])
    True
    >>> matrices(2)[0].astype(int).tolist()
    [[1, 1, 1, 0], [0, 1, -1, 1]]
    """
    tile = out + taps - 1
    points = POINTS[tile]
    at, g, bt = np.zeros((out, tile)), np.zeros((tile, taps)), np.zeros((tile, tile))
    for i, p in enumerate(points):
        others = [q for j, q in enumerate(points) if j != i]
        at[:, i] = [p**k for k in range(out)]
        g[i] = [p**k / np.prod([p - q for q in others]) for k in range(taps)]
        bt[i, : len(others) + 1] = polynomial.polyfromroots(others)
    at[-1, -1] = g[-1, -1] = 1.0
    bt[-1] = polynomial.polyfromroots(points)
    return at, g, bt


def transformed(weight: np.ndarray, form: Form, nr: int) -> relax.Expr:
    """U = G g G^T of weights [O, ky, kx, C], computed in float64: float32 panels [P, tile, tile, parts, C, nr], each of
    which is read from end to end; a form of one part has no axis of parts.

    U[i, j] is one product of a part's taps with the matrix G x G, whose columns are all channels. It is taken
    :data:`COLUMNS` columns at a time: a tenth of the time that `einsum` takes, which multiplies by G twice. The panels
    are written where the constant lies, as new memory for a copy takes as long.

    >>> _, g, _ = matrices(4)
    >>> weight = np.arange(2 * 9 * 3, dtype="float32").reshape(2, 3, 3, 3)
    >>> panels = np.from_dlpack(transformed(weight, Form.square(4), nr=2).value)
    >>> panels.shape, np.allclose(panels[0, :, :, 1, 0], g @ weight[0, :, :, 1] @ g.T)
    ((1, 6, 6, 3, 2), True)
    """
    return packed_once(weight, ("winograd", form, nr), lambda: _transformed(weight, form, nr))


def _transformed(weight: np.ndarray, form: Form, nr: int) -> relax.Expr:
    both = np.kron(*(matrices(axis.out, axis.taps)[1] for axis in (form.rows, form.cols)))
    panels, channels = -(-weight.shape[0] // nr), weight.shape[3]
    parts = (form.parts,) if form.parts > 1 else ()
    made = runtime.empty((panels, form.rows.tile, form.cols.tile, *parts, channels, nr), "float32")
    view = np.from_dlpack(made).reshape(panels, form.places, form.parts, channels * nr)
    for part, taps in enumerate(_parts(weight, form)):
        packed = pack_panels(taps.transpose(1, 2, 3, 0), nr).reshape(both.shape[1], panels, channels * nr)
        for panel in range(panels):
            for first in range(0, channels * nr, COLUMNS):
                some = slice(first, first + COLUMNS)
                view[panel, :, part, some] = both @ packed[:, panel, some].astype("float64")
    return relax.const(made)


def _parts(weight: np.ndarray, form: Form) -> Iterator[np.ndarray]:
    """The taps of each part, zeros behind the last."""
    high, wide = (axis.parts * axis.taps for axis in (form.rows, form.cols))
    _, own_high, own_wide, _ = weight.shape
    if (high, wide) != (own_high, own_wide):
        weight = np.pad(weight, ((0, 0), (0, high - own_high), (0, wide - own_wide), (0, 0)))
    for y in range(0, high, form.rows.taps):
        for x in range(0, wide, form.cols.taps):
            yield weight[:, y : y + form.rows.taps, x : x + form.cols.taps]


def instead_of_16_bits(call: relax.Call, machine: Machine, precision: str) -> bool:
    """Whether a convolution in NHWC is faster by Winograd in fp32 than directly in bf16, or with weights of fp16."""
    a, (x, w) = call.attrs, call.args
    xs, ws = pictures(x), static_shape(w)
    if (a.data_layout, a.kernel_layout) != ("NHWC", "OHWI") or int(a.groups) != 1 or xs is None or ws is None:
        return False
    opened = [not isinstance(d, int) for d in xs[1:3]]
    if any(opened) and not all(opened):
        return False  # :func:`conv2d` has no form for it
    if ws[1:3] != (KERNEL, KERNEL) or [int(v) for v in (*a.strides, *a.dilation)] != [1, 1, 1, 1]:
        return False
    top, left, bottom, right = (int(v) for v in a.padding)
    height, width = (NAMED_SIZE, NAMED_SIZE) if all(opened) else xs[1:3]
    size = (height + top + bottom - 2, width + left + right - 2)
    tiles = machine.has_tiles and not any(opened)
    rate = machine.tile_macs / (machine.fma_ports * machine.lanes()) if tiles else machine.bf16_rate
    rate, margin = (rate, BF16_MARGIN) if precision == "bf16" else (1.0, 1.0)  # weights of fp16 are multiplied as fp32
    return 0 not in size and output_tile(*size, xs[3], ws[0], known(xs[0]), machine, rate, margin) > 1


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d`, stride 1, one group, constant weights, a window that has forms, where it pays."""
    a = call.attrs
    if (a.data_layout, a.kernel_layout, a.out_layout) != ("NHWC", "OHWI", "NHWC") or int(a.groups) != 1:
        return None
    x, w = call.args
    xs, ws = (image_sizes(call) or (None,))[0], static_shape(w)
    kernel = None if ws is None else (ws[1], ws[2])
    if kernel is None or kernel == (1, 1) or not any(forms(kernel)):
        return None
    dilation = int(a.dilation[0]), int(a.dilation[1])
    if [int(v) for v in a.strides] != [1, 1]:
        return Declined("a stride")
    value = constant(bb, w)
    if xs is None or value is None:
        return Declined("an empty image" if xs is None else "a weight that is no constant")
    if {str(x.ty.dtype), str(w.ty.dtype)} != {"float32"}:
        return Declined(operand_types(call))
    if is_open(xs[1:3]):
        if dilation == (1, 1) and kernel[0] == kernel[1]:
            return _open(bb, call, value, xs, machine)
        if kernel[0] == 1 and not is_open(xs[1:2]):
            return _open_row(bb, call, value, xs, machine)
        return Declined("an open image with a dilation, or of a window that is neither square nor one row")
    batch, height, width, in_c = xs
    if dilation != (1, 1) and is_open((batch,)):
        return Declined("a dilation, and an open batch")  # samples are tiles of one loop, and phases another one
    top, left, bottom, right = (int(v) for v in a.padding)
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    size = height + top + bottom - spans[0], width + left + right - spans[1]
    out_c = value.shape[0]
    form, _ = choose_form(Window(kernel, dilation, size, in_c, out_c, known(batch)), machine)
    if form is None:
        return Declined("the direct form is as fast")
    plan = Plan(form, dilation, size, (top, left), height == size[0] == kernel[0] == 1)
    nr = choose_tile(plan.tiles[0] * plan.tiles[1], out_c, machine, rows=plan.register_rows).nr

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return winograd_te(plan.bordered(data, (height, width)), weight, (data.shape[0], *size, out_c), plan)

    window = value.swapaxes(1, 2) if plan.signal else value
    return call_fusable(bb, compute, [x, transformed(window, plan.form, nr)], "winograd")


def _open(
    bb: relax.BlockBuilder, call: relax.Call, value: np.ndarray, xs: Sequence[Any], machine: Machine
) -> relax.Expr | Declined:
    """A square window over pictures of open height and width."""
    batch, height, width, in_c = xs
    if not is_open((height,)) & is_open((width,)):
        return Declined("an open image of known height or width")
    top, left = (int(v) for v in call.attrs.padding[:2])
    size, out_c, taps = (sizes(call) or ())[1:3], value.shape[0], value.shape[1]
    named = named_size(bb, size[:1]), named_size(bb, size[1:])
    form, _ = choose_form(Window((taps, taps), (1, 1), named, in_c, out_c, known(batch)), machine)
    if form is None:
        return Declined("the direct form is as fast")
    if (least := min(least_size(bb, d) for d in size)) < form.rows.out:
        if least < FORMS[-1] or taps != KERNEL:
            return Declined("an open image may be smaller than an output tile")
        form = Form.square(FORMS[-1])
    nr = choose_tile(form.rows.tiles(named[0]) * form.cols.tiles(named[1]), out_c, machine, rows=OPEN_TILES).nr

    def compute(data: te.Tensor, weight: te.Tensor, *open_size: tirx.Expr) -> te.Tensor:
        plan = Plan(form, (1, 1), (open_size[0], open_size[1]), (top, left))
        pad = plan.bordered(data, data.shape[1:3], border_marks(top, left, in_c))
        return winograd_te(pad, weight, (data.shape[0], *open_size, out_c), plan)

    return call_fusable(bb, compute, [call.args[0], transformed(value, form, nr)], "winograd", wanted=size)


def _open_row(
    bb: relax.BlockBuilder, call: relax.Call, value: np.ndarray, xs: Sequence[Any], machine: Machine
) -> relax.Expr | Declined:
    """A window over pictures of one row of open width, which signals are. The phases of a dilation are pictures of
    their own, which kernels before and behind take apart and join."""
    batch, height, _, in_c = xs
    top, left, bottom, _ = (int(v) for v in call.attrs.padding)
    (_, wide), out_c, phases = (sizes(call) or ())[1:3], value.shape[0], int(call.attrs.dilation[1])
    if height + top + bottom > 1:
        return Declined("several rows of open width")
    named = named_size(bb, [wide])
    form, _ = choose_form(Window((1, value.shape[2]), (1, phases), (1, named), in_c, out_c, known(batch)), machine)
    if form is None:
        return Declined("the direct form is as fast")
    nr = choose_tile(form.cols.tiles(-(-named // phases)), out_c, machine, rows=OPEN_TILES).nr
    if known(batch) * phases == 1:
        nr = shared_panels(nr, out_c, machine)
    data, own = call.args[0], wide
    if phases > 1:
        own = (wide + (phases - 1)) // phases
        data, left = bb.emit(_apart(bb, data, phases, left, own + (value.shape[2] - 1))), 0

    def compute(data: te.Tensor, weight: te.Tensor, wide: tirx.Expr) -> te.Tensor:
        plan = Plan(form, (1, 1), (1, wide), (0, left))
        pad = plan.bordered(data, (1, data.shape[2]), border_marks(0, left, in_c))
        return winograd_te(pad, weight, (data.shape[0], 1, wide, out_c), plan)

    done = call_fusable(bb, compute, [data, transformed(value, form, nr)], "winograd", wanted=[own])
    return _joined(bb, bb.emit(done), phases, wide) if phases > 1 else done


def _apart(bb: relax.BlockBuilder, data: relax.Expr, phases: int, left: int, wide: Any) -> relax.Expr:
    """The phases of pictures of one row, with `left` pixels before it: pictures of one row of `wide` pixels; zeros
    where there is none."""

    def split(data: te.Tensor, wide: tirx.Expr) -> te.Tensor:
        zero, (count, _, width, channels) = tirx.const(0.0, "float32"), data.shape

        def at(n: Any, y: Any, x: Any, c: Any) -> Any:
            place = x * phases + n % phases - left
            return te.if_then_else(te.all(place >= 0, place < width), data(n // phases, 0, place, c), zero)

        return te.compute((count * phases, 1, wide, channels), at, name="phases")

    return call_with_pattern(bb, split, [data], "phases", INJECTIVE, wanted=[wide])


def _joined(bb: relax.BlockBuilder, data: relax.Expr, phases: int, wide: Any) -> relax.Expr:
    """The pictures of one row, of `wide` pixels, of their phases."""

    def join(data: te.Tensor, wide: tirx.Expr) -> te.Tensor:
        shape = (data.shape[0] // phases, 1, wide, data.shape[3])
        return te.compute(shape, lambda n, y, x, c: data(n * phases + x % phases, 0, x // phases, c), name="joined")

    return call_with_pattern(bb, join, [data], "joined", INJECTIVE, wanted=[wide])


@dataclass(frozen=True)
class Plan:
    """How a convolution is laid out.

    Attributes:
        given: the form along the picture's rows and columns. dilation: the phases, likewise. size: of the result.
        before: the border above and left of the picture. signal: a picture of one row, whose window has one: its
            columns are taken for rows.
    """

    given: Form
    dilation: tuple[int, int]
    size: tuple[Any, Any]
    before: tuple[int, int]
    signal: bool = False

    @property
    def form(self) -> Form:
        """That of the rows and columns of tiles."""
        return Form(self.given.cols, self.given.rows) if self.signal else self.given

    def turned(self, pair: Sequence[Any]) -> tuple[Any, Any]:
        """Something of rows and columns, or of columns and rows."""
        return (pair[1], pair[0]) if self.signal else (pair[0], pair[1])

    @property
    def tiles(self) -> tuple[Any, Any]:
        """Rows and columns of tiles of a phase."""
        found = []
        axes = self.form.rows, self.form.cols
        for axis, size, phases in zip(axes, self.turned(self.size), self.turned(self.dilation), strict=True):
            one = size if phases == 1 else -(-size // phases)
            found.append((one + (axis.out - 1)) // axis.out)
        if self.signal and found[0] > AT_ONCE:
            found[0] = -(-found[0] // AT_ONCE) * AT_ONCE
        return found[0], found[1]

    @property
    def flat(self) -> bool:
        """Whether the picture is open along the columns alone."""
        return is_open(self.size[1:]) and not is_open(self.size[:1])

    @property
    def register_rows(self) -> int:
        """Tiles beside each other, which a register tile may take."""
        return int(self.tiles[0] if self.tiles[1] == 1 else self.tiles[1])

    def bordered(self, data: te.Tensor, picture: Sequence[Any], marks: Mapping[str, Any] | None = None) -> te.Tensor:
        """The pictures with their border: [n, phases, y, x, c], or [n, phases, x, 1, c] of signals."""
        zero, (high, wide), (top, left) = tirx.const(0.0, "float32"), picture, self.before
        axes = self.form.rows, self.form.cols
        own = [n * a.out + (a.parts * a.out + a.taps - 1 - a.out) for n, a in zip(self.tiles, axes, strict=True)]
        if self.flat:  # the last tile may begin at the last pixel
            own[1] = own[1] + (self.form.cols.out - 1)

        def at(n: Any, *place: Any) -> Any:
            *some, u, v, c = place
            y, x = self.spread(self.turned((u, v)), some)
            inside = te.all(y >= top, y < high + top, x >= left, x < wide + left)
            return te.if_then_else(inside, data(n, y - top, x - left, c), zero)

        shape = (data.shape[0], *self.phases, *own, data.shape[3])
        return te.compute(shape, at, name="pad", attrs={"tvmopt.kernel": "pad", **(marks or {})})

    @property
    def phases(self) -> tuple[int, ...]:
        """Of rows, and of columns, where there are several."""
        return tuple(phases for phases in self.dilation if phases > 1)

    def spread(self, pair: Sequence[Any], phases: Sequence[Any]) -> tuple[Any, Any]:
        """The row and column of a picture that are this pair in their phases."""
        some = iter(phases)
        found = [i * d + next(some) if d > 1 else i for i, d in zip(pair, self.dilation, strict=True)]
        return found[0], found[1]

    def gathered(self, pair: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
        """The phases of a row and a column, and their places in these."""
        several = [(i, d) for i, d in zip(pair, self.dilation, strict=True) if d > 1]
        inside = [i // d if d > 1 else i for i, d in zip(pair, self.dilation, strict=True)]
        return tuple(i % d for i, d in several), (inside[0], inside[1])


def winograd_te(pad: te.Tensor, weight: te.Tensor, shape: tuple[Any, Any, Any, int], plan: Plan) -> te.Tensor:
    """The blocks of the module's docstring, each transform in two steps: rows, then columns."""
    form, (rows, cols) = plan.form, plan.tiles
    down, across = (matrices(axis.out, axis.taps) for axis in (form.rows, form.cols))
    high, wide = form.rows.out, form.cols.out
    marks = {SQUARE: wide, REACH: form.cols.parts * form.cols.taps - 1} if is_open(plan.size) else {}
    if plan.flat:
        marks[FLAT] = 1
    pictures, in_c = (pad.shape[0], *plan.phases), int(pad.shape[-1])
    panels, nr, tile = int(weight.shape[0]), int(weight.shape[-1]), (form.rows.tile, form.cols.tile)
    read = [n + a.parts - 1 if a.parts > 1 else n for n, a in ((rows, form.rows), (cols, form.cols))]

    def tag(name: str, **more: Any) -> dict[str, Any]:
        inside = {COUNT: 2} if marks and name != "unpack" else {}
        return {"name": name, "attrs": {"tvmopt.kernel": name, **marks, **inside, **more}}

    def padded(i: Any, j: Any, place: Sequence[Any]) -> Any:
        *picture, y, x, c = place
        return pad(*picture, y * high + i, x * wide + j, c)

    half = te.compute(
        (*tile, *pictures, *read, in_c),
        lambda i, j, *place: combine(down[2], i, lambda k: padded(k, j, place)),
        **tag("wino_half_in"),
    )
    v = te.compute(
        (*tile, *pictures, *read, in_c),
        lambda i, j, *place: combine(across[2], j, lambda k: half(i, k, *place)),
        **tag("wino_in"),
    )
    c, s = te.reduce_axis((0, in_c), name="c"), te.reduce_axis((0, form.parts), name="s")

    def product(i: Any, j: Any, *place: Any) -> Any:
        *picture, y, x, p, o = place
        if form.parts == 1:
            return te.sum(v(i, j, *picture, y, x, c) * weight(p, i, j, c, o), axis=[c])
        here = v(i, j, *picture, y + s // form.cols.parts, x + s % form.cols.parts, c)
        return te.sum(here * weight(p, i, j, s, c, o), axis=[s, c])

    described = (high, form.rows.parts, wide, form.cols.parts, *plan.dilation, int(plan.signal))
    m = te.compute(
        (*tile, *pictures, rows, cols, panels, nr),
        product,
        **tag("winograd", **{FORM: ",".join(map(str, described))}),
    )
    half_out = te.compute(
        (high, tile[1], *pictures, rows, cols, panels, nr),
        lambda i, j, *place: combine(down[0], i, lambda k: m(k, j, *place)),
        **tag("wino_half_out"),
    )
    whole = te.compute(
        (high, wide, *pictures, rows, cols, panels, nr),
        lambda i, j, *place: combine(across[0], j, lambda k: half_out(i, k, *place)),
        **tag("wino_out"),
    )

    if not plan.phases:

        def unpacked(n: Any, y: Any, x: Any, o: Any) -> Any:
            u, v = plan.turned((y, x))
            return whole(u % high, v % wide, n, u // high, v // wide, o // nr, o % nr)

        return te.compute(shape, unpacked, **tag("unpack"))
    unpack = te.compute(
        (*pictures, *plan.turned([-(-size // d) for size, d in zip(shape[1:3], plan.dilation, strict=True)]), shape[3]),
        lambda *place: whole(
            place[-3] % high, place[-2] % wide, *place[:-3], place[-3] // high, place[-2] // wide, place[-1] // nr,
            place[-1] % nr,
        ),
        **tag("unpack"),
    )  # fmt: skip

    def gathered(n: Any, y: Any, x: Any, o: Any) -> Any:
        phases, inside = plan.gathered((y, x))
        return unpack(n, *phases, *plan.turned(inside), o)

    return te.compute(shape, gathered, **tag("picture"))


def combine(matrix: np.ndarray, row: tirx.Expr, term: Callable[[int], Any]) -> tirx.Expr:
    """sum_k matrix[row, k] * term(k), zeros left out; `row` becomes a constant once its loop is unrolled, and the
    selection with it."""
    result = None
    for r in range(matrix.shape[0]):
        value = None
        for k, factor in enumerate(matrix[r]):
            if factor == 0:
                continue
            t = term(k) if factor == 1 else term(k) * tirx.const(float(factor), "float32")
            value = t if value is None else value + t
        result = value if result is None else tirx.Select(row == r, value, result)
    return result


def keeps_fp32(name: str, call: relax.Call, machine: Machine, precision: str) -> str | None:
    """Why a convolution stays in fp32 with `--precision bf16` or `fp16`."""
    faster = name == "nn.conv2d" and instead_of_16_bits(call, machine, precision)
    return "Winograd in fp32 is faster" if faster else None


def float_cycles(product: Product, machine: Machine) -> float | None:
    """One core's cycles for a convolution of quantised numbers in the form that this family would choose for it."""
    one = machine.with_cores(1)
    known = (product.height, product.width, product.channels, product.columns, product.samples)
    if product.taps != (KERNEL, KERNEL) or not product.dense or product.groups > 1 or product.second or 0 in known:
        return None
    height, width, channels, columns, samples = known
    window = Window(product.taps, (1, 1), (height, width), channels, columns, samples)
    form, cycles = choose_form(window, one)
    return None if form is None else cycles + float_traffic(product, one)
