"""3x3 convolution by Winograd's F(4x4, 3x3) or F(2x2, 3x3): 36 multiplications for 16 outputs instead of 144, or 16 for
4 instead of 36 - for the family.

    V[i, j]  = B^T d B           input tile d, 6x6 stepping by 4, or 4x4 stepping by 2
    M[i, j]  = sum_c V[i, j, c] * U[i, j, c, o]        36 or 16 small GEMMs;  U = G g G^T at compile time
    Y        = A^T M A           4x4 or 2x2 outputs

The matrices come from Toom-Cook interpolation at 0, 1, -1, 1/2, -2 and infinity, or at 0, 1, -1 and infinity (Lavin &
Gray 2016, section 5.1, for the algorithm; Barabasz et al. 2018, "Error analysis and improving the accuracy of Winograd
convolution", table 3, for the points: the usual 0, +-1, +-2 err twice as much). Against float64, for outputs of
variance 1 and 64 to 512 channels (56x56 to 7x7), F(4x4)'s err 1.1e-6 to 2.5e-6 rms and 2.9e-5 at most, F(2x2)'s 2.6e-7
to 6.1e-7 and 3.2e-6, the direct form's 4.2e-7 to 1.0e-6 and 8.7e-6: F(2x2) errs less than it, its sums being nine times
shorter. `exact=True` turns both off.

U is 4 times as large as the weights for F(4x4), 1.8 times for F(2x2): where U comes from memory, or few 4x4 tiles cover
the image (7x7: 64 outputs computed for 49), the small tile is ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from tvm import relax, runtime, te, tirx

from tvmopt.lowering.common import (
    NAMED_SIZE,
    call_fusable,
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
from tvmopt.schedules.cpu._winograd import FORMS, KERNEL, output_tile, winograd_cycles
from tvmopt.scheduling.byte_cost import Product, float_traffic
from tvmopt.scheduling.cost_model import choose_tile
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.open_borders import REACH, SQUARE
from tvmopt.targets import Machine

POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 0.5, -2.0)}
"""By the size of the output tile: where Toom-Cook interpolates, besides infinity."""
AT_ONCE = 512
"""Columns of a product of weights: it stays in the caches, and is below what OpenBLAS gives to several threads, which
then wait for each other for longer than they multiply."""
OPEN_TILES = 8
"""Tiles of a row that the widest register tile has where the image is open."""
BF16_MARGIN = 1.25
"""How far ahead fp32's Winograd must be to replace a bf16 convolution: measured before its weights lay in one run."""


@cache
def matrices(out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T [out, tile], G [tile, 3], B^T [tile, tile]) in float64, tile = out + 2.

    With points p_i: A^T[k, i] = p_i^k, G[i, k] = p_i^k / prod_{j != i}(p_i - p_j), and row i of B^T holds the
    coefficients of prod_{j != i}(x - p_j); the last row and column stand for infinity.

    >>> at, g, bt = matrices(4)
    >>> d, k = np.arange(6.0) ** 2, np.array([1.0, -2.0, 3.0])
    >>> np.allclose(at @ ((g @ k) * (bt @ d)), [d[i : i + 3] @ k for i in range(4)])
    True
    >>> matrices(2)[0].astype(int).tolist()
    [[1, 1, 1, 0], [0, 1, -1, 1]]
    """
    tile, points = out + KERNEL - 1, POINTS[out]
    at, g, bt = np.zeros((out, tile)), np.zeros((tile, KERNEL)), np.zeros((tile, tile))
    for i, p in enumerate(points):
        others = [q for j, q in enumerate(points) if j != i]
        at[:, i] = [p**k for k in range(out)]
        g[i] = [p**k / np.prod([p - q for q in others]) for k in range(KERNEL)]
        bt[i, : len(others) + 1] = polynomial.polyfromroots(others)
    at[-1, -1] = g[-1, -1] = 1.0
    bt[-1] = polynomial.polyfromroots(points)
    return at, g, bt


def transformed(weight: np.ndarray, out: int, nr: int) -> relax.Expr:
    """U = G g G^T of weights [O, 3, 3, C], computed in float64: float32 panels [P, tile, tile, C, nr], each of which is
    read from end to end.

    U[i, j] is one product of the nine taps with the matrix G x G, whose columns are all channels. It is taken
    :data:`AT_ONCE` columns at a time: a tenth of the time that `einsum` takes, which multiplies by G twice. The panels
    are written where the constant lies, as new memory for a copy takes as long.

    >>> _, g, _ = matrices(4)
    >>> weight = np.arange(2 * 9 * 3, dtype="float32").reshape(2, 3, 3, 3)
    >>> panels = np.from_dlpack(transformed(weight, 4, nr=2).value)
    >>> panels.shape, np.allclose(panels[0, :, :, 1, 0], g @ weight[0, :, :, 1] @ g.T)
    ((1, 6, 6, 3, 2), True)
    """
    return packed_once(weight, ("winograd", out, nr), lambda: _transformed(weight, out, nr))


def _transformed(weight: np.ndarray, out: int, nr: int) -> relax.Expr:
    _, g, _ = matrices(out)
    tile, channels = len(g), weight.shape[3]
    taps = pack_panels(weight.transpose(1, 2, 3, 0), nr).reshape(KERNEL * KERNEL, -1, channels * nr)
    both, columns = np.kron(g, g), taps.shape[2]
    panels = runtime.empty((taps.shape[1], tile, tile, channels, nr), "float32")
    made = np.from_dlpack(panels).reshape(-1, tile * tile, columns)
    for panel in range(len(made)):
        for first in range(0, columns, AT_ONCE):
            some = slice(first, first + AT_ONCE)
            made[panel, :, some] = both @ taps[:, panel, some].astype("float64")
    return relax.const(panels)


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
    """`R.nn.conv2d`, 3x3, stride 1, one group, constant weights, where it pays."""
    a = call.attrs
    if (a.data_layout, a.kernel_layout, a.out_layout) != ("NHWC", "OHWI", "NHWC") or int(a.groups) != 1:
        return None
    x, w = call.args
    xs, ws = (image_sizes(call) or (None,))[0], static_shape(w)
    if ws is None or ws[1:3] != (KERNEL, KERNEL):
        return None
    if [int(v) for v in (*a.strides, *a.dilation)] != [1, 1, 1, 1]:
        return Declined("a stride or a dilation")
    value = constant(bb, w)
    if xs is None or value is None:
        return Declined("an empty image" if xs is None else "a weight that is no constant")
    if {str(x.ty.dtype), str(w.ty.dtype)} != {"float32"}:
        return Declined(operand_types(call))
    batch, height, width, in_c = xs
    out_c = value.shape[0]
    top, left, bottom, right = (int(v) for v in a.padding)
    opened = is_open((height, width))
    if opened and not is_open((height,)) & is_open((width,)):
        return Declined("an open image of known height or width")
    size = (sizes(call) or ())[1:3] if opened else (height + top + bottom - 2, width + left + right - 2)
    out_h, out_w = (named_size(bb, [d]) for d in size) if opened else size
    out = output_tile(out_h, out_w, in_c, out_c, known(batch), machine) if 0 not in (out_h, out_w) else 1
    if out == 1:
        return Declined("the direct form is as fast")
    if opened and (least := min(least_size(bb, d) for d in size)) < out:
        if least < FORMS[-1]:
            return Declined("an open image may be smaller than an output tile")
        out = FORMS[-1]
    rows, cols = -(-out_h // out), -(-out_w // out)
    nr = choose_tile(rows * cols, out_c, machine, rows=OPEN_TILES if opened else cols).nr
    packed = transformed(value, out, nr)

    def compute(data: te.Tensor, weight: te.Tensor, *open_size: tirx.Expr) -> te.Tensor:
        zero, (high, wide) = tirx.const(0.0, "float32"), data.shape[1:3] if opened else (height, width)
        own_h, own_w = open_size or size
        bordered = ((own_h + (out - 1)) // out * out + 2, (own_w + (out - 1)) // out * out + 2)
        pad = te.compute(
            (data.shape[0], *bordered, in_c),
            lambda n, y, x_, c: te.if_then_else(
                te.all(y >= top, y < high + top, x_ >= left, x_ < wide + left),
                data(n, y - top, x_ - left, c),
                zero,
            ),
            name="pad",
            attrs={"tvmopt.kernel": "pad", **(border_marks(top, left, in_c) if opened else {})},
        )
        return winograd_te(pad, weight, (own_h, own_w, out_c), out)

    return call_fusable(bb, compute, [x, packed], "winograd", wanted=size if opened else ())


def winograd_te(pad: te.Tensor, weight: te.Tensor, shape: tuple[Any, Any, int], out: int) -> te.Tensor:
    """The blocks of the module's docstring, each transform in two steps: rows, then columns."""
    at, _, bt = matrices(out)
    batch, (out_h, out_w, out_c) = pad.shape[0], shape
    tile, rows, cols = out + KERNEL - 1, (out_h + (out - 1)) // out, (out_w + (out - 1)) // out
    marks = {} if isinstance(out_h, int) else {SQUARE: out, REACH: KERNEL - 1}
    in_c, nr = int(pad.shape[3]), int(weight.shape[4])

    def tag(name: str) -> dict[str, Any]:
        return {"name": name, "attrs": {"tvmopt.kernel": name, **marks}}

    half = te.compute(
        (tile, tile, batch, rows, cols, in_c),
        lambda i, j, n, y, x, c: combine(bt, i, lambda k: pad(n, y * out + k, x * out + j, c)),
        **tag("wino_half_in"),
    )
    v = te.compute(
        (tile, tile, batch, rows, cols, in_c),
        lambda i, j, n, y, x, c: combine(bt, j, lambda k: half(i, k, n, y, x, c)),
        **tag("wino_in"),
    )
    c = te.reduce_axis((0, in_c), name="c")
    m = te.compute(
        (tile, tile, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: te.sum(v(i, j, n, y, x, c) * weight(p, i, j, c, o), axis=[c]),
        **tag("winograd"),
    )
    half_out = te.compute(
        (out, tile, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: combine(at, i, lambda k: m(k, j, n, y, x, p, o)),
        **tag("wino_half_out"),
    )
    whole = te.compute(
        (out, out, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: combine(at, j, lambda k: half_out(i, k, n, y, x, p, o)),
        **tag("wino_out"),
    )
    return te.compute(
        (batch, out_h, out_w, out_c),
        lambda n, y, x, o: whole(y % out, x % out, n, y // out, x // out, o // nr, o % nr),
        **tag("unpack"),
    )


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
    out = output_tile(*known, one)
    if out == 1:
        return None
    rows, cols = -(-product.height // out), -(-product.width // out)
    form = winograd_cycles(out, rows, cols, product.channels, product.columns, product.samples, one)
    return form + float_traffic(product, one)
