"""The history of nightly runs: one line a job and night, and the test that says whether something became slower.

figures   samples of the model's latency, and of each kernel inside the model; samples of a probe (a SHA-256 of 1 MB)
          taken in between, which only the machine can make slower
change    tonight against the last night before it that did not fail: slower when the median grew by more than
          `tolerance`, the bootstrap interval of the ratio stays above 1 + tolerance / 2, Mann-Whitney gives
          p < 0.001, and the same holds after dividing by the probe
cause     what differs between the two lines for that kernel: knobs, source, family, versions, target
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.tuning.statistics import mann_whitney, median

TOLERANCE = 0.05
ALPHA = 0.001
MODEL = "(whole model)"


@dataclass(frozen=True)
class KernelFigures:
    """One kernel of one night: seconds an inference spends in it, samples (none where every run was disturbed); and how
    it is scheduled."""

    seconds: tuple[float, ...]
    family: str = ""
    source: str = ""
    knobs: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One job of one night.

    Attributes:
        night: the date, ``2026-01-31``. job: the job's name.
        status: "ok", "slower" (a regression), "unstable" (something else used the processor: its figures are of no use,
            and no night is compared with it), or "failed" (it did not compile, or its output was wrong).
        seconds: samples of one inference. probe: of the probe, in between.
        versions: of tvmopt, TVM, onnxruntime.
        trials: measured by this night's tuning. tuned: kernels with a record. accuracy: the largest relative
            error.
    """

    night: str
    job: str
    status: str
    target: str = ""
    seconds: tuple[float, ...] = ()
    probe: tuple[float, ...] = ()
    kernels: dict[str, KernelFigures] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    trials: int = 0
    tuned: int = 0
    accuracy: float = 0.0
    note: str = ""
    changes: tuple[Change, ...] = ()

    @property
    def latency(self) -> float:
        """Median seconds; 0 without samples."""
        return median(self.seconds) if self.seconds else 0.0


@dataclass(frozen=True)
class Change:
    """A kernel, or the whole model, that became slower (`ratio` above 1) or faster."""

    what: str
    ratio: float
    low: float
    high: float
    before: float
    after: float
    causes: tuple[str, ...] = ()

    @property
    def slower(self) -> bool:
        return self.ratio > 1

    def __str__(self) -> str:
        word = "slower" if self.slower else "faster"
        why = "; ".join(self.causes) or "nothing that the history knows changed: the code or the machine did"
        return (
            f"{self.what}: {self.before * 1e6:.1f} -> {self.after * 1e6:.1f} us, {self.ratio:.3f} times "
            f"[{self.low:.3f}, {self.high:.3f}], {word}; {why}"
        )


class History:
    """The file: JSON-lines, appended and synced a line at a time; a torn last line is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Entry) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a") as file:
            file.write(("\n" if torn else "") + json.dumps(asdict(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self, job: str = "") -> list[Entry]:
        """In the order written."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().splitlines():
            try:
                entry = _entry(json.loads(line))
            except (ValueError, TypeError, KeyError):
                continue
            if not job or entry.job == job:
                found.append(entry)
        return found

    def done(self, night: str, job: str) -> Entry | None:
        """Tonight's line of a job, if it has one already: a restarted night skips it."""
        return next((e for e in self.entries(job) if e.night == night), None)

    def reference(self, job: str, night: str, target: str) -> Entry | None:
        """The last earlier night that was right, on the same target."""
        good = [e for e in self.entries(job) if e.night < night and e.status == "ok" and e.target == target]
        return good[-1] if good else None


def _entry(data: dict[str, Any]) -> Entry:
    def tupled(values: Any) -> tuple[Any, ...]:
        return tuple(values)

    kernels = {
        name: KernelFigures(tupled(k["seconds"]), k["family"], k["source"], k["knobs"], tupled(k["nodes"]))
        for name, k in data["kernels"].items()
    }
    changes = tuple(Change(**{**c, "causes": tupled(c["causes"])}) for c in data["changes"])
    seconds, probe = tupled(data["seconds"]), tupled(data["probe"])
    return Entry(**{**data, "seconds": seconds, "probe": probe, "kernels": kernels,
                    "changes": changes})  # fmt: skip


def changes(before: Entry, after: Entry, tolerance: float = TOLERANCE) -> list[Change]:
    """What became slower or faster beyond noise, the model first, then the kernels that cost most."""
    pairs = {MODEL: (before.seconds, after.seconds)}
    for name, figures in after.kernels.items():
        if name in before.kernels:
            pairs[name] = (before.kernels[name].seconds, figures.seconds)
    machine = median(after.probe) / median(before.probe) if before.probe and after.probe else 1.0
    found = []
    for name, (old, new) in pairs.items():
        change = compared(old, new, tolerance, machine)
        if change is not None:
            causes = tuple(_causes(name, before, after))
            found.append(Change(name, *change, median(old), median(new), causes))
    return sorted(found, key=lambda c: (c.what != MODEL, -abs(c.after - c.before)))


def compared(
    old: Sequence[float], new: Sequence[float], tolerance: float, machine: float
) -> tuple[float, float, float] | None:
    """(ratio, low, high) of two sets of samples if they differ beyond noise; `machine`: how much slower it became.

    >>> steady = [1 + i % 7 / 1000 for i in range(30)]
    >>> compared(steady, steady, 0.05, 1.0), compared(steady, [1.2 * s for s in steady], 0.05, 1.0)[0]
    (None, 1.2)
    >>> compared(steady, [1.2 * s for s in steady], 0.05, 1.2) is None     # the whole machine was slower
    True
    """
    if len(old) < 5 or len(new) < 5:
        return None
    raw = median(new) / median(old)
    ratio = raw / machine
    slower = ratio > 1
    strongest = min(raw, ratio) if slower else max(raw, ratio)
    draw = random.Random(len(old))
    ratios = sorted(median(draw.choices(new, k=len(new))) / median(draw.choices(old, k=len(old))) for _ in range(400))
    low, high = ratios[10], ratios[-11]
    if slower:
        real = strongest > 1 + tolerance and low > 1 + tolerance / 2 and mann_whitney(old, new) < ALPHA
    else:
        real = strongest < 1 - tolerance and high < 1 - tolerance / 2 and mann_whitney(new, old) < ALPHA
    return (round(raw, 4), round(low, 4), round(high, 4)) if real else None


def _causes(name: str, before: Entry, after: Entry) -> list[str]:
    found = [
        f"{package} {before.versions.get(package, 'absent')} -> {version}"
        for package, version in sorted(after.versions.items())
        if before.versions.get(package) != version
    ]
    names = [name] if name != MODEL else [n for n in after.kernels if n in before.kernels]
    for kernel in names:
        old, new = before.kernels[kernel], after.kernels[kernel]
        prefix = f"{kernel}: " if name == MODEL else ""
        if (old.knobs, old.source) != (new.knobs, new.source):
            found.append(f"{prefix}record {old.source} ({old.knobs}) -> {new.source} ({new.knobs})")
        if old.family != new.family:
            found.append(f"{prefix}family {old.family} -> {new.family}")
    return found
