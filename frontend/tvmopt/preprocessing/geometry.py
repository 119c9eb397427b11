"""Where a picture of any size lies in what a model reads, as nodes of ONNX: computed from its shape in integers.

    geometry  int64 [4, 2], of rows and columns: pixels that come, these and what is added behind them, what they
              become, and which of them the model's picture begins with

A place m of the model's picture is the place (m + begin) * padded / resized of the picture that came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmopt.preprocessing.picture import Picture, Size

Add = Callable[..., str]
"""`add(op, name, inputs, **attributes)`: a node; the name of its result."""
Constant = Callable[[str, "np.ndarray[Any, Any]"], str]


class Geometry:
    """Writes the nodes.

    Args:
        x: the pictures, [n, h, w, c].
    """

    def __init__(self, picture: Picture, add: Add, constant: Constant, x: str) -> None:
        self.picture, self.add, self.constant = picture, add, constant
        shape = add("Shape", "shape", [x])
        self.given = add("Slice", "sides", [shape, self.numbers("from", [1]), self.numbers("to", [3])])

    def write(self, size: Size) -> str:
        """The tensor, for a result of this size."""
        picture, zero = self.picture, self.numbers("zero", [0, 0])
        padded, begin, target = self.given, zero, self.numbers("size", size)
        if picture.letterbox and picture.place == "first":
            padded, resized = self.padded(target), target
        elif picture.letterbox:
            resized = self.fitted(target)
            begin = self.of("Sub", zero, self.of("Div", self.of("Sub", target, resized), [2, 2]))
        else:
            resized = self.resized()
            if picture.crop:
                begin = self.begin(resized, target)
        one = self.numbers("row", [1, 2])
        rows = [self.add("Reshape", "row", [v, one]) for v in (self.given, padded, resized, begin)]
        return self.add("Concat", "geometry", rows, axis=0)

    def resized(self) -> str:
        """As :meth:`Picture.resized`."""
        resize = self.picture.resize
        if resize is None:
            return self.given
        if isinstance(resize, tuple):
            return self.numbers("resize", resize)
        shorter = self.add("ReduceMin", "shorter", [self.given], keepdims=1)
        return self.of("Div", self.of("Mul", self.given, [resize, resize]), shorter)

    def begin(self, size: str, crop: str) -> str:
        """As :meth:`Picture.begin`."""
        floor, less = self.picture.centre == "floor", self.of("Sub", size, crop)
        more = self.of("Sub", crop, size)
        around = self.of("Div", self.of("Add", more, [1, 1]) if floor else more, [2, 2])
        half = self.of("Div", less, [2, 2])
        if not floor:  # half a pixel goes to the even neighbour
            odd = self.of("Mul", self.of("Mod", less, [2, 2]), self.of("Mod", half, [2, 2]))
            half = self.of("Add", half, odd)
        return self.of("Where", self.of("Less", less, [0, 0]), self.of("Sub", [0, 0], around), half)

    def fitted(self, target: str) -> str:
        """The size of a letterbox's picture: the largest of its own ratio, in whole pixels."""
        top, below = self.ratio(target)
        found = self.quotient(self.of("Mul", self.given, top), below)
        return self.of("Where", self.of("Less", found, [1, 1]), [1, 1], found)

    def padded(self, target: str) -> str:
        """The size of the picture with what is added behind it to have the model's ratio."""
        top, below = self.ratio(target)
        found = self.quotient(self.of("Mul", target, below), top)
        return self.of("Where", self.of("Less", found, self.given), self.given, found)

    def ratio(self, target: str) -> tuple[str, str]:
        """The smaller one of height over height and width over width, as two whole numbers."""
        high, wide, h, w = (
            self.add("Slice", "side", [v, self.numbers("from", [at]), self.numbers("to", [at + 1])])
            for v in (target, self.given)
            for at in (0, 1)
        )
        wider = self.of("Less", self.of("Mul", wide, h), self.of("Mul", high, w))
        return self.of("Where", wider, wide, high), self.of("Where", wider, w, h)

    def quotient(self, top: str, below: str) -> str:
        """Rounded to the nearest whole number, half of one to the even one."""
        twice, step = self.of("Add", self.of("Mul", top, [2]), below), self.of("Mul", below, [2])
        found = self.of("Div", twice, step)
        tie = self.of("Equal", self.of("Mod", twice, step), [0])
        down = self.of("Mod", found, [2])
        return self.of("Sub", found, self.of("Where", tie, down, self.of("Sub", down, down)))

    def of(self, op: str, *inputs: str | Sequence[int]) -> str:
        names = [one if isinstance(one, str) else self.numbers("number", one) for one in inputs]
        return self.add(op, op.lower(), names)

    def numbers(self, name: str, values: Sequence[int]) -> str:
        return self.constant(name, np.array(values, np.int64))
