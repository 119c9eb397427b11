"""ONNX operators of our own that scale pictures of any size, each with its meaning as a function of ONNX's operators.

    ScalePictureBilinear(x, geometry, size, fill)     one a filter: see :mod:`tvmopt.operators.scale_picture`

    x         uint8 [n, h, w, c]; y is uint8 [n, height, width, c]
    geometry  int64 [4, 2]: of rows and columns how many there are, with those of `fill` behind them, what they become,
              and which of them y begins with
    size      int64 [3], constant: height, width, and what bounds the tables
    fill      int64 [1], constant: the byte where there is no picture

The function makes a matrix of weights for each axis, [pixels of y, pixels of x], and multiplies in float64, where sums
of these integers are exact. The functions are of opset 11.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.importer.pixels import BITS

OLDEST_OPSET = 11
FILTERS = ("nearest", "box", "bilinear", "linear", "hamming", "bicubic", "lanczos")
SCALE = {name: f"ScalePicture{name.capitalize()}" for name in FILTERS}
"""The operator of each filter."""
FILTER_OF = {op: name for name, op in SCALE.items()}
INPUTS = dict.fromkeys(FILTER_OF, ("x", "geometry", "size", "fill"))
REACH = {"box": 0.5, "bilinear": 1.0, "linear": 1.0, "hamming": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""The distance at which a filter ends."""


def body(name: str) -> list[onnx.NodeProto]:
    """The nodes of an operator's definition."""
    f = _Nodes()
    fill = f.wide(f.picked("fill", 0))
    rows, columns = (_Axis(f, FILTER_OF[name], number, fill) for number in (0, 1))
    x = f.wide("x")
    columns_first = rows.turned(columns.of(x))
    if name == SCALE["nearest"]:
        y = columns_first
    else:
        less = [f("Sub", axis.padded, axis.resized) for axis in (rows, columns)]
        shrinks = f("Greater", less[0], f("Max", f("Mul", less[1], 2.0), 0.0))
        y = f("Where", shrinks, columns.of(rows.turned(x)), columns_first)
    f.cast(y, TensorProto.UINT8, "y")
    return f.nodes


class _Nodes:
    """Nodes that are added one by one; a number in the place of an input is a constant of float64."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        names = [one if isinstance(one, str) else self.constant(one, np.float64) for one in inputs]
        self.nodes.append(helper.make_node(op, names, [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def cast(self, x: str, elem: int, name: str = "") -> str:
        self.nodes.append(helper.make_node("Cast", [x], [name or f"v{len(self.nodes)}"], to=elem))
        return str(self.nodes[-1].output[0])

    def wide(self, x: str) -> str:
        return self.cast(x, TensorProto.DOUBLE)

    def picked(self, x: str, *place: int) -> str:
        """A number of a tensor."""
        for index in place:
            x = self("Gather", x, self.constant(index), axis=0)
        return x

    def reshaped(self, x: str, *shape: int) -> str:
        return self("Reshape", x, self.constant(shape))

    def where(self, condition: str) -> str:
        """1 or 0."""
        return self.wide(condition)


class _Axis:
    """The matrix of weights of one axis, and what `fill` adds to each pixel.

    Attributes:
        padded, resized: how many pixels become how many.
    """

    def __init__(self, f: _Nodes, name: str, number: int, fill: str) -> None:
        self.f = f
        given = f.wide(f.picked(f("Shape", "x"), 1 + number))
        self.padded, self.resized, begin = (f.wide(f.picked("geometry", at, number)) for at in (1, 2, 3))
        count = f.wide(f.picked("size", number))
        at = f.reshaped(f("Add", f("Range", 0.0, count, 1.0), begin), -1, 1)
        inside = f.where(f("And", f("Not", f("Less", at, 0.0)), f("Less", at, self.resized)))
        scale = f("Div", self.padded, self.resized)
        places = f("Range", 0.0, self.padded, 1.0)
        whole = self._nearest(at, scale, places) if name == "nearest" else self._sums(name, at, scale, places)
        weights = f("Mul", whole, inside)
        outside = f.where(f("Not", f("Less", places, given)))
        away = f("Mul", f("Sub", 1.0, inside), float(1 << BITS))
        self.term = f("Mul", f("Add", f("MatMul", weights, f.reshaped(outside, -1, 1)), away), fill)
        end = f.reshaped(f.cast(given, TensorProto.INT64), 1)
        self.weights = f("Slice", weights, f.constant([0]), end, f.constant([1]))

    def _nearest(self, at: str, scale: str, places: str) -> str:
        """The pixel under each centre; Pillow adds up the places, and so their roundings."""
        f = self.f
        every = f("Range", 0.0, self.resized, 1.0)
        half = f("Mul", f.where(f("Equal", every, 0.0)), 0.5)
        sums = f("CumSum", f("Mul", f("Sub", 1.0, half), scale), f.constant(0))
        starts = f("Min", f("Floor", sums), f("Sub", self.padded, 1.0))
        known = f("Max", f("Min", at, f("Sub", self.resized, 1.0)), 0.0)
        mine = f("Gather", starts, f.cast(known, TensorProto.INT64), axis=0)
        return f("Mul", f.where(f("Equal", places, mine)), float(1 << BITS))

    def _sums(self, name: str, at: str, scale: str, places: str) -> str:
        f = self.f
        stretch = f("Add", f("Mul", scale, 0.0), 1.0) if name == "linear" else f("Max", scale, 1.0)
        reach = f("Mul", stretch, REACH[name])
        centre = f("Mul", f("Add", at, 0.5), scale)
        start = f("Max", f("Floor", f("Add", f("Sub", centre, reach), 0.5)), 0.0)
        end = f("Min", f("Floor", f("Add", f("Add", centre, reach), 0.5)), self.padded)
        used = f.where(f("And", f("Not", f("Less", places, start)), f("Less", places, end)))
        far = f("Mul", f("Add", f("Sub", places, centre), 0.5), f("Div", 1.0, stretch))
        values = f("Mul", _value(f, name, far), used)
        total = f("MatMul", values, f.reshaped(f("Add", f("Mul", places, 0.0), 1.0), -1, 1))
        total = f("Add", total, f.where(f("Equal", total, 0.0)))
        share = f("Mul", f("Div", values, total), float(1 << BITS))
        return f("Mul", f("Sign", share), f("Floor", f("Add", f("Abs", share), 0.5)))

    def of(self, x: str) -> str:
        """The axis before the last one in other pixels."""
        f = self.f
        sums = f("Add", f("Add", f("MatMul", self.weights, x), self.term), float(1 << (BITS - 1)))
        return f("Min", f("Max", f("Floor", f("Mul", sums, 2.0**-BITS)), 0.0), 255.0)

    def turned(self, x: str) -> str:
        """The same of the axis of rows."""
        return self.f("Transpose", self.of(self.f("Transpose", x, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])


def _value(f: _Nodes, name: str, x: str) -> str:
    """A filter at places."""
    if name == "box":
        return f.where(f("And", f("Greater", x, -0.5), f("Not", f("Greater", x, 0.5))))
    size = f("Abs", x)
    if name in ("bilinear", "linear"):
        return f("Max", f("Sub", 1.0, size), 0.0)
    if name == "bicubic":  # Keys' cubic convolution with a = -0.5
        near = f("Add", f("Mul", f("Mul", f("Sub", f("Mul", size, 1.5), 2.5), size), size), 1.0)
        far = f("Sub", f("Mul", f("Add", f("Mul", f("Sub", size, 5.0), size), 8.0), size), 4.0)
        far = f("Mul", f("Mul", far, -0.5), f.where(f("Less", size, 2.0)))
        return f("Where", f("Less", size, 1.0), near, far)
    window = _sinc(f, x)
    if name == "hamming":
        window = f("Mul", window, f("Add", f("Mul", f("Cos", f("Mul", x, pi)), 0.46), 0.54))
    else:
        window = f("Mul", window, _sinc(f, f("Div", x, 3.0)))
    return f("Mul", window, f.where(f("Less", size, REACH[name])))


def _sinc(f: _Nodes, x: str) -> str:
    zero = f.where(f("Equal", x, 0.0))
    turned = f("Mul", x, pi)
    return f("Add", f("Div", f("Sin", turned), f("Add", turned, zero)), zero)
