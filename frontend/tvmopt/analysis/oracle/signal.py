"""DFT and STFT by their definition: sums of products with cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result

LONG = 2048
"""Points from which the fast transform takes the place of the definition in any case: as many products a bin take too
long."""


def _spectrum(z: Array, length: int, bins: int, inverse: bool = False) -> Array:
    """``sum_j z[..., j] exp(-+2 pi i j k / length)`` for k < bins, complex128; `z` is cut or filled with zeros.

    By the fast transform, which rounds less than the sum of products; it spreads a number that is not finite over parts
    that are, so that of such numbers only the definition tells which bins have none.
    """
    if length > LONG or np.isfinite(z).all():
        whole = np.fft.ifft(z, length) if inverse else np.fft.fft(z, length)
        return np.asarray(whole[..., :bins])
    used = min(z.shape[-1], length)
    turns = np.outer(np.arange(used), np.arange(bins)) % length
    matrix = np.exp((2j if inverse else -2j) * np.pi * turns / length)
    # real numbers by real ones: what is infinite meets no zero of an imaginary part that it does not have
    parts = z[..., :used].real, z[..., :used].imag if np.iscomplexobj(z) else None
    real, imag = parts[0] @ matrix.real, parts[0] @ matrix.imag
    if parts[1] is not None:
        real, imag = real - parts[1] @ matrix.imag, imag + parts[1] @ matrix.real
    found = np.empty(real.shape, np.complex128)
    found.real, found.imag = real, imag
    return found / length if inverse else found


def _numbers(x: Array) -> Array:
    """[..., 1 or 2] as real or complex numbers [...]."""
    if x.shape[-1] == 1:
        return x[..., 0].astype(np.float64)
    z = np.empty(x.shape[:-1], np.complex128)
    z.real, z.imag = x[..., 0], x[..., 1]
    return z


def _parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def dft(call: Call, x: Array, dft_length: Array | None = None, axis: Array | None = None) -> Result:
    """Along one axis of x [..., 1 or 2]; half of a spectrum backwards is a real signal."""
    if call.version >= 20:
        place = -2 if axis is None else int(np.ravel(axis)[0])
    else:
        place = int(call.get("axis", 1))
    place %= x.ndim
    onesided, inverse = bool(call.get("onesided", 0)), bool(call.get("inverse", 0))
    z = np.moveaxis(_numbers(x), place, -1)
    default = 2 * (z.shape[-1] - 1) if onesided and inverse else z.shape[-1]
    length = default if dft_length is None else int(np.ravel(dft_length)[0])
    found: Any
    if onesided and inverse:
        found = np.fft.irfft(z, length)[..., None]
    else:
        found = _parts(_spectrum(z, length, length // 2 + 1 if onesided else length, inverse))
    return np.moveaxis(found, -2, place).astype(call.work)


def stft(
    call: Call, signal: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None
) -> Result:
    """Of [batch, samples] or [batch, samples, 1 or 2]: [batch, frames, bins, 2]."""
    z = signal.astype(np.float64) if signal.ndim == 2 else _numbers(signal)
    step = int(np.ravel(frame_step)[0])
    if frame_length is not None:
        length = int(np.ravel(frame_length)[0])
    else:
        length = z.shape[1] if window is None else window.shape[0]
    starts = np.arange((z.shape[1] - length) // step + 1) * step
    frames = z[:, starts[:, None] + np.arange(length)]
    if window is not None:
        frames = frames * window
    bins = length // 2 + 1 if call.get("onesided", 1) else length
    return _parts(_spectrum(frames, length, bins)).astype(call.work)


TABLE: dict[str, Operator] = {"DFT": dft, "STFT": stft}
