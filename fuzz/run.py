"""A run of the fuzzer: workers take models by number until the time is over; findings are shrunk and written."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx

from fuzz.findings import Found, signature
from fuzz.inputs import OUTSIDE
from fuzz.once import Options
from fuzz.shrink import shrink
from fuzz.sources import DAMAGED, model_bytes
from fuzz.worker import SECONDS, Worker

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
        kind: one of `fuzz.sources.KINDS`.
        seed, start: models are numbered from `start` on; the same seed and number is the same model.
        count, seconds: it ends after so many models, or so much time.
        shrinks: so many findings of one signature are shrunk and written, of further ones the number is told; 0: one is
            written as it is.
        models: a folder of further valid models to mutate.
        inputs: kinds of inputs; empty: those that fit each model.
        real: the floating-point type of all models; empty: mostly float32.
    """

    kind: str = "graphs"
    seed: int = 0
    start: int = 0
    count: int = 1 << 60
    seconds: float = 60.0
    jobs: int = 1
    target: str = "cpu"
    precision: str = "fp32"
    out: str = ""
    shrinks: int = 2
    models: str = ""
    inputs: tuple[str, ...] = ()
    real: str = ""

    def options(self, index: int) -> Options:
        damaged = self.kind in DAMAGED
        kinds = ("normal", "edge", "zeros") if damaged else (OUTSIDE, "normal") if self.kind == "indices" else ()
        return Options(self.target, self.precision, self.inputs or kinds, not damaged, index)


@dataclass
class Summary:
    """Counts of a run."""

    models: int = 0
    runs: int = 0
    status: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)
    written: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The summary for a terminal."""
        states = ", ".join(f"{n} {s}" for s, n in self.status.most_common())
        found = ", ".join(f"{n} {k}" for k, n in self.kinds.most_common()) or "none"
        rows = [f"{self.models} models ({states}), {self.runs} runs in {self.seconds:.0f} s; findings: {found}"]
        rows += [f"  skipped or refused {n}x: {why}" for why, n in self.why.most_common(25)]
        rows += [f"  found {n}x: {name}" for name, n in self.signatures.most_common(60)]
        return rows


class Run:
    """Carries a plan out, with as many threads as it has jobs, a worker process each."""

    def __init__(self, plan: Plan, say: Progress) -> None:
        self.plan, self.say = plan, say
        self.summary = Summary()
        self._lock = threading.Lock()
        self._next = plan.start
        self._end = time.monotonic() + plan.seconds
        self._begin = time.monotonic()
        self._errors: list[BaseException] = []

    def __call__(self) -> Summary:
        threads = [threading.Thread(target=self._job) for _ in range(self.plan.jobs)]
        for thread in threads:
            thread.start()
        told = time.monotonic()
        while any(t.is_alive() for t in threads):
            time.sleep(0.2)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self._tell()
        self.summary.seconds = time.monotonic() - self._begin
        if self._errors:
            raise self._errors[0]
        return self.summary

    def _tell(self) -> None:
        s = self.summary
        passed = time.monotonic() - self._begin
        self.say(
            f"{passed:6.0f} s  {s.models} models, {s.models / passed:.1f} a second; findings: {dict(s.kinds) or 'none'}"
        )

    def _job(self) -> None:
        emulated = self.plan.target.startswith("nvidia-")  # a barrier of 1,024 threads takes it some 50 us
        worker = Worker(self.plan.kind in DAMAGED, SECONDS * (5 if emulated else 1))
        try:
            while True:
                with self._lock:
                    index = self._next
                    if index >= self.plan.start + self.plan.count or time.monotonic() > self._end:
                        return
                    self._next += 1
                self._one(worker, index)
        except BaseException as error:
            self._errors.append(error)
        finally:
            worker.close()

    def _one(self, worker: Worker, index: int) -> None:
        plan = self.plan
        data = model_bytes(plan.kind, plan.seed, index, plan.models, plan.real)
        options = asdict(plan.options(index))
        outcome = worker.check(data, options)
        with self._lock:
            s = self.summary
            s.models += 1
            s.runs += outcome["runs"]
            s.status[outcome["status"]] += 1
            if outcome["why"]:
                s.why[outcome["why"]] += 1
        by_kind = {f["kind"]: f for f in reversed(outcome["findings"])}
        for finding in by_kind.values():
            self._found(worker, index, finding, data, options)

    def _found(self, worker: Worker, index: int, finding: dict[str, str], data: bytes, options: dict[str, Any]) -> None:
        model = _parsed(data)
        small = model
        name = signature(finding, model)
        with self._lock:
            self.summary.kinds[finding["kind"]] += 1
            known = self.summary.signatures[name] >= max(1, self.plan.shrinks)
            if known:
                self.summary.signatures[name] += 1
        if known:
            self.say(f"again: {name} in model {index}")
            return
        if model is not None and self.plan.shrinks:
            small = self._shrunk(worker, model, finding, options)
            name = signature(finding, small)
        with self._lock:
            self.summary.signatures[name] += 1
            many = self.summary.signatures[name] > max(1, self.plan.shrinks)
        if many or not self.plan.out:
            self.say(f"{'again' if many else 'found'}: {name} in model {index}")
            return
        plan = self.plan
        command = f"scripts/fuzz --kind {plan.kind} --seed {plan.seed} --start {index} --count 1"
        command += f" --float {plan.real}" if plan.real else ""
        found = Found(index, finding, data, options, command)
        path = found.write(Path(self.plan.out), small)
        self.summary.written.append(str(path))
        self.say(f"found: {name}\n    {finding['inputs']} {finding['text'].splitlines()[0][:200]}\n    {path}")

    def _shrunk(
        self, worker: Worker, model: onnx.ModelProto, finding: dict[str, str], options: dict[str, Any]
    ) -> onnx.ModelProto:
        kinds = [finding["inputs"]] if finding["inputs"] else options["kinds"]
        place = signature(finding, None) if finding["kind"] in ("exception", "refused") else ""

        def shows(candidate: onnx.ModelProto) -> bool:
            outcome = worker.check(candidate.SerializeToString(), {**options, "kinds": kinds})
            return any(
                f["kind"] == finding["kind"] and (not place or signature(f, None) == place) for f in outcome["findings"]
            )

        return shrink(model, shows)


def _parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except Exception:  # protobuf has several classes for it
        return None


def replay(path: Path, options: Options) -> dict[str, Any]:
    """The outcome of one model file, in a worker."""
    worker = Worker(True)
    try:
        return worker.check(path.read_bytes(), asdict(options))
    finally:
        worker.close()
