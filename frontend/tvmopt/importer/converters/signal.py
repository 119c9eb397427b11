"""DFT, STFT and windows: a transform of known length is a product with a constant matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper
from tvm import relax

from tvmopt.dims import Dim, OpenSize, Size
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

FINITE = 1e30
"""Means from here on, infinite ones and NaN are not taken away: their products would overflow."""

MAX_LENGTH = 8192
"""The matrix of a transform this long takes 1 GB (cosines and sines, float64 while it is made)."""


def dft_matrix(length: int, rows: int, columns: int, inverse: bool) -> npt.NDArray[Any]:
    """``exp(-+2 pi i j k / length)`` for j < rows (samples) and k < columns (bins), complex128."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    matrix = np.exp((2j if inverse else -2j) * np.pi * turns / length)
    return np.asarray(matrix / length if inverse else matrix)


def _transform(b: Build, ctx: Context, x: Any, length: Size, inverse: bool, onesided: bool, window: Any = None) -> Any:
    """Transform the last axis but one of x [..., n, 1 or 2] (real, or real and imaginary parts).

    Forwards the mean m of each frame is taken away, so that a large offset does not cost digits where it cancels:

        sum_j w_j x_j e_jk = sum_j w_j (x_j - m) e_jk + m sum_j w_j e_jk

    It need not be exact, and is 0 where it is not finite.

    Args:
        window: [n], what each sample is multiplied by; only forwards.
    """
    *lead, n, parts = shape_of(x)
    dtype = dtype_of(x)
    if isinstance(length, Dim):
        raise OpenSize(f"the number of points of its transform, {length}, is open")
    if length > MAX_LENGTH:
        raise ctx.unsupported(f"a transform of {length} points is longer than {MAX_LENGTH}")
    used = min(n, length)
    x = b.slice(x, len(lead), 0, used)
    if onesided and inverse:  # half a spectrum in, a real signal out: the other half is its conjugate
        matrix = dft_matrix(length, used, length, True)
        twice = np.array([1 if k == 0 or 2 * k == length else 2 for k in range(used)])[:, None]
        blocks = [matrix.real * twice, -matrix.imag * twice]
        out = np.concatenate([np.stack(blocks[:parts], 1)], 1).reshape(used * parts, length)
        width, last = length, 1
    else:
        bins = length // 2 + 1 if onesided else length
        m = dft_matrix(length, used, bins, inverse)
        real = np.stack([m.real, m.imag], -1)  # of a real part
        imag = np.stack([-m.imag, m.real], -1)  # of an imaginary part
        out = np.stack([real, imag][:parts], 1).reshape(used * parts, bins * 2)
        width, last = bins, 2
    offset = None
    if not inverse:
        mean = b.mean(x, len(lead), keepdims=True)
        mean = b.where(b.less(b.unary(relax.op.abs, mean), FINITE), mean, 0.0)
        x = b.sub(x, mean)
        offset = b.matmul(b.reshape(mean, (*lead, parts)), _of_ones(b, ctx, out, used, parts, window, dtype))
    if window is not None:
        x = b.mul(x, b.reshape(window, (used, 1)))
    result = b.matmul(b.reshape(x, (*lead, used * parts)), const(out, dtype))
    return b.reshape(result if offset is None else b.add(result, offset), (*lead, width, last))


def _of_ones(b: Build, ctx: Context, matrix: Any, used: int, parts: int, window: Any, dtype: str) -> Any:
    """The transform of a window of ones, or of `window`, for each part: [parts, columns of the matrix]."""
    by_part = matrix.reshape(used, parts, -1).transpose(1, 0, 2)
    known = np.ones(used) if window is None else ctx.array(window)
    if known is not None:
        return const(np.ravel(known).astype(np.float64) @ by_part, dtype)
    row = b.reshape(window, (1, used))
    return b.concat([b.matmul(row, const(one, dtype)) for one in by_part], 0)


def dft(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """DFT along one axis; length and axis are known at compile time."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    rank = len(shape_of(x))
    given = ctx.array(inputs[1], "dft_length")
    if ctx.opset >= 20:
        position = ctx.array(inputs[2], "axis")
        axis = int(np.ravel(position)[0]) if position is not None else -2
    else:
        axis = attrs.get("axis", 1)
    axis %= rank
    onesided, inverse = bool(attrs.get("onesided", 0)), bool(attrs.get("inverse", 0))
    size = shape_of(x)[axis]
    default = 2 * (size - 1) if onesided and inverse else size
    length = int(np.ravel(given)[0]) if given is not None else default
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    out = _transform(b, ctx, b.transpose(x, order), length, inverse, onesided)
    return b.transpose(out, list(np.argsort(order)))


def stft(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """STFT of [batch, samples, 1 or 2]: frames by a gather, times the window, times the DFT matrix."""
    b = Build(bb, ctx.name)
    x, window = inputs[0], inputs[2]
    if len(shape_of(x)) == 2:
        x = b.reshape(x, (*shape_of(x), 1))
    batch, samples, parts = shape_of(x)
    step_array, length_array = ctx.array(inputs[1], "frame_step"), ctx.array(inputs[3], "frame_length")
    assert step_array is not None
    step = int(np.ravel(step_array)[0])
    if length_array is not None:
        length = int(np.ravel(length_array)[0])
    else:
        length = shape_of(window)[0] if window is not None else samples
    frames = 1 + (samples - length) // step
    if isinstance(frames, int):
        where = const((np.arange(frames)[:, None] * step + np.arange(length)[None, :]).reshape(-1), "int64")
    else:
        starts = b.mul(b.reshape(b.arange(frames), (frames, 1)), step)
        where = b.reshape(b.add(starts, const(np.arange(length)[None, :], "int64")), (frames * length,))
    cut = b.reshape(b.take(x, where, 1), (batch, frames, length, parts))
    return _transform(b, ctx, cut, length, False, bool(attrs.get("onesided", 1)), window)


def _window(coefficients: tuple[float, ...]) -> Converter:
    """A sum of cosines, of constant size."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        size = ctx.array(inputs[0], "size")
        assert size is not None
        n = int(np.ravel(size)[0])
        period = n if attrs.get("periodic", 1) else max(n - 1, 1)
        angle = 2 * np.pi * np.arange(n) / period
        values = sum(c * np.cos(k * angle) for k, c in enumerate(coefficients))
        dtype = str(helper.tensor_dtype_to_np_dtype(attrs.get("output_datatype", 1)))
        return const(values, dtype)

    return convert


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "DFT"): in_float32(dft),
    ("", "STFT"): in_float32(stft),
    ("", "HannWindow"): _window((0.5, -0.5)),
    ("", "HammingWindow"): _window((25 / 46, -21 / 46)),
    ("", "BlackmanWindow"): _window((0.42, -0.5, 0.08)),
}
