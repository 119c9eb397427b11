"""The walk through a model that takes over what a compiled model's kernels wrote, and compares it - for `kernels`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.deviation import SLOPE, agreement, deviation, is_coarse, limits_of, nearly, slope, small, spread
from tvmopt.analysis.doubles import Doubles
from tvmopt.analysis.grids import Grids
from tvmopt.analysis.local import Local
from tvmopt.analysis.observe import Seen, fitted
from tvmopt.analysis.oracle.values import Value, is_real

ALIKE = 0.5
"""The relative error of a result that may still be the tensor it is compared with."""
LEANING = 2.0
"""How many times the share of a product may be that runs which only round are off by."""
PLAIN = " before its bias"
"""Marks a product without the bias that its node adds to it: that may be the next kernel's."""


@dataclass
class Kernel:
    """One kernel's call, and the tensor it wrote, once that is known.

    Attributes:
        biases: of products among `names`, in a shape that broadcasts.
        names: tensors that it may have written. products: results of matrix products and convolutions in it.
        shared: those that another kernel may have completed: a bias may be the next kernel's.
        comparison: of what it wrote with that tensor.
        output: one that has these numbers, right or not, in another layout or type.
        flips: it may have written a tensor from its end to its beginning along an axis, for the next kernel.
        strides: of transposed convolutions in it. Where windows do not overlap, such a kernel is a product that gives
            all places of a window for each place of its input, and the next one puts them into a picture.
        alike: relative errors of the tensors that its result resembles, though it differs from each; `unlike` of those
            that it does not resemble.
    """

    seen: Seen
    names: set[str]
    products: set[str]
    biases: Mapping[str, Array] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    tensor: str = ""
    comparison: OutputComparison | None = None
    output: str = ""
    alike: dict[str, float] = field(default_factory=dict)
    unlike: dict[str, float] = field(default_factory=dict)
    flips: bool = False
    strides: Collection[tuple[int, ...]] = ()

    @property
    def likeliest(self) -> str:
        """The tensor that it ought to have written, as far as that can be told; empty where it cannot."""
        return min(self.alike, key=self.alike.__getitem__, default="")

    def placed(self, exact: Array) -> tuple[Array, float]:
        """(Its result in the layout of a tensor, the mean error of a sample). Kernels that multiply bytes keep int8 as
        uint8, 128 higher, and the second operand's uint8 as int8, 128 lower.
        """
        found = self.seen.array
        if {found.dtype, exact.dtype} == {np.dtype(np.uint8), np.dtype(np.int8)}:
            found = (found.view(np.uint8) ^ np.uint8(128)).view(exact.dtype)
        placed, error = fitted(exact, found)
        for strides in self.strides:
            windows = in_windows(exact, strides)
            turned, other = fitted(windows, found) if windows is not None else (placed, error)
            placed, error = (turned.reshape(exact.shape), other) if other < error else (placed, error)
        for axis in (a for a, size in enumerate(exact.shape) if self.flips and size > 1):
            turned, other = fitted(np.flip(exact, axis), found)
            placed, error = (np.flip(turned, axis), other) if other < error else (placed, error)
        return np.ascontiguousarray(placed).reshape(placed.shape), error  # it is read a dozen times

    def forms(self, name: str, array: Array) -> dict[str, Array]:
        """What it may have written of a tensor: the tensor, or a product before its bias."""
        if name not in self.biases:
            return {name: array}
        return {name: array, name + PLAIN: array - self.biases[name].astype(array.dtype)}

    def tensor_of(self, form: str, found: Array) -> Array:
        """The whole tensor, where `found` is a form of it."""
        name = form.removesuffix(PLAIN)
        return found if form == name else found + self.biases[name].astype(found.dtype)

    @property
    def title(self) -> str:
        return f"{self.seen.symbol} ({' + '.join(self.seen.nodes)})"


@dataclass
class Walk:
    """One pass of the oracle along the kernels: sees each tensor as it is made.

    Attributes:
        brief: what is allowed of a tensor need not be told where it clearly agrees.
    """

    precision: str
    outputs: Mapping[str, Array]
    kernels: Sequence[Kernel]
    grids: Grids
    doubles: Doubles
    local: Local
    skipped: Collection[str] = ()
    spreads: Collection[str] = ()
    brief: bool = False
    taken: dict[str, Value] = field(default_factory=dict)
    wrong: dict[str, OutputComparison] = field(default_factory=dict)
    products: dict[str, Array] = field(default_factory=dict)
    agreed: int = 0

    def __post_init__(self) -> None:
        self.inside = {n for k in self.kernels for n in k.products}

    def __call__(self, name: str, value: Value) -> Value | None:
        self.doubles.see(name, value)
        if not isinstance(value.array, np.ndarray) or value.array.dtype.kind not in "fiub":
            return None
        if name in self.inside:
            self.products[name] = value.array
        replaced = self._agreed(name, value)
        self.grids.see(name, value.array if replaced is None else replaced.array, self.taken)
        return replaced

    def begin(self, feeds: Mapping[str, Array]) -> None:
        """Find the kernels that only bring an input into another layout, and those that wrote an output's very numbers:
        in 16 bits these may be within the tolerance of a tensor before it, too."""
        for kernel in self.kernels:
            kernel.output = next((n for n in self.outputs if n in kernel.names and self._same(kernel, n)), "")
        for name, array in feeds.items():
            for kernel in self.kernels:
                if not kernel.tensor and name in kernel.names and kernel.seen.array.size == array.size > 1:
                    self._kernel(kernel, name, Value(array, array.dtype))
                    kernel.alike.clear()
                    kernel.unlike.clear()

    def _same(self, kernel: Kernel, name: str) -> bool:
        """Whether a kernel wrote the numbers of this output, right or not."""
        found, output = kernel.seen.array, self.outputs[name]
        if found.size != output.size or found.size < 2 or found.dtype != output.dtype:
            return False
        return np.array_equal(fitted(output, found)[0], output, equal_nan=output.dtype.kind == "f")

    def _agreed(self, name: str, value: Value) -> Value | None:
        if name in self.outputs:
            self._recognise(name, value)
            return self._output(name, value)
        if value.array.size < 2 or name in self.skipped:
            return None
        for kernel in self.kernels:
            if not kernel.tensor and name in kernel.names and kernel.seen.array.size == value.array.size:
                agreed = self._kernel(kernel, name, value)
                if agreed is not None:
                    return agreed
        return None

    def _output(self, name: str, value: Value) -> Value | None:
        found = self.outputs[name]
        if found.shape != value.array.shape:
            return None  # the comparison of the outputs tells it
        one = self.compared(name, value.array, found, value.kind)
        if self._asks(name, one, value):
            one = self.compared(name, value.array, found, value.kind, [*self.local(name, self.taken)])
        for kernel in self._writers(name, found)[-1:]:
            kernel.tensor, kernel.comparison = name, one
        if not one.ok:
            self.wrong[name] = one
            return None
        self.agreed += 1
        return self._take(name, found, value)

    def _writers(self, name: str, found: Array) -> list[Kernel]:
        """Kernels one of which wrote this output, where none is known to have: not one that wrote another's numbers."""
        if any(kernel.tensor == name for kernel in self.kernels):
            return []
        return [
            k for k in self.kernels
            if not k.tensor and k.output in ("", name) and name in k.names and k.seen.array.size == found.size
        ]  # fmt: skip

    def _recognise(self, name: str, value: Value) -> None:
        """Kernels that wrote this output in another layout: they wrote no tensor before it."""
        for kernel in self.kernels:
            found = kernel.seen.array
            if kernel.tensor or name not in kernel.names or found.size != value.array.size:
                continue
            if (found.dtype.kind in "iub") == (value.array.dtype.kind in "iub"):
                placed, _ = fitted(value.array, found)
                one = self.compared(name, value.array, placed, value.kind)
                if one.ok:
                    kernel.tensor, kernel.comparison = name, one
                elif self.compared(name, self.outputs[name].astype(value.array.dtype), placed, value.kind).ok:
                    kernel.output = name

    def _kernel(self, kernel: Kernel, name: str, value: Value) -> Value | None:
        found = kernel.seen.array
        if kernel.output or (found.dtype.kind in "iub") != (value.array.dtype.kind in "iub"):
            return None
        agreeing: dict[str, tuple[float, Array, OutputComparison]] = {}
        samples: list[Array] | None = None
        for form, exact in kernel.forms(name, value.array).items():
            if agreeing and not self._completed(kernel, name):
                break
            placed, error = kernel.placed(exact)
            scale = mean_size(exact)
            if error > ALIKE * scale and error > 0:
                kernel.unlike[form] = error / (scale or 1.0)
                continue
            one = self._form(kernel, form, exact, placed, value.kind)
            if self._asks(name, one, value):
                samples = [*self.local(name, self.taken)] if samples is None else samples
                naturals = [kernel.forms(name, sample)[form] for sample in samples]
                one = self._form(kernel, form, exact, placed, value.kind, naturals)
            if one.ok:
                agreeing[form] = error, placed, one
            else:
                kernel.alike[form] = error / (scale or 1.0)
        if not agreeing:
            return None
        form = min(agreeing, key=lambda f: agreeing[f][0])
        kernel.tensor, kernel.comparison = name, agreeing[form][2]
        self.agreed += 1
        for product in kernel.products:
            self.products.pop(product, None)
        # integers are what they are, whoever wrote them; numbers may yet get a bias that is within their tolerance
        if form == name and value.array.dtype.kind == "f" and self._completed(kernel, name):
            return None
        return self._take(name, kernel.tensor_of(form, agreeing[form][1]), value)

    def _form(
        self, kernel: Kernel, form: str, exact: Array, placed: Array, kind: Any, naturals: Sequence[Array] = ()
    ) -> OutputComparison:
        """What a kernel wrote, compared with a form of a tensor."""
        one = self.compared(form, exact, placed, kind, naturals)
        if form.removesuffix(PLAIN) in self.grids:  # steps are exact, or free
            return one
        products = [self.products.get(p) for p in kernel.products]
        return along(one, exact, placed, products, self.precision, kind, naturals)

    def _asks(self, name: str, one: OutputComparison, value: Value) -> bool:
        """Whether runs that only round, from the kernels right before it, may explain how a tensor differs."""
        real = is_real(value.kind) and name not in self.grids
        return real and nearly(one) and is_coarse(self.precision, value.kind)

    def _completed(self, kernel: Kernel, name: str) -> bool:
        """Whether another kernel may have written this tensor of both, or be the one that completes it."""
        return name in kernel.shared and any(
            k is not kernel and name in k.shared and k.tensor in ("", name) for k in self.kernels
        )

    def compared(
        self, name: str, exact: Array, found: Array, kind: Any, naturals: Sequence[Array] = ()
    ) -> OutputComparison:
        """A tensor in steps, where it is on a grid, else within the limits of the precision."""
        if name in self.grids and (name not in self.grids.source or self.precision == "fp32"):
            return self.grids.compared(name, exact, found, naturals)
        own = name.removesuffix(PLAIN)
        found = spread(exact, found) if own in self.spreads else found
        limits = limits_of(self.precision, self.doubles.kind(own, kind))
        clear = agreement(name, exact, found, limits) if self.brief else None
        return clear or deviation(name, exact, found, limits, naturals)

    def _take(self, name: str, found: Array, value: Value) -> Value:
        self.taken[name] = Value(found, value.kind)
        return Value(found.astype(value.array.dtype) if is_real(value.kind) else found, value.kind)


def in_windows(picture: Array, strides: Sequence[int]) -> Array | None:
    """A picture (n, c, y, x) or signal with an axis of its own for the places of a window, (n, c, y, y', x, x'); None
    where windows of this size do not fill it.

    >>> in_windows(np.arange(8).reshape(1, 1, 2, 4), (2, 2)).shape, in_windows(np.zeros((1, 1, 5)), (2,))
    ((1, 1, 1, 2, 2, 2), None)
    """
    sides = picture.shape[2:]
    if len(sides) != len(strides) or any(side % stride for side, stride in zip(sides, strides, strict=True)):
        return None
    parts = [n for side, stride in zip(sides, strides, strict=True) for n in (side // stride, stride)]
    return picture.reshape(*picture.shape[:2], *parts)


def mean_size(array: Array) -> float:
    """The mean of the finite numbers' sizes, each at most 1e30.

    >>> mean_size(np.array([-3, 1, np.inf])), mean_size(np.array([1e38, 1], np.float32)) == 5e29
    (2.0, True)
    >>> mean_size(np.array([np.nan, np.inf]))
    0.0
    """
    if not array.size:
        return 0.0
    with np.errstate(all="ignore"):
        total = float(np.abs(array).sum()) if array.dtype in (np.float32, np.float64) else np.inf
    if total < 1e30:  # all of them are finite, and smaller
        return total / array.size
    sizes = np.abs(array.astype(np.float64))
    finite = np.isfinite(sizes)
    return float(np.mean(np.minimum(sizes, 1e30), where=finite)) if finite.any() else 0.0


def along(
    one: OutputComparison, exact: Array, found: Array, products: Iterable[Array | None], precision: str, kind: Any,
    naturals: Sequence[Array] = (),
) -> OutputComparison:  # fmt: skip
    """The comparison, failed where the error is a share of a product that the kernel computes or, in 16 bits, of its
    whole result.

    Args:
        kind: the type that the result is stored in.
        naturals: of runs that only round: where a few large numbers make most of a product, or a bias most of the
            result, rounding has a direction, too.
    """
    if not one.ok or exact.dtype.kind != "f":
        return one
    epsilon = float(ml_dtypes.finfo(kind).eps) if is_real(kind) and kind.itemsize < 4 else 0.0
    limit = SLOPE.get(precision, SLOPE["fp32"])
    itself = [exact] if naturals and is_coarse(precision, kind) else []
    for product in [*products, *itself]:
        if product is None or (not epsilon and small(one.max_error, exact, product, limit)):
            continue
        share = slope(exact, found, product, epsilon)
        if abs(share) <= limit:
            continue
        usual = max((abs(slope(exact, n, product, epsilon)) for n in naturals), default=0.0)
        if abs(share) > LEANING * usual:
            return replace(one, problem=f"differs by {share:.2%} of {'itself' if product is exact else 'its product'}")
    return one
