"""What the log says of operators that no family lowers."""

from __future__ import annotations

from types import SimpleNamespace

from tvmopt.lowering import _Asked
from tvmopt.report import DecisionLog
from tvmopt.scheduling.family import Declined


def test_a_family_may_still_schedule_what_none_lowers() -> None:
    """The kernel of such a mean may be one of the family for reductions: that none took it is not true."""
    asked = object.__new__(_Asked)
    family = SimpleNamespace(NAME="rows", ROUNDS_DIFFERENTLY=False)
    asked.lowerings = {"relax.mean": [(family, lambda *_: Declined("a reason"))]}  # type: ignore[list-item]
    asked.machine, asked.log, asked.bindings, asked.node = None, DecisionLog(), [], "mean"  # type: ignore[assignment]
    assert asked.lowered("relax.mean", None, None) is None
    reasons = [d.reason for d in asked.log]
    assert reasons[0] == "rows: a reason"
    assert reasons[1] == "no other family lowers mean: its loops are TVM's, which a family may still schedule"
