"""What a quantisation did, as data: for the command's table, its page, `--json` and the file itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """One convolution or product.

    Attributes:
        node, operator: of the float model.
        quantized: whether its operands are quantised.
        own: ratio of signal to quantisation noise in dB when the layer gets exact inputs; None where it is exact or
            cannot be told.
        total: the same with the noise of all layers before it.
        low, high: the range of its result in the float model.
        histogram: counts in equal steps from `low` to `high`.
    """

    node: str
    operator: str
    quantized: bool
    own: float | None
    total: float | None
    low: float
    high: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Attempt:
    """One model that was tried: what was left in floats, and what the metric said of it."""

    excluded: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class Quantized:
    """A quantised model.

    Attributes:
        model, output: the files.
        method: what calibrated, with its version; "round to nearest" of weights alone.
        preset: "performance" or "mixed"; "int4" or "int8" of weights alone.
        samples: how many calibrated; data_sha256: the hash of all of them; empty of weights alone.
        ranges_sha256: the hash of all scales and zero points.
        excluded: nodes that stay in floats, as asked for or as the metric demanded.
        bytes_before, bytes_after: sizes of the two files.
        layers: convolutions and products, in graph order.
        outputs: by name, the ratio of signal to noise in dB; None where nothing differs.
        metric: its value for the float model, None without one; attempts: the models that were tried.
    """

    model: str
    output: str
    method: str
    preset: str
    samples: int
    data_sha256: str
    ranges_sha256: str
    excluded: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    layers: tuple[Layer, ...] = ()
    outputs: dict[str, float | None] | None = None
    metric: float | None = None
    attempts: tuple[Attempt, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def worst(self, count: int = 10) -> list[Layer]:
        """The quantised layers that lose most by themselves, the worst first."""
        known = [one for one in self.layers if one.own is not None]
        return sorted(known, key=lambda one: one.own or 0.0)[:count]
