"""The jobs file of `tvmopt nightly`, read and checked.

[nightly]
folder = "nightly"            # history.jsonl, tuning.db, reports; relative to this file
merge = ["shared/*.jsonl"]    # logs taken in first (optional)
export = "tuning_logs"        # where the winners go as logs (optional)
tolerance = 0.05              # a change below this share is not reported

[[job]]
name = "resnet50"
model = "models/resnet50.onnx"
target = "cpu"
precision = "fp32"
budget = "30m"                # or trials = 200; neither: no tuning, only the check
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError, TvmoptError, collect, reason
from tvmopt.files import read_plain
from tvmopt.nightly.history import TOLERANCE, History
from tvmopt.targets import Machine
from tvmopt.targets.precision import check as check_precision
from tvmopt.tuning.driver import parse_duration


@dataclass(frozen=True)
class Job:
    """One model for one target."""

    name: str
    model: Path
    target: str = "cpu"
    precision: str = "fp32"
    budget: str = "0"
    trials: int = 0
    threads: int | None = None
    seed: int = 0
    shape: dict[str, tuple[int, ...]] = field(default_factory=dict)
    generic: bool = True


@dataclass(frozen=True)
class Plan:
    """A jobs file."""

    path: Path
    folder: Path
    jobs: tuple[Job, ...]
    merge: tuple[str, ...] = ()
    export: str = ""
    tolerance: float = TOLERANCE

    @property
    def history(self) -> History:
        return History(self.folder / "history.jsonl")

    @property
    def store(self) -> Path:
        return self.folder / "tuning.db"


def read_plan(path: Path) -> Plan:
    """Parse and check a jobs file.

    Raises:
        InputError: every problem of the file at once.
    """
    try:
        data = tomllib.loads(read_plain(path))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the jobs file: {reason(error)}", where=str(path), fix="docs/how-to/nightly.md has an example"
        ) from error
    problems, jobs = list[TvmoptError](), []
    for name, kind, words in (("nightly", dict, "a table: [nightly]"), ("job", list, "a list of tables: [[job]]")):
        if not isinstance(data.get(name, kind()), kind):
            raise InputError(f"{name!r} is not {words}", where=str(path))
    problems += [InputError(text, where=str(path)) for text in _unknown(data, ("nightly", "job"))]
    for number, table in enumerate(data.get("job", []), 1):
        where = f"{path}, job {table.get('name', number)!r}"
        try:
            jobs.append(_job(table, path.parent, where))
        except TvmoptError as error:
            told = error.where if where in error.where else ", ".join(filter(None, (where, error.where)))
            problems.append(type(error)(error.what, where=told, fix=error.fix))
    names = [job.name for job in jobs]
    if not data.get("job"):
        problems.append(InputError("there is no [[job]]", where=str(path), fix="docs/how-to/nightly.md has an example"))
    problems += [
        InputError(f"two jobs are named {n!r}", where=str(path)) for n in sorted(set(names)) if names.count(n) > 1
    ]
    head = data.get("nightly", {})
    problems += [InputError(text, where=f"{path}, [nightly]") for text in _unknown(head, HEAD)]
    problems += [InputError(text, where=f"{path}, [nightly]") for text in _mistyped(head, HEAD)]
    if problems:
        raise collect(problems)
    export = str(path.parent / head["export"]) if "export" in head else ""
    return Plan(path, path.parent / head.get("folder", "nightly"), tuple(jobs), tuple(head.get("merge", ())),
                export, float(head.get("tolerance", TOLERANCE)))  # fmt: skip


HEAD: Mapping[str, type | tuple[type, ...]] = {"folder": str, "merge": list, "export": str, "tolerance": (int, float)}
JOB: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "model", "target", "precision", "budget"), str),
    **dict.fromkeys(("trials", "threads", "seed"), int),
    "shape": dict, "generic": bool,
}  # fmt: skip


def _unknown(table: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The keys that mean nothing, each with the nearest that does."""
    found = []
    for key in sorted(set(table) - set(known)):
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        found.append(f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    return found


def _mistyped(table: dict[str, Any], kinds: Mapping[str, type | tuple[type, ...]]) -> list[str]:
    """What has another type than it must; a number of TOML is no truth value."""
    return [
        f"{key!r} is {value!r}, of the wrong type"
        for key, value in table.items()
        if key in kinds and (not isinstance(value, kinds[key]) or (isinstance(value, bool) and kinds[key] is not bool))
    ]


def _job(table: dict[str, Any], base: Path, where: str) -> Job:
    unknown = _unknown(table, Job.__dataclass_fields__)
    missing = sorted({"name", "model"} - set(table))
    if unknown or missing:
        what = unknown + [f"no {k!r}" for k in missing]
        raise InputError("; ".join(what), where=where, fix=f"keys: {', '.join(Job.__dataclass_fields__)}")
    wrong = _mistyped(table, JOB)
    if not wrong and not all(
        isinstance(v, list) and all(type(d) is int for d in v) for v in table.get("shape", {}).values()
    ):
        wrong = [f"'shape' is {table['shape']!r}; write shape = {{ x = [1, 128] }}"]
    if wrong:
        raise InputError("; ".join(wrong), where=where)
    model = base / table["model"]
    if not model.exists():
        raise InputError("the model does not exist", where=f"{where}: {model}")
    parse_duration(table.get("budget", "0"))
    check_precision(table.get("precision", "fp32"), Machine.load(table.get("target", "cpu")))
    shape = {str(k): tuple(int(d) for d in v) for k, v in table.get("shape", {}).items()}
    return Job(**{**table, "model": model, "shape": shape})
