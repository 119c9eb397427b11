"""What a prepared model says of its open sizes, in its metadata: ranges, conditions, and tensors whose elements are
sizes.

The model stays an ONNX model that any engine runs; the importer reads here what it need not compute.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.dims import Dim, Range, Size, parse

KEY = "tvmopt.open"


@dataclass(frozen=True)
class Open:
    """The open sizes of a prepared model.

    Attributes:
        ranges: of each symbol.
        conditions: what holds for every call that the model takes (`tvmopt.dims.holds`).
        values: tensors of sizes, by name: arrays of integers and `Dim`.
        caches: inputs that a step makes longer, and the outputs that they leave by.
        decided: of each size that values decide in a run.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    values: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    caches: tuple[tuple[str, str], ...] = ()
    decided: dict[str, Range] = field(default_factory=dict)

    def equal(self) -> dict[Size, Size]:
        """By the conditions: a size, and the shorter one that it is equal to. One of them must stand for both in all
        shapes: TVM cannot tell that two tensors fit together.

        >>> Open(conditions=("2*(h//2) == h", "a <= 2*b")).equal()
        {2*(h//2): h}
        """
        pairs = [condition.split(" == ") for condition in self.conditions if " == " in condition]
        return {parse(b): parse(a) for a, b in (sorted(pair, key=lambda text: (len(text), text)) for pair in pairs)}


def write(model: onnx.ModelProto, known: Open) -> None:
    """Put it into the model, in place."""
    values = {
        name: [list(array.shape), [str(d) if isinstance(d, Dim) else int(d) for d in array.ravel()]]
        for name, array in known.values.items()
    }
    ranges, decided = ({n: [r.min, r.max, r.opt] for n, r in side.items()} for side in (known.ranges, known.decided))
    data = {"ranges": ranges, "conditions": known.conditions, "values": values, "caches": known.caches}
    data["decided"] = decided
    model.metadata_props.add(key=KEY, value=json.dumps(data))


def read(model: onnx.ModelProto) -> Open:
    """What :func:`write` put there; nothing for a static model."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    if not text:
        return Open()
    data = json.loads(text)
    values = {}
    for name, (shape, elements) in data["values"].items():
        array = np.empty(len(elements), object)
        array[:] = [parse(e) if isinstance(e, str) else e for e in elements]
        values[name] = array.reshape(shape)
    ranges, decided = ({n: Range(*r) for n, r in data[side].items()} for side in ("ranges", "decided"))
    return Open(ranges, tuple(data["conditions"]), values, tuple((a, b) for a, b in data["caches"]), decided)
