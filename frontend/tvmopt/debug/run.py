"""The child's part of `tvmopt compare`, in order: every engine's row, the layers of those that differ, the cause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvmopt.analysis.comparator import Array
from tvmopt.children import Progress
from tvmopt.debug import blame, constants, models
from tvmopt.debug.compare import Settings
from tvmopt.debug.records import Blame, CompareResult
from tvmopt.debug.session import Session
from tvmopt.runtime.artifact import is_artifact


def in_child(*, settings: dict[str, Any], folder: str, progress: Progress) -> dict[str, Any]:
    """Entry of the child process."""
    lists = ("engines", "precisions")
    plain: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in settings.items()}
    asked = Settings(**plain)
    return run(Session(asked, Path(folder), progress)).as_dict()


def run(session: Session) -> CompareResult:
    """All rows, then layers, then blame."""
    session.progress("running the reference")
    expected = session.reference()
    if session.settings.other and not is_artifact(session.settings.other):
        found = models.compare_models(session, expected)
    else:
        found = engines(session, expected)
    return replace(
        found, inputs={n: f"{a.dtype}{list(a.shape)}" for n, a in session.feeds.items()},
        seconds=time.perf_counter() - session.start,
    )  # fmt: skip


def engines(session: Session, expected: Mapping[str, Array]) -> CompareResult:
    """One row for each engine and precision, and one for the artifact."""
    rows, specs = [], []
    if session.settings.other:
        specs.append(("", "", Path(session.settings.other).name))
    several = len(session.settings.precisions) > 1
    for spec in session.settings.engines:
        for precision in session.settings.precisions:
            specs.append((spec, precision, f"{spec} {precision}" if several or precision != "fp32" else spec))
    for spec, precision, label in specs:
        session.progress(f"running {label}")
        rows.append(session.row(spec, precision, label, expected))
    traces = [
        t
        for (spec, precision, label), row in zip(specs, rows, strict=True)
        if row.status == "wrong" or (session.settings.layers and row.status == "ok")
        for t in session.trace(spec, precision, label)
    ]
    result = CompareResult(
        Path(session.settings.model).name, session.layers.reference, {}, tuple(rows), tuple(traces),
        session.nonfinite(bool(traces)),
    )  # fmt: skip
    if not session.settings.bisect:
        return result
    by_label = {t.label: t for t in traces}
    for (spec, precision, label), row in zip(specs, rows, strict=True):
        trace = by_label.get(label)
        differs = row.label in session.wrong or bool(trace and trace.culprit)
        if not spec and row.status == "ok" and not differs:
            found = constants.explain(session, result, row, trace)  # wrong weights may do the outputs no harm
            if found is not None and found.constants:
                traced = tuple(session.trace(spec, precision, label))
                return replace(found, traces=(*found.traces, *traced))
            result = found or result
        if differs and row.within_rounding and not (trace and trace.culprit) and precision in ("", "fp32"):
            text = "it is below what rounding in fp32 explains, and nothing beyond that differs"
            return replace(result, blame=Blame("tolerance", "--rtol", text))
        if differs:
            session.progress(f"{label}: looking for the cause")
            return blame.explain(session, result, spec, precision, row, trace)
    return result
