"""Quantised tensors in steps - for the judge: a step too much shows, and a value at an edge may be on either side.

    x -> QuantizeLinear -> q -> DequantizeLinear -> y        q: integers;  y: the same on a grid of `scale`

An engine's x is off by its rounding, so that an x within that of the edge between two steps may become either.
Everywhere else q is exact, and y is the grid point of q. Where a kernel quantises twice, with a Relu or a residual
between for instance, nobody sees the first q: where that may be off by a step, the second one may be off by what the
step makes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.deviation import Limits, counted, steps
from tvmopt.analysis.oracle.quantized import along

OFF = 0.02
"""How far from its grid a dequantised value may be, in steps: float32 has more than enough digits for 255 of them."""


STEPWISE = frozenset({"Add", "Clip", "Identity", "Max", "Min", "Relu", "Sub"})
"""Operators, element by element, whose result is off by no more than their inputs together are."""


@dataclass
class Grids:
    """The quantised tensors of a model, and where their inputs are near an edge.

    Attributes:
        scales: of a tensor of integers or of grid points, in a shape that broadcasts to it once its rank is known.
        source: of a tensor of grid points, the integers that it was made from.
        makers: of grid points their integers, of what :data:`STEPWISE` operators make their inputs.
    """

    inputs: Mapping[str, Sequence[str]]
    scales: Mapping[str, tuple[Array, int]]
    source: Mapping[str, str]
    limits: Limits
    makers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _free: dict[str, Array] = field(default_factory=dict)
    _off: dict[str, Array] = field(default_factory=dict)  # by how much a tensor may be, where it may

    @classmethod
    def of(cls, model: Any, limits: Limits) -> Grids:
        """Of an ONNX model; only what has constant scales."""
        from tvmopt.importer.external import array_of

        constants = {t.name: t for t in model.graph.initializer}
        inputs: dict[str, list[str]] = {}
        scales: dict[str, tuple[Array, int]] = {}
        source: dict[str, str] = {}
        makers: dict[str, Sequence[str]] = {}
        for node in model.graph.node:
            if node.op_type in STEPWISE and any(name in makers for name in node.input):
                makers[node.output[0]] = tuple(node.input)
            blocks = any(a.name == "block_size" and a.i for a in node.attribute)
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.input[1] not in constants or blocks:
                continue
            scale = array_of(constants[node.input[1]]).astype(np.float64)
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            if node.op_type == "QuantizeLinear":
                inputs.setdefault(node.input[0], []).append(node.output[0])
                scales[node.output[0]] = scale, axis
            elif node.input[0] in scales:
                scales[node.output[0]] = scale, axis
                source[node.output[0]] = node.input[0]
                makers[node.output[0]] = (node.input[0],)
        return cls(inputs, scales, source, limits, makers)

    def see(self, name: str, array: Array, known: Collection[str] = ()) -> None:
        """Note where the input of a quantisation is near an edge, or is made from integers that were.

        Args:
            known: tensors whose values are the compiled model's: those are not off.
        """
        off = [self._off[n] for n in self.makers.get(name, ()) if n in self._off and n not in known]
        if off:
            self._off[name] = np.broadcast_to(sum(off[1:], off[0]), array.shape)
            if name in self.source:
                self._off[name] = self._off[name] * along(self.scales[name][0], array, self.scales[name][1])
        for quantised in self.inputs.get(name, ()):
            scale = along(self.scales[quantised][0], array, self.scales[quantised][1])
            finite = np.isfinite(array)
            keep = counted(array, finite)
            rms = float(np.sqrt(np.mean(np.square(array[keep], dtype=np.float64)))) if keep.any() else 0.0
            with np.errstate(all="ignore"):
                place = array / scale
                width = (self.limits.rms * rms + 2.0**-22 * np.abs(array)) / scale
                free = (np.abs(place - np.floor(place) - 0.5) <= width).astype(np.float64)
            if name in self._off and name not in known:
                free = np.maximum(free, np.ceil(self._off[name] / scale))
            self._free[quantised] = free
            if free.any():
                self._off[quantised] = free

    def __contains__(self, name: str) -> bool:
        return name in self.scales

    def compared(self, name: str, exact: Array, found: Array, naturals: Sequence[Array] = ()) -> OutputComparison:
        """A quantised or dequantised tensor of the model against the oracle's.

        Args:
            naturals: of runs that only round.
        """
        free = self._free.get(self.source.get(name, name))
        if name not in self.source:
            return steps(name, exact, found, naturals, free)
        scale = along(self.scales[name][0], exact, self.scales[name][1])
        place = found / scale
        moved = [np.rint(n / scale) for n in naturals]
        one = steps(name, np.rint(exact / scale), np.rint(place), moved, free)
        off = ~(np.abs(place - np.rint(place)) <= OFF)
        if one.ok and off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return OutputComparison(
                name, f"{int(off.sum())} of {off.size} elements are no multiples of the scale", worst=at,
                max_error=float(np.abs(found - exact).max()), scale=float(np.abs(exact).max()),
                expected=float(exact[at]), found=float(found[at]), excess=float("inf"),
            )  # fmt: skip
        return one
