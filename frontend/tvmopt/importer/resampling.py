"""How each pixel of a resized picture is made of those of the given one, in Pillow's integers - for stages of pixels
and the oracle.

One axis at a time: pixel i of the result is a weighted sum of the pixels around its place in the given picture::

    scale = given / wanted       centre = (i + 0.5) * scale       reach = support * max(scale, 1)
    weight[j] = filter((j + 0.5 - centre) / max(scale, 1)) over their sum,      j from centre - reach to centre + reach

So a picture that becomes smaller is averaged over `scale` pixels (the filter is stretched), as Pillow does and as
`antialias=True` means elsewhere. Weights are integers of :data:`BITS` fractional bits, and each pass (one of columns,
one of rows) rounds to a byte::

    byte = clip((sum of weight * pixel + 2^(BITS-1)) >> BITS, 0, 255)

These integers are Pillow's, so results are equal to the bit; of `hamming` the last bit of a weight may differ, and one
pixel of a hundred thousand is one step off. `nearest` takes the pixel under the centre. `linear` is `bilinear` that is
never stretched: two neighbours, as OpenCV and `antialias=False` interpolate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from tvmopt.importer.pixels import BITS

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]


def _box(x: Array) -> Array:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: Array) -> Array:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _hamming(x: Array) -> Array:
    window: Array = np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x))
    return np.where(np.abs(x) < 1.0, window, 0.0)


def _bicubic(x: Array) -> Array:
    """Keys' cubic convolution with a = -0.5."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: Array) -> Array:
    window: Array = np.sinc(x) * np.sinc(x / 3.0)
    return np.where((x >= -3.0) & (x < 3.0), window, 0.0)


FILTERS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "linear": (_bilinear, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""Each filter and the distance at which it ends."""

NAMES = ("nearest", *FILTERS)


@dataclass(frozen=True)
class Taps:
    """One axis: pixel i of the result is the sum of weights[i, k] * pixel[starts[i] + k] over 2^BITS.

    Attributes:
        starts: int32 [pixels]. weights: int32 [pixels, taps]; 0 where fewer pixels count.
    """

    starts: Integers
    weights: Integers

    @property
    def places(self) -> Integers:
        """The pixel that each weight is of: int32 [pixels, taps]."""
        steps: Integers = np.arange(self.weights.shape[1]).astype(np.int32)
        return self.starts[:, None] + steps

    @property
    def reach(self) -> range:
        """The pixels that are read."""
        return range(int(self.starts.min()), int(self.starts.max()) + self.weights.shape[1])

    def behind(self, first: int) -> Taps:
        """The same where the pixels in front of `first` are not there."""
        return Taps(self.starts - np.int32(first), self.weights)

    def copies(self, size: int) -> bool:
        """Whether the result is the axis of `size` pixels as it is."""
        same = np.array_equal(self.starts, np.arange(size))
        return same and self.weights.shape[1] == 1 and bool((self.weights == 1 << BITS).all())


def taps(name: str, given: int, wanted: int, first: int = 0, count: int | None = None) -> Taps:
    """The weights of pixels `first` to `first + count` of an axis of `given` pixels that is resized to `wanted`; pixels
    outside of the resized picture are 0.

    >>> found = taps("bilinear", 4, 2)
    >>> found.starts.tolist(), (found.weights / 2**BITS).round(3).tolist()
    ([0, 1], [[0.429, 0.429, 0.143], [0.143, 0.429, 0.429]])
    """
    starts, weights = _nearest(given, wanted) if name == "nearest" or given == wanted else _sums(name, given, wanted)
    count = wanted if count is None else count
    at = first + np.arange(count)
    inside = (at >= 0) & (at < wanted)
    at = np.clip(at, 0, wanted - 1)
    return _trimmed(starts[at], weights[at] * inside[:, None], given)


def _nearest(given: int, wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The pixel under each centre; Pillow adds up the places, and so their roundings."""
    scale = given / wanted
    steps = np.full(wanted, scale)
    steps[0] = scale * 0.5
    starts = np.clip(np.add.accumulate(steps).astype(np.int64), 0, given - 1)
    return starts, np.full((wanted, 1), 1 << BITS, np.int64)


def _sums(name: str, given: int, wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    function, support = FILTERS[name]
    scale = given / wanted
    stretch = 1.0 if name == "linear" else max(scale, 1.0)
    reach = support * stretch
    centre = (np.arange(wanted) + 0.5) * scale
    starts = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    ends = np.minimum((centre + reach + 0.5).astype(np.int64), given)
    places = starts[:, None] + np.arange(min(ceil(reach) * 2 + 1, given))
    values = function((places - centre[:, None] + 0.5) * (1.0 / stretch))
    values = np.where(places < ends[:, None], values, 0.0)
    total = np.add.accumulate(values, 1)[:, -1:]  # one after the other, as a loop adds them up
    shares = values / np.where(total == 0.0, 1.0, total) * (1 << BITS)
    return starts, np.trunc(shares + np.copysign(0.5, shares)).astype(np.int64)


def _trimmed(starts: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], given: int) -> Taps:
    """Without weights that are 0 at both ends, and with every place inside of the picture."""
    used = weights != 0
    some = used.any(1)
    low = np.where(some, used.argmax(1), 0)
    high = np.where(some, weights.shape[1] - used[:, ::-1].argmax(1), 1)
    width = int((high - low).max())
    moved = np.clip(np.where(some, starts + low, 0), 0, given - width)
    places = moved[:, None] - starts[:, None] + np.arange(width)
    known = (places >= 0) & (places < weights.shape[1])
    kept = np.take_along_axis(weights, np.clip(places, 0, weights.shape[1] - 1), 1)
    return Taps(moved.astype(np.int32), np.where(known, kept, 0).astype(np.int32))
