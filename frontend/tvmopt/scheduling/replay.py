"""A schedule that a tuner recorded as a trace of MetaSchedule's generic space - for schedule_one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Replay:
    """A trace to be replayed on the same normalized PrimFunc.

    Attributes:
        trace: TVM's JSON of the trace, postprocessors included: ``[[instruction, ...], [decision, ...]]``.
        note: which record it is.
    """

    trace: str
    note: str = ""

    def apply(self, sch: Any) -> None:
        """Replay it on a fresh schedule of the function.

        Raises:
            tvm.error.TVMError: the trace belongs to another function.
        """
        from tvm.s_tir.schedule.trace import Trace

        Trace.apply_json_to_schedule(json.loads(self.trace), sch)


def trace_text(trace: Any) -> str:
    """A trace of TVM as the text that `Replay` takes."""
    return json.dumps(_plain(trace.as_json()))


def _plain(value: Any) -> Any:
    """TVM's containers and constants as Python's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "value"):  # IntImm, FloatImm, StringImm
        return value.value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value]
