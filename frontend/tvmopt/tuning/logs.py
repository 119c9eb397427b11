"""Tuning logs as text, and looking records up: the JSON-lines that ship in `tuning_logs/`, the user's store, and
the `Lookup` that `compile` schedules with.

A log is one file a target: a header line, then one record a line, sorted, so that a review sees what a night
changed::

    {"format": "tvmopt-tuning-log", "version": 1, "target": "llvm znver5 2c avx2+fma"}
    {"family": "gemm", "family_version": 1, "shape": "m=196 n=512", "workload": "8a1f...", "knobs": {"mr": 14}, ...}

Unlike MetaSchedule's JSON database, a torn last line costs that line only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from tvmopt.errors import TuningError, TvmoptError, collect, first_line, reason
from tvmopt.files import read_plain
from tvmopt.report import DecisionLog
from tvmopt.scheduling.replay import Replay
from tvmopt.targets import Machine
from tvmopt.tuning.record import (
    Key,
    Record,
    fingerprint,
    is_target,
    key_of,
    log_name,
    plain_data,
    record_of,
    tvm_version,
)
from tvmopt.tuning.store import Store, default_path

STAGE = "tvmopt.TuningRecords"
MAGIC = "tvmopt-tuning-log"
VERSION = 1


def to_line(record: Record) -> str:
    """One record as one line of JSON, the words for people first."""
    data: dict[str, Any] = {
        "family": record.key.family,
        "family_version": record.key.version,
        "shape": record.shape,
        "workload": record.key.workload,
        "tvm": record.key.tvm,
        "knobs": record.candidate.knobs,
        "trace": record.candidate.trace,
        "status": record.status,
        "verdict": record.verdict.__dict__ if record.verdict else None,
        "baseline": record.baseline or None,
        "samples": list(record.samples),
        "digest": record.digest,
        "note": record.note,
        "host": record.host,
        "date": record.date,
    }
    return json.dumps({k: v for k, v in data.items() if v not in ("", None, {}, [])})


def from_line(line: str, target: str) -> Record:
    """The record of a line.

    Raises:
        ValueError: it is not one.
    """
    return record_of(plain_data(line), target)


def write_log(path: Path, target: str, records: Iterable[Record]) -> int:
    """Write a target's log, sorted, all or nothing; how many records."""
    header = json.dumps({"format": MAGIC, "version": VERSION, "target": target})
    lines = [to_line(r) for r in sorted(records, key=lambda r: (r.key.family, r.shape, r.key, r.candidate.id))]
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text("\n".join([header, *lines]) + "\n")
    part.replace(path)
    return len(lines)


@dataclass(frozen=True)
class Log:
    """A log read from a file: its target, its records, and the lines that could not be read."""

    target: str
    records: tuple[Record, ...]
    problems: tuple[TvmoptError, ...] = ()


def read_log(text: str, where: str) -> Log:
    """A log from its text.

    Raises:
        TuningError: the header is missing, or of a later version.
    """
    first, _, rest = text.partition("\n")
    try:
        header = plain_data(first)
        known = header["format"] == MAGIC and header["version"] <= VERSION and is_target(header["target"])
        target = str(header["target"])
    except (ValueError, KeyError, TypeError):
        known, target = False, ""
    if not known:
        raise TuningError(
            "not a tuning log that this tvmopt can read", where=where, fix="a file of `tvmopt logs export`"
        )
    records, problems = [], list[TvmoptError]()
    for number, line in enumerate(rest.splitlines(), 2):
        if not line.strip():
            continue
        try:
            records.append(from_line(line, target))
        except ValueError as error:
            problems.append(TuningError(f"not a record: {error}", where=f"{where}, line {number}"))
    return Log(target, tuple(records), tuple(problems))


def read_log_file(path: Path) -> Log:
    """A log from a file; see `read_log`."""
    try:
        return read_log(read_plain(path), str(path))
    except (OSError, ValueError) as error:
        raise TuningError(
            f"cannot read the tuning log: {reason(error)}", where=str(path), fix="a file of `tvmopt logs export`"
        ) from error


def import_logs(store: Store, paths: Sequence[Path]) -> int:
    """Merge log files into a store; how many records it did not have. Every readable line is taken.

    Raises:
        TuningError: all unreadable files and lines at once - after the readable ones were merged.
    """
    problems, added = list[TvmoptError](), 0
    for path in paths:
        try:
            log = read_log_file(path)
        except TuningError as error:
            problems.append(error)
            continue
        added += store.merge(log.records)
        problems += log.problems
    if problems:
        raise collect(problems)
    return added


def export_logs(store: Store, folder: Path, *, target: str = "", everything: bool = False) -> dict[Path, int]:
    """Write one log a target into a folder: the best verified record of each key, or all records."""
    folder.mkdir(parents=True, exist_ok=True)
    by_target: dict[str, list[Record]] = {}
    for record in store.records(target=target) if everything else pruned(store.records(target=target)):
        by_target.setdefault(record.key.target, []).append(record)
    return {folder / log_name(t): write_log(folder / log_name(t), t, records) for t, records in by_target.items()}


def pruned(records: Iterable[Record]) -> list[Record]:
    """The best winner of each key: all that `compile` looks at."""
    best: dict[Key, Record] = {}
    for record in records:
        if record.won and (record.key not in best or _ratio(record) < _ratio(best[record.key])):
            best[record.key] = record
    return list(best.values())


def _ratio(record: Record) -> float:
    return record.verdict.ratio if record.verdict else 1.0


def shipped(target: str) -> Log:
    """The records that ship for a target; none if there is no file for it."""
    path = resources.files("tvmopt.tuning_logs") / log_name(target)
    if not path.is_file():
        return Log(target, ())
    log = read_log(path.read_text(), log_name(target))
    return log if log.target == target else Log(target, ())


@dataclass
class RecordLookup:
    """Finds what tuning recorded for a function on one machine: a `tvmopt.scheduling.apply.Lookup`.

    Attributes:
        machine: only records of its fingerprint are considered.
        used: the records handed out so far, and where each came from.
        ignored: key of a function -> its record that is not used, and why.
        warnings: logs that could not be read: a compile goes on without them, and says so.
    """

    machine: Machine
    used: list[tuple[Record, str]] = field(default_factory=list)
    ignored: dict[Key, tuple[Record, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _best: dict[Key, tuple[Record, str]] = field(default_factory=dict)
    _by_work: dict[tuple[str, str], Record] = field(default_factory=dict)

    @classmethod
    def default(cls, machine: Machine, store: Path | None = None, *, ship: bool = True) -> RecordLookup:
        """What `compile` uses: the user's store first, then what ships with tvmopt.

        Args:
            store: in place of the user's.

        Raises:
            TuningError: a store that was named is not there or cannot be read; the user's own need not be.
        """
        lookup, target = cls(machine), fingerprint(machine)
        if ship:
            lookup._guard(lambda: lookup.take(shipped(target).records, "shipped"))

        def take_store() -> None:
            with Store(store, must_exist=True) as opened:
                lookup.take(opened.records(target=target, won=True), "store")
                lookup.warnings += opened.warnings

        if store is not None:
            take_store()
        elif default_path().exists():
            lookup._guard(take_store)
        return lookup

    @classmethod
    def of_lines(cls, machine: Machine, lines: Iterable[str]) -> RecordLookup:
        """Exactly the records that an artifact names: what `refit` schedules by."""
        lookup = cls(machine)
        lookup.take((from_line(line, fingerprint(machine)) for line in lines), "artifact")
        return lookup

    def used_lines(self) -> tuple[str, ...]:
        """The records used, as lines of a log without samples and dates: the same records, the same text."""
        return tuple(sorted({to_line(replace(r, samples=(), baseline=0.0, date="", note="")) for r, _ in self.used}))

    def take(self, records: Iterable[Record], origin: str) -> None:
        """Consider the winners among these records, in place of earlier ones with the same key."""
        for record in pruned(records):
            self.put(record, origin)

    def put(self, record: Record, origin: str) -> None:
        """Consider this record, whether it has won or not, in place of an earlier one with the same key."""
        self._by_work[record.key.workload, record.key.family] = record
        if record.key.tvm == tvm_version():
            self._best[record.key] = (record, origin)

    def _guard(self, take: Any) -> None:
        try:
            take()
        except TuningError as error:
            self.warnings.append(f"tuning records not used: {first_line(error)}")

    def __call__(self, func: Any, family: Any, shape: Any) -> dict[str, int] | Replay | None:
        """The recorded knobs or trace, if there are any and they still are in the family's space."""
        if not self._by_work:
            return None
        key = key_of(func, family, self.machine)
        found = self._best.get(key)
        if found is None:
            self._note_stale(key)
        if found is None or key in self.ignored:
            return None
        record, origin = found
        if not record.candidate.trace and record.candidate.knobs not in family.knobs(shape, self.machine):
            self.ignored[key] = (record, "its knobs are not in the family's space")
            return None
        self.used.append((record, origin))
        if record.candidate.trace:
            return Replay(record.candidate.trace, f"MetaSchedule trace {record.candidate.id}")
        return dict(record.candidate.knobs)

    def _note_stale(self, key: Key) -> None:
        old = self._by_work.get((key.workload, key.family))
        if old is None:
            return
        if old.key.version != key.version:
            self.ignored[key] = (old, f"made for version {old.key.version} of the family, this is {key.version}")
        elif old.key.tvm != key.tvm:
            self.ignored[key] = (old, f"made with TVM {old.key.tvm}, this is {key.tvm}")

    def refused(self, func: Any, family: Any, reason: str) -> None:
        """The record handed out for a function does not do: it counts as ignored, now and when asked again."""
        key = key_of(func, family, self.machine)
        if key in self._best:
            self.ignored[key] = (self._best[key][0], reason)
            self.used = [(r, origin) for r, origin in self.used if r.key != key]

    def tell(self, log: DecisionLog) -> tuple[str, ...]:
        """Every record used or ignored goes into the log; what a user should know of them is returned."""
        for record, origin in self.used:
            ratio = f"{record.verdict.ratio:.3f} of the analytic time" if record.verdict else "no final"
            log.applied(
                STAGE,
                f"{record.key.family} {record.shape}",
                f"{record.candidate} ({ratio}; {origin}, {record.date[:10]}, {record.host})",
            )
        for record, why in self.ignored.values():
            log.declined(STAGE, f"{record.key.family} {record.shape}", f"{record.candidate}: {why}")
        reasons = Counter(why for _, why in self.ignored.values())
        told = "; ".join(f"{number}: {why}" for why, number in sorted(reasons.items()))
        ignored = (f"tuning records ignored: {told}",) if told else ()
        return (*self.warnings, *ignored)
