"""The Family protocol: one schedule, three sources of knobs - for whoever writes a file in `schedules/`.

A family is a *module* with three small functions and two constants::

    NAME, VERSION = "gemm", 1

    def recognise(func, machine) -> Shape | None     # pure analysis: "this is mine", in microseconds
    def knobs(shape, machine) -> Space               # the choices; the first point is the analytic answer
    def apply(sch, shape, knobs) -> None             # schedule primitives only

Knobs come from a tuning record for this workload *and this target*, else from the analytic point; while tuning,
MetaSchedule draws them. `VERSION` is part of a record's key: raise it when `apply` changes meaning.
Recognisers are disjoint: a function that two families recognise is a bug, and a test says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tvmopt.targets import Machine

Knobs = Mapping[str, int]


@dataclass(frozen=True)
class Space:
    """The tunable choices of one kernel.

    Attributes:
        choices: knob name -> the values it may take; the first value of each is the analytic answer.

    >>> Space({"mr": (14, 12), "nr": (32,)}).analytic
    {'mr': 14, 'nr': 32}
    >>> Space({"mr": (14, 12), "nr": (32,)}).size
    2
    """

    choices: dict[str, tuple[int, ...]]

    @property
    def analytic(self) -> dict[str, int]:
        return {name: values[0] for name, values in self.choices.items()}

    @property
    def size(self) -> int:
        size = 1
        for values in self.choices.values():
            size *= len(values)
        return size

    def __contains__(self, knobs: object) -> bool:
        return (
            isinstance(knobs, Mapping)
            and dict(knobs).keys() == self.choices.keys()
            and all(knobs[name] in values for name, values in self.choices.items())
        )


@runtime_checkable
class Family(Protocol):
    """What a file in `schedules/` provides."""

    NAME: str
    VERSION: int

    def recognise(self, func: Any, machine: Machine) -> Any | None:
        """The shape that `apply` needs, or None: not mine. Pure; never raises on a foreign function."""

    def knobs(self, shape: Any, machine: Machine) -> Space:
        """The tunable choices; the analytic point first."""

    def apply(self, sch: Any, shape: Any, knobs: Knobs) -> None:
        """Schedule `sch` in place. The number of loops made must not depend on a knob (MetaSchedule replays traces)."""
