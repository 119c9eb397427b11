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
