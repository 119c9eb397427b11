"""Where what is no number, or a huge one, must stay where it is - for kernels that would spread it to their neighbours.

A Winograd convolution, and a transposed one whose phases are padded with zero weights, make NaN of outputs beside an
infinite input. That is a NaN more; quantised or compared it is a number, and a wrong one. And beside a mask's fill of
-1e9 the small numbers of a tile lose all their digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

FILL = 1e4
"""Constants beyond this in a convolution's input are the fill of a mask, or as good as one."""
MOVES = {
    *("permute_dims", "reshape", "flatten", "expand_dims", "squeeze", "concat", "strided_slice", "split", "stack"),
    *("broadcast_to", "layout_transform", "flip", "take", "tile", "repeat", "nn.max_pool2d"),
}
"""Operators whose results are elements of their inputs."""
PLACES = {"concat", "where", "nn.pad", "full", "add", "subtract", "multiply"}
"""Operators that put a constant's elements among those of a tensor, or make a fill of a mask of ones and zeros."""
ALONG = {
    *("nn.relu", "nn.leakyrelu", "nn.silu", "nn.gelu", "sigmoid", "tanh", "maximum", "minimum", "clip", "divide"),
    *("negative", "abs", "astype", "round"),
}
"""Element-wise operators that leave a number, or what is none, in its place."""
NEAR = MOVES | PLACES | ALONG | {""}
ROUNDS = {"quantize", "astype"}


class Extremes:
    """What is known of the tensors of one function.

    Attributes:
        values: what each variable is bound to. readers: (variable, value) of those that read one.
    """

    def __init__(self, main: Any) -> None:
        self.values: dict[Any, Any] = {}
        self.readers: dict[Any, list[tuple[Any, Any]]] = {}
        for binding in (b for block in main.body.blocks for b in block.bindings):
            value = getattr(binding, "value", None)
            self.values[binding.var] = value
            for operand in _operands(value):
                if isinstance(operand, relax.Var):
                    self.readers.setdefault(operand, []).append((binding.var, value))

    def why_exact(self, result: Any) -> str:
        """Why a convolution must not spread what is no number, or huge; empty where it may.

        Args:
            result: what the convolution is bound to.
        """
        data = self.values[result].args[0]
        if self.filled(data):
            return "numbers beside a mask's fill would lose their digits"
        if not self.finite(data) and self._reaches(result, lambda v: _name(v) in ROUNDS and _is_whole(v), NEAR):
            return "its result becomes integers, which hide a NaN"
        return ""

    def hides(self, result: Any) -> bool:
        """Whether anything that follows from a tensor is no float: what is NaN in it may be a number there."""
        return not self.finite(self.values[result].args[0]) and self._reaches(result, _is_whole)

    def finite(self, expr: Any) -> bool:
        """Whether a tensor has finite numbers for certain, as it was made of integers."""
        seen, ahead = set(), [expr]
        while ahead:
            one = ahead.pop()
            value = self.values.get(one)
            if one in seen or isinstance(one, tvm.ir.GenericConst) or _name(value) == "dequantize":
                continue
            if value is None or _name(value) not in MOVES | {"nn.relu", ""} or not _operands(value):
                return False
            seen.add(one)
            ahead += _operands(value)
        return True

    def filled(self, expr: Any) -> bool:
        """Whether constants beyond :data:`FILL` may be among the elements of a tensor."""
        seen, ahead = set(), [expr]
        while ahead:
            one = ahead.pop()
            value = self.values.get(one)
            if value is None or one in seen or _name(value) not in NEAR:
                continue
            seen.add(one)
            if _name(value) in PLACES and any(map(_is_fill, _operands(value))):
                return True
            ahead += [operand for operand in _operands(value) if isinstance(operand, relax.Var)]
        return False

    def _reaches(self, start: Any, wanted: Callable[[Any], bool], through: set[str] | None = None) -> bool:
        """Whether something that follows from a tensor is wanted: through these operators, or through all."""
        seen, ahead = {start}, [start]
        while ahead:
            for var, value in self.readers.get(ahead.pop(), ()):
                if wanted(value):
                    return True
                if var not in seen and (through is None or _name(value) in through):
                    seen.add(var)
                    ahead.append(var)
        return False


def _operands(value: Any) -> list[Any]:
    """What a value is made of: the arguments of a call, the fields of a tuple."""
    if isinstance(value, relax.Call):
        given = [f for a in value.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
        return [a for a in given if isinstance(a, relax.Var | tvm.ir.GenericConst)]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [value] if isinstance(value, relax.Var) else []


def _name(value: Any) -> str:
    """Of an operator of Relax; empty for what is no call."""
    if not isinstance(value, relax.Call):
        return ""
    return str(getattr(value.op, "name", "a function")).removeprefix("relax.")


def _is_fill(operand: Any) -> bool:
    if not isinstance(operand, tvm.ir.GenericConst):
        return False
    array = operand.value.numpy()
    return array.dtype.kind == "f" and bool(
        (np.abs(array, where=~np.isnan(array), out=np.zeros_like(array)) > FILL).any()
    )


def _is_whole(value: Any) -> bool:
    """Whether a value is a tensor of another type than floats."""
    kind = str(getattr(getattr(value, "ty", None), "dtype", "float"))
    return "float" not in kind
