"""3x3 convolution by Winograd's F(4x4, 3x3): 36 multiplications for 16 outputs instead of 144 - for the family.

    V[i, j]  = B^T d B           6x6 input tile d, stepping by 4
    M[i, j]  = sum_c V[i, j, c] * U[i, j, c, o]        36 small GEMMs;  U = G g G^T at compile time
    Y        = A^T M A           4x4 outputs

The matrices come from Toom-Cook interpolation at 0, 1, -1, 1/2, -2 and infinity (Lavin & Gray 2016, section 5.1, for
the algorithm; Barabasz et al. 2018, "Error analysis and improving the accuracy of Winograd convolution", table 3, for
the points: the usual 0, +-1, +-2 err twice as much). Against float64 its outputs err about 9 times as much as the
direct form's: 1.5e-6 rms, 1.5e-5 at most, for outputs of variance 1 (see tests); `exact=True` turns it off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from tvm import relax, te, tirx

from tvmopt.legalize.common import call_fusable, constant, static_shape
from tvmopt.legalize.matmul import pack_panels
from tvmopt.scheduling.amx import has_tiles
from tvmopt.scheduling.tile import choose_tile, step_cycles
from tvmopt.targets import Machine

POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)
OUT, KERNEL = 4, 3
TILE = OUT + KERNEL - 1
BF16_RATE = 1.86
"""Operations by vdpbf16ps for one by fp32 FMA: measured in C on a Zen 5, both in one run. AMX tiles: `tile_macs`."""
BF16_MARGIN = 1.25
"""How far ahead fp32's Winograd must be to replace a bf16 convolution: measured before its weights lay in one run."""


@cache
def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T [4, 6], G [6, 3], B^T [6, 6]) in float64.

    With points p_i: A^T[k, i] = p_i^k, G[i, k] = p_i^k / prod_{j != i}(p_i - p_j), and row i of B^T holds the
    coefficients of prod_{j != i}(x - p_j); the last row and column stand for infinity.

    >>> at, g, bt = matrices()
    >>> d, k = np.arange(6.0) ** 2, np.array([1.0, -2.0, 3.0])
    >>> np.allclose(at @ ((g @ k) * (bt @ d)), [d[i : i + 3] @ k for i in range(4)])
    True
    """
    at, g, bt = np.zeros((OUT, TILE)), np.zeros((TILE, KERNEL)), np.zeros((TILE, TILE))
    for i, p in enumerate(POINTS):
        others = [q for j, q in enumerate(POINTS) if j != i]
        at[:, i] = [p**k for k in range(OUT)]
        g[i] = [p**k / np.prod([p - q for q in others]) for k in range(KERNEL)]
        bt[i, : len(others) + 1] = polynomial.polyfromroots(others)
    at[-1, -1] = g[-1, -1] = 1.0
    bt[-1] = polynomial.polyfromroots(POINTS)
    return at, g, bt


def pays(
    out_h: int, out_w: int, in_c: int, out_c: int, batch: int, machine: Machine, rate: float = 1.0, margin: float = 1.0
) -> bool:
    """Whether F(4x4) beats the direct form: the multiplications it saves against the transforms and U's traffic.

    `rate`: how much faster the direct form multiplies than fp32 does (BF16_RATE with `--precision bf16`, 16 by tiles).

    Direct:  9 * C * O / lanes FMAs a pixel, at full rate.
    F(4x4):  36 * C * O / lanes FMAs a tile of 16 pixels (tiles may hang over the edge) in register tiles as high as the
             image has tiles, which few tiles leave bound by FMA latency; about 8 vector operations an element of V and
             of M (36 of each a tile).
    Weights  9 or 36 * C * O * 4 bytes, once: see :func:`stream_cycles`. Cores share the memory, not the arithmetic.
    Both sums were compared with whole models on Zen 5. With two cores Winograd's 14x14 layers of 160 to 256 channels,
    1.17 times as fast by these sums, make Inception v2 0.96 and ResNet-50 0.98 of the time of the direct form.
    """
    rows, cols = -(-out_h // OUT), -(-out_w // OUT)
    tiles = batch * rows * cols
    lanes, ports, cores = machine.lanes(), machine.fma_ports, machine.cores
    if min(in_c, out_c) < lanes:
        return False
    direct = 9 * in_c * out_c / lanes * batch * out_h * out_w / ports / 0.95 / rate
    height = min(8, rows * cols)
    gemm = 36 * in_c * (out_c / lanes / 2) * (tiles / height) * step_cycles(height, 2, machine) / 0.9
    transforms = 8 * 36 * (in_c + out_c) / lanes * tiles / ports
    winograd = (gemm + transforms) / cores + stream_cycles(36 * in_c * out_c * 4, machine)
    return bool(margin * winograd < direct / cores + stream_cycles(9 * in_c * out_c * 4, machine))


def stream_cycles(weights: int, machine: Machine) -> float:
    """Cycles to read that many bytes of weights once, all cores together: from memory if they are more than an eighth
    of L3 (a network's other layers drive them out between two calls), else from L3 at 16 bytes a cycle and core; what
    fits half of L2 is free.
    """
    if weights > machine.l3 // 8:
        return float(weights / (machine.bandwidth / machine.ghz / 1e9))
    return weights / 16 / machine.cores if weights > machine.l2 // 2 else 0.0


def instead_of_bf16(call: relax.Call, machine: Machine) -> bool:
    """Whether a convolution in NHWC is faster by Winograd in fp32 than directly in bf16."""
    a, (x, w) = call.attrs, call.args
    xs, ws = static_shape(x), static_shape(w)
    if (a.data_layout, a.kernel_layout) != ("NHWC", "OHWI") or int(a.groups) != 1 or xs is None or ws is None:
        return False
    if ws[1:3] != (KERNEL, KERNEL) or [int(v) for v in (*a.strides, *a.dilation)] != [1, 1, 1, 1]:
        return False
    top, left, bottom, right = (int(v) for v in a.padding)
    size = (xs[1] + top + bottom - 2, xs[2] + left + right - 2)
    rate = machine.tile_macs / (machine.fma_ports * machine.lanes()) if has_tiles(machine) else BF16_RATE
    return 0 not in (*xs, *size) and pays(*size, xs[3], ws[0], xs[0], machine, rate, BF16_MARGIN)


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.nn.conv2d`, 3x3, stride 1, one group, constant weights, where it pays."""
    a = call.attrs
    if (a.data_layout, a.kernel_layout, a.out_layout) != ("NHWC", "OHWI", "NHWC") or int(a.groups) != 1:
        return None
    if [int(v) for v in (*a.strides, *a.dilation)] != [1, 1, 1, 1]:
        return None
    x, w = call.args
    xs, value = static_shape(x), constant(bb, w)
    if xs is None or value is None or value.shape[1:3] != (KERNEL, KERNEL) or str(x.ty.dtype) != "float32":
        return None
    batch, height, width, in_c = xs
    out_c = value.shape[0]
    top, left, bottom, right = (int(v) for v in a.padding)
    out_h, out_w = height + top + bottom - 2, width + left + right - 2
    if 0 in (*xs, out_h, out_w) or not pays(out_h, out_w, in_c, out_c, batch, machine):
        return None
    rows, cols = -(-out_h // OUT), -(-out_w // OUT)
    nr = choose_tile(rows * cols, out_c, machine, rows=cols).nr
    _, g, _ = matrices()
    transformed = np.einsum("ia,jb,oabc->ijco", g, g, value.astype("float64")).astype("float32")
    panels = np.moveaxis(pack_panels(transformed, nr), 2, 0)  # [P, 6, 6, C, nr]: a panel is read from end to end
    packed = relax.const(np.ascontiguousarray(panels), "float32")

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        zero = tirx.const(0.0, "float32")
        pad = te.compute(
            (batch, rows * OUT + 2, cols * OUT + 2, in_c),
            lambda n, y, x_, c: te.if_then_else(
                te.all(y >= top, y < height + top, x_ >= left, x_ < width + left),
                data(n, y - top, x_ - left, c),
                zero,
            ),
            name="pad",
            attrs={"tvmopt.kernel": "pad"},
        )
        return winograd_te(pad, weight, (batch, out_h, out_w, out_c))

    return call_fusable(bb, compute, [x, packed], "winograd")


def winograd_te(pad: te.Tensor, weight: te.Tensor, out: tuple[int, int, int, int]) -> te.Tensor:
    """The blocks of the module's docstring, each transform in two steps: rows, then columns."""
    at, _, bt = matrices()
    batch, out_h, out_w, out_c = out
    rows, cols = -(-out_h // OUT), -(-out_w // OUT)
    in_c, nr = int(pad.shape[3]), int(weight.shape[4])

    def tag(name: str) -> dict[str, Any]:
        return {"name": name, "attrs": {"tvmopt.kernel": name}}

    half = te.compute(
        (TILE, TILE, batch, rows, cols, in_c),
        lambda i, j, n, y, x, c: combine(bt, i, lambda k: pad(n, y * OUT + k, x * OUT + j, c)),
        **tag("wino_half_in"),
    )
    v = te.compute(
        (TILE, TILE, batch, rows, cols, in_c),
        lambda i, j, n, y, x, c: combine(bt, j, lambda k: half(i, k, n, y, x, c)),
        **tag("wino_in"),
    )
    c = te.reduce_axis((0, in_c), name="c")
    m = te.compute(
        (TILE, TILE, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: te.sum(v(i, j, n, y, x, c) * weight(p, i, j, c, o), axis=[c]),
        **tag("winograd"),
    )
    half_out = te.compute(
        (OUT, TILE, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: combine(at, i, lambda k: m(k, j, n, y, x, p, o)),
        **tag("wino_half_out"),
    )
    whole = te.compute(
        (OUT, OUT, batch, rows, cols, int(weight.shape[0]), nr),
        lambda i, j, n, y, x, p, o: combine(at, j, lambda k: half_out(i, k, n, y, x, p, o)),
        **tag("wino_out"),
    )
    return te.compute(
        (batch, out_h, out_w, out_c),
        lambda n, y, x, o: whole(y % OUT, x % OUT, n, y // OUT, x // OUT, o // nr, o % nr),
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


LEGALIZERS = {"relax.nn.conv2d": conv2d}
