"""The oracle's own operators, and the declared types of results that are not those of the first real input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmopt.analysis.oracle import (
    attention,
    boxes,
    contrib,
    deform_conv,
    elementwise,
    grid_sample,
    movement,
    pixels,
    products,
    quantized,
    recurrent,
    reductions,
    regions,
    resize,
    signal,
    trees,
    windows,
)
from tvmopt.analysis.oracle.values import Array, Call, Operator, is_real
from tvmopt.importer.own import DOMAIN

_GROUPS = (
    attention, deform_conv, elementwise, grid_sample, movement, products, quantized, recurrent, reductions, regions,
    resize, signal, windows,
)  # fmt: skip

OPERATORS: dict[tuple[str, str], Operator] = {
    **{("ai.onnx", name): operator for group in _GROUPS for name, operator in group.TABLE.items()},
    **{("com.microsoft", name): operator for name, operator in {**contrib.TABLE, **attention.CONTRIB}.items()},
    **{("ai.onnx.ml", name): operator for name, operator in trees.TABLE.items()},
    **{(DOMAIN, name): operator for name, operator in {**pixels.TABLE, **boxes.TABLE}.items()},
}
"""(domain, operator) -> its definition."""

Kind = Callable[[Call, int, Array], "np.dtype[Any]"]


def _float(call: Call, index: int, array: Array) -> np.dtype[Any]:
    return np.dtype(np.float32)


def _position(position: int) -> Kind:
    def find(call: Call, index: int, array: Array) -> np.dtype[Any]:
        kind = call.kinds[position] if position < len(call.kinds) else None
        return kind if kind is not None and is_real(kind) else np.dtype(np.float32)

    return find


def _given(call: Call, index: int, array: Array) -> np.dtype[Any]:
    """From the attribute `dtype`, else float32."""
    number = call.get("dtype") or call.get("output_datatype")
    found = quantized.number_type(int(number)) if number else np.dtype(np.float32)
    return found if is_real(found) else np.dtype(np.float32)


KINDS: dict[str, Kind] = {
    "DynamicQuantizeLinear": _float,
    "Where": _position(1),
    "OneHot": _position(2),
    "Multinomial": _given,
    "EyeLike": _given,
    "BlackmanWindow": _given,
    "HannWindow": _given,
    "HammingWindow": _given,
    "MelWeightMatrix": _given,
}
