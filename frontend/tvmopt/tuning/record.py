"""What a tuning log is made of: keys, candidates, measurements, verdicts - plain data, no TVM, for every tuning file.

A record is found under four things, and a difference in any of them means another record:

    workload   hash of the normalized PrimFunc (its loops, shapes and dtypes; not its names)
    target     kind, CPU, ISA features and cores of the machine
    tvm        TVM's version: the same trace can compile to other code
    family     name and version of the schedule family: the same knobs can mean another schedule
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from tvmopt.targets import Machine

Status = Literal["ok", "failed", "crash", "timeout", "wrong"]
"""ok: measured, output right. failed: refused to schedule or build. crash: killed its process. wrong: bad output."""

Space = Literal["family", "metaschedule"]


@dataclass(frozen=True, order=True)
class Key:
    """Where a record belongs."""

    workload: str
    target: str
    tvm: str
    family: str
    version: int


@dataclass(frozen=True)
class Candidate:
    """One point of a search space: knobs of the task's family, or a trace of MetaSchedule's.

    >>> Candidate(knobs={"mr": 14, "nr": 32}).id == Candidate(knobs={"nr": 32, "mr": 14}).id
    True
    """

    knobs: dict[str, int] = field(default_factory=dict)
    trace: str = ""

    @property
    def space(self) -> Space:
        return "metaschedule" if self.trace else "family"

    @property
    def id(self) -> str:
        """Identifies the point within its key: sixteen hexadecimal digits."""
        text = self.trace or json.dumps(self.knobs, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.knobs.items()) or f"trace {self.id}"


@dataclass(frozen=True)
class Verdict:
    """A finalist against the analytic schedule, both measured in turn in one process.

    Attributes:
        ratio: median of the paired time ratios; below 1 is faster than the analytic schedule.
        low, high: bootstrap interval of `ratio`, 95 %.
        p: one-sided Mann-Whitney probability of such samples were it not faster.
        n: pairs.
        won: faster beyond noise (see `statistics.verdict`), output equal to the reference.
        inside: the ratio inside a model, where that made the record lose; 0: it did not.
    """

    ratio: float
    low: float
    high: float
    p: float
    n: int
    won: bool
    inside: float = 0.0


@dataclass(frozen=True)
class Record:
    """One finished measurement.

    Attributes:
        samples: seconds of single calls (or of batches of calls, divided), in the order taken.
        digest: first sixteen digits of the SHA-256 of the reference output it was compared with, and the
            largest error relative to the largest reference value: ``"1f2e...:3.1e-07"``.
        host: processor name. date: UTC, ISO 8601.
        shape: the family's shape in words, for people who read a log.
        baseline: lower quartile of the analytic schedule's samples, taken in turn with these; 0: there are none.
    """

    key: Key
    candidate: Candidate
    status: Status
    samples: tuple[float, ...] = ()
    digest: str = ""
    note: str = ""
    shape: str = ""
    host: str = ""
    date: str = ""
    verdict: Verdict | None = None
    baseline: float = 0.0

    @property
    def score(self) -> float:
        """Time as a share of the analytic schedule's, measured in turn with it; infinite when it did not run.

        The lower quartile of both: a busy neighbour only ever adds time, and adds it to both alike.
        """
        if self.status != "ok" or not self.samples:
            return float("inf")
        ordered = sorted(self.samples)
        return ordered[len(ordered) // 4] / (self.baseline or ordered[len(ordered) // 4])

    @property
    def seconds(self) -> float:
        """Median of the samples; infinite when it has none.

        >>> Record(Key("w", "t", "0", "gemm", 1), Candidate(), "ok", (3.0, 1.0, 2.0)).seconds
        2.0
        """
        ordered = sorted(self.samples)
        middle = len(ordered) // 2
        if not ordered or self.status != "ok":
            return float("inf")
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def won(self) -> bool:
        return self.status == "ok" and self.verdict is not None and self.verdict.won


def record_of(data: Any, target: object) -> Record:
    """The record that plain data tell, under the names of `logs.to_line`: for lines of logs and rows of stores.

    Raises:
        ValueError: something is missing, or is not what is written there.
    """
    if not isinstance(data, Mapping):
        raise ValueError("it is not an object")

    def checked(name: str, fits: Callable[[Any], bool], default: object = None) -> Any:
        value = data.get(name, default)
        if not fits(value):
            raise ValueError(f"the field {name!r} is {'damaged' if name in data else 'missing'}")
        return value

    if not is_target(target):
        raise ValueError("the field 'target' is damaged")
    workload, tvm, family = (checked(name, _is_text) for name in ("workload", "tvm", "family"))
    key = Key(workload, str(target), tvm, family, checked("family_version", _is_whole))
    knobs = {name: int(value) for name, value in checked("knobs", _are_knobs, {}).items()}
    status = checked("status", lambda value: value in get_args(Status))
    verdict = checked("verdict", lambda value: value is None or _is_verdict(value))
    samples = tuple(map(float, checked("samples", _are_times, [])))
    baseline = float(checked("baseline", lambda value: _is_number(value) and value >= 0, 0.0))
    words = {name: checked(name, _is_text, "") for name in ("digest", "note", "shape", "host", "date")}
    return Record(
        key,
        Candidate(knobs, checked("trace", _is_text, "")),
        status,
        samples,
        verdict=Verdict(**verdict) if verdict else None,
        baseline=baseline,
        **words,
    )


def plain_data(text: str) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is no JSON, or too deeply nested to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_target(value: object) -> bool:
    """Whether this is a `fingerprint`, of which a file can be named.

    >>> is_target("llvm znver5 2c avx2+fma"), is_target("llvm"), is_target("llvm ../x 2c -")
    (True, False, False)
    """
    return _is_text(value) and re.fullmatch(r"[\w.+-]+ [\w.+-]+ \d+c \S.*", str(value)) is not None


def _is_text(value: object) -> bool:
    """Whether SQLite can keep it: JSON has halves of characters that no encoding has."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _are_knobs(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_whole(knob) for name, knob in value.items())


def _are_times(value: object) -> bool:
    return isinstance(value, list) and all(_is_number(time) and time > 0 for time in value)


def _is_verdict(value: object) -> bool:
    known = {f.name for f in fields(Verdict)}
    return (
        isinstance(value, dict)
        and known - {"inside"} <= value.keys() <= known
        and isinstance(value["won"], bool)
        and all(map(_is_number, value.values()))
    )


def fingerprint(machine: Machine) -> str:
    """The machine as a tuning record sees it: whatever may make another schedule the best one, in words.

    >>> fingerprint(Machine("m", "llvm", "znver5", cores=2, features=("fma", "avx2")))
    'llvm znver5 2c avx2+fma'
    """
    extra = "".join(f" {k}={v}" for k, v in sorted(machine.tvm.items()) if k != "needs")
    features = "+".join(sorted(machine.features)) or "-"
    return f"{machine.kind} {machine.mcpu} {machine.cores}c {features}{extra}"


def log_name(target: str) -> str:
    """File name of a target's shipped log: readable, and distinct where the fingerprint is.

    >>> log_name("llvm znver5 2c avx2+fma")
    'llvm-znver5-2c-721474.jsonl'
    """
    kind, mcpu, cores = target.split()[:3]
    return f"{kind}-{mcpu}-{cores}-{hashlib.sha256(target.encode()).hexdigest()[:6]}.jsonl"


def workload_hash(func: Any) -> str:
    """Sixteen hexadecimal digits that two PrimFuncs share if and only if they are the same up to names.

    TVM's structural hash: equal in every process (a test starts two), independent of variable and buffer names.
    Attributes are dropped: they say where a function came from, not what it computes.
    """
    import tvm_ffi

    for name in list(func.attrs.keys()):
        func = func.without_attr(name)
    return f"{tvm_ffi.structural_hash(func, map_free_vars=True) % 2**64:016x}"


def key_of(func: Any, family: Any, machine: Machine) -> Key:
    """The key of a normalized PrimFunc that `family` recognised."""
    return Key(workload_hash(func), fingerprint(machine), tvm_version(), family.NAME, family.VERSION)


@cache
def tvm_version() -> str:
    """Of the installed TVM, without importing it."""
    return version("apache-tvm")


def shape_words(shape: Any) -> str:
    """A family's shape in a few words, numbers only: ``m=196 n=1024 k=256``."""
    fields = getattr(shape, "__dataclass_fields__", {})
    plain = {n: getattr(shape, n) for n in fields}
    kept = {n: v for n, v in plain.items() if isinstance(v, int | float | str | tuple) and n not in _MACHINE_FIELDS}
    return " ".join(f"{n}={'x'.join(map(str, v)) if isinstance(v, tuple) else _short(v)}" for n, v in kept.items())


_MACHINE_FIELDS = ("lanes", "cores", "l2", "l1d")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@cache
def host_name() -> str:
    """The processor's name of itself: a log says on what, not at whose."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
