"""Which tensors of a model are computed in float64 throughout - for the judge, which wants 16 digits of them.

A tensor of float64 behind an operation in float32 has the digits of float32, whatever type it is stored in:

    x: double -> MatMul -> Cast to float -> Exp -> Cast to double -> y
                 16 digits                 7 digits                7 digits
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.evaluate import reads
from tvmopt.analysis.oracle.values import Value, is_real

MOVES = frozenset({
    *("Abs", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Neg", "Pad", "Relu"),
    *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
})  # fmt: skip
"""Operators that lose no digit."""
PLACES = frozenset({"Resize", "Upsample", "RoiAlign", "MaxRoiPool"})
"""Operators that compute places between elements in float32, as their scales are, whatever the elements are."""
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


@dataclass
class Doubles:
    """Follows the digits through a run of the oracle.

    Attributes:
        graph: of the model. coarse: tensors that have been seen and are, or are made from, less than float64.
    """

    graph: Any
    coarse: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._makers = {name: node for node in self.graph.node for name in node.output if name}

    def see(self, name: str, value: Value) -> None:
        """Note a tensor as it is made."""
        node = self._makers.get(name)
        if node is not None and isinstance(value.array, np.ndarray):
            rounds = is_real(value.kind) and value.kind != DOUBLE and node.op_type not in MOVES
            if rounds or node.op_type in PLACES or any(n in self.coarse for n in reads(node)):
                self.coarse.add(name)

    def kind(self, name: str, declared: np.dtype[Any]) -> np.dtype[Any]:
        """The type whose digits a tensor has: float32 for one of float64 that has no more."""
        return SINGLE if declared == DOUBLE and name in self.coarse else declared
