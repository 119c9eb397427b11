"""Which sizes of a model's inputs stay open where it is compiled for calls of many shapes - for the drop-in session.

A model without convolutions is compiled with every size open. One with them is fastest where the sizes of pictures are
numbers, and many programs know one size only: the first size is compiled as a number, with an open batch, and what
comes then with every size open up to a bound. Bounds are powers of two, so that few calls go beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = tuple[int | str, ...]
Sizes = Mapping[str, Sequence[Any]]

SIDE, BATCH = 2048, 16
"""The least bounds of pictures and signals, and of a batch that was more than one, in a model with convolutions."""

WINDOWS = frozenset((
    "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GridSample", "LpPool", "MaxPool",
    "QLinearConv", "Resize", "Upsample",
))  # fmt: skip
"""Operators that are fastest where their sizes are numbers, except the batch (docs/limits.md)."""


class Axes:
    """The open axes of a model's inputs. Methods return a shape for each of some inputs, with texts for open sizes.

    Args:
        model: an ONNX model.
        inputs: the shapes of its inputs, as the file says them; a name or None is an open size.

    Attributes:
        fixes: whether :meth:`first` makes numbers of sizes that the model leaves open.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Sequence[int | str | None]]) -> None:
        self._windows = any(node.op_type in WINDOWS for node in model.graph.node)
        first = {shape[0] for shape in inputs.values() if shape and isinstance(shape[0], str)}
        self._open = {n: [a for a, d in enumerate(s) if not isinstance(d, int)] for n, s in inputs.items()}
        self._batch = {n: {a for a in axes if a == 0 or inputs[n][a] in first} for n, axes in self._open.items()}
        self.fixes = self._windows and any(set(axes) - self._batch[n] for n, axes in self._open.items())

    def first(self, shapes: Sizes) -> dict[str, Shape]:
        """What is compiled for a first call of these shapes; "?" is a size that stays open."""
        return self._opened(
            shapes, lambda name, axis, size: "?" if self._is_batch(name, axis) or not self._windows else size
        )

    def every(self, shapes: Sizes) -> dict[str, Shape]:
        """Every open size as "?"."""
        return self._opened(shapes, lambda *_: "?")

    def bounded(self, shapes: Sizes) -> dict[str, Shape]:
        """Every open size with a bound that these shapes are within: "..2048" is at most 2048."""
        sizes = [(self._is_batch(n, a), shape[a]) for n, shape in shapes.items() for a in self._open[n]]
        batch = max((size for is_batch, size in sizes if is_batch), default=1)
        side = max((size for is_batch, size in sizes if not is_batch), default=1)
        if self._windows:
            batch, side = max(batch, BATCH if batch > 1 else 1), max(side, SIDE)
        return self._opened(shapes, lambda name, axis, _: _at_most(batch if self._is_batch(name, axis) else side))

    def _is_batch(self, name: str, axis: int) -> bool:
        return axis in self._batch[name]

    def _opened(self, shapes: Sizes, opened: Callable[[str, int, int], int | str]) -> dict[str, Shape]:
        return {
            name: tuple(
                opened(name, axis, size) if axis in self._open[name] else size for axis, size in enumerate(shape)
            )
            for name, shape in shapes.items()
        }


def is_bound(size: int | str) -> bool:
    """Whether a size of :meth:`Axes.bounded` stays open."""
    return isinstance(size, str) and size.startswith("..")


def _at_most(size: int) -> int | str:
    bound = 1 << (size - 1).bit_length()
    return bound if bound == 1 else f"..{bound}"
