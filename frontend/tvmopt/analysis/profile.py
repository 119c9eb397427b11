"""Where the time of a run goes, kernel by kernel, and what can be done about it - for `tvmopt profile`.

TVM 0.27 has no profiler. Its virtual machine calls an *instrument* before and after every kernel; two clock
readings there give a kernel's time inside a real run, with the caches as they are (:mod:`.recorder`). Nothing is
subtracted: that the times add up to the latency without the instrument is a check, and its outcome is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.advice import Advice, advise
from tvmopt.analysis.attribution import attribute
from tvmopt.analysis.memory import Memory, memory
from tvmopt.analysis.peaks import Peaks, gpu_peaks, measure_peaks, remember
from tvmopt.analysis.recorder import Recorder, Recording
from tvmopt.analysis.roofline import Position, locate
from tvmopt.analysis.samples import sample_inputs
from tvmopt.errors import InputError, TvmoptError
from tvmopt.report import Flow, Kernel, Value
from tvmopt.runtime.model import Model, load
from tvmopt.targets import Machine

ABOVE = 1.05
"""A kernel may seem this much faster than the arithmetic peak before the peak is not believed."""

SURE = 50e-6
"""Seconds that a call takes at least whose rate is kept as a roof for other profiles: shorter ones are hard to time."""


@dataclass(frozen=True)
class Call:
    """One call of a kernel in the run: `start` and `seconds` from the run's beginning, its ONNX `nodes`."""

    kernel: str
    nodes: tuple[str, ...]
    start: float
    seconds: float


@dataclass(frozen=True)
class KernelTime:
    """One kernel, all its calls together.

    Attributes:
        name: PrimFunc symbol, or the runtime's builtin.
        family, source, knobs: who scheduled it, from :class:`~tvmopt.report.Kernel`.
        nodes: ONNX nodes of all call sites.
        calls: in one run.
        seconds: of all calls of one run.
        share: of the latency, 0 to 1; of all kernels' time where no run was quiet.
        flops, bytes: of all calls, as executed: what the hardware's roofs limit.
        onnx_flops: of all calls, by the definitions of the operators they compute. Winograd executes fewer.
        position: on the roofline, per call, by what is executed.
        advice: what to do, and what the model would gain.
        precision: of its arithmetic, which decides its roof: the model's, or int8.
    """

    name: str
    family: str
    source: str
    knobs: dict[str, Any]
    nodes: tuple[str, ...]
    calls: int
    seconds: float
    share: float
    flops: float
    onnx_flops: float
    bytes: float
    position: Position
    advice: Advice
    precision: str = "fp32"

    @property
    def gflops(self) -> float:
        """Executed operations a second, in 1e9."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def onnx_gflops(self) -> float:
        """Operations of the model's definition a second, in 1e9; Winograd may pass the roof with it."""
        return self.onnx_flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """A profiled model.

    Attributes:
        latency_s: mean of plain runs, no instrument.
        kernels: by time, most first.
        calls: one run in order, each with its mean time.
        instrument: ``"native"``; ``"python"`` where there is no C compiler; ``"cuda events"`` on a GPU.
        overhead_s: what the instrument adds to one call of a kernel: instrumented less plain latency, over
            the calls.
        runs: instrumented runs during which the process never waited for a processor.
        disturbed: there were too few of these; every time is the quickest of all runs instead.
        unexplained_s: latency less the kernels' times: the virtual machine itself, and error.
        planned_bytes, resident_bytes: activations as planned by the compiler; growth of the process's memory
            over loading and the first run (weights, code and activations).
        measured_bytes: what the process grew by during its first run, at the most: activations, outputs and the
            kernels' own workspaces. None where it cannot be told: a model that may have run before, a GPU, or no Linux.
        memory: bytes of activations alive in each step; None of an artifact that does not know its graph, or has open
            sizes.
        covered: share of an instrumented run that its kernels take, median of all runs: a check that holds
            on a busy machine too, because both sides of it were disturbed alike.
        flow: the graph of steps, for plots.
    """

    model: str
    target: str
    threads: int
    latency_s: float
    kernels: tuple[KernelTime, ...]
    calls: tuple[Call, ...]
    instrument: str
    overhead_s: float
    runs: int
    disturbed: bool
    planned_bytes: int
    resident_bytes: int
    peaks: Peaks
    measured_bytes: int | None = None
    memory: Memory | None = None
    covered: float = 0.0
    flow: Flow = field(default_factory=Flow, repr=False)
    precision: str = "fp32"

    @property
    def above(self) -> tuple[str, ...]:
        """Kernels above the arithmetic peak, which was measured on a busy machine then: it is measured again."""
        return tuple(k.name for k in self.kernels if k.position.compute_share > ABOVE)

    @property
    def overhead(self) -> str:
        """`overhead_s` in words; on a busy machine a run with the instrument may be the quicker one."""
        return f"{self.overhead_s * 1e6:.1f} us a call" if self.overhead_s > 0 else "nothing that could be measured"

    @property
    def accounted_s(self) -> float:
        """Sum of the kernels' times."""
        return sum(k.seconds for k in self.kernels)

    @property
    def unexplained_s(self) -> float:
        """Latency that no kernel accounts for."""
        return self.latency_s - self.accounted_s

    @property
    def flops(self) -> float:
        """Operations of one run, as executed."""
        return sum(k.flops for k in self.kernels)

    @property
    def onnx_flops(self) -> float:
        """Operations of one run by the definitions of the model's operators."""
        return sum(k.onnx_flops for k in self.kernels)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        data = asdict(replace(self, flow=Flow()))
        del data["flow"]
        if self.memory:
            data["memory"]["peak_tensors"] = [
                {"name": t.name, "shape": t.shape, "bytes": t.bytes} for t in self.peak_tensors
            ]
        return data | {"accounted_s": self.accounted_s, "unexplained_s": self.unexplained_s}

    @property
    def peak_tensors(self) -> tuple[Value, ...]:
        """The activations alive when most is, largest first."""
        return tuple(self.flow.values[i] for i in self.memory.peak_tensors) if self.memory else ()


def profile(
    artifact: str | Path | Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    runs: int = 60,
    seconds: float = 3.0,
    seed: int = 0,
    peaks: Peaks | None = None,
) -> Profile:
    """Time every kernel of a compiled model inside real runs.

    Args:
        artifact: the file, or a loaded model.
        inputs: by name; missing ones are random (seeded), of the sizes of those that are given or the named ones.
        runs: undisturbed instrumented runs wanted, and as many plain ones in turn with them.
        seconds: stop earlier after this long; on a machine that is never quiet, after four times as long.
        peaks: the machine's roofs; measured when absent.

    Raises:
        ArtifactError, InputError: as :func:`tvmopt.load` and a call.
    """
    before = _resident()
    model = artifact if isinstance(artifact, Model) else load(artifact, threads=threads)
    gpu = model.manifest.kind == "cuda"
    roofs = peaks or (_of_gpu(model) if gpu else measure_peaks(model.threads))
    given = dict(inputs or {})
    bounds = model.manifest.options.get("bounds", {})
    feeds = sample_inputs(model.inputs_beside(given), seed=seed, bounds=bounds) | given
    recorder = Recorder(model, feeds)
    fresh = model is not artifact and not gpu
    with _peak() as measured:
        recorder.plain()
    resident = max(0, _resident() - before)
    recording = recorder.measure(runs, seconds)
    found = _summarise(model, roofs, recording, resident)
    if found.above and peaks is None and not gpu:  # no kernel is faster than the machine: the peak is wrong
        found = _summarise(model, measure_peaks(model.threads, again=True), recording, resident)
    sure, raised = observed(found, SURE), observed(found)
    if peaks is None and sure != found.peaks and not gpu:
        remember(sure)
    if raised != found.peaks:
        found = _summarise(model, raised, recording, resident)
    return replace(found, measured_bytes=measured[0] if fresh and measured else None)


def _of_gpu(model: Model) -> Peaks:
    """The peaks of the GPU that a model was compiled for; of its architecture where it has no description here."""
    try:
        return gpu_peaks(Machine.load(model.manifest.target))
    except TvmoptError:
        return gpu_peaks(Machine.load(model.manifest.mcpu))


def observed(found: Profile, least: float = 0.0) -> Peaks:
    """The profile's peaks, no lower than what its kernels (those of at least so many seconds a call) have reached."""
    flops: dict[str, float] = {}
    bandwidth: dict[str, float] = {}
    for k in found.kernels:
        if k.seconds <= least * k.calls or not k.seconds:
            continue
        level = found.peaks.level(k.bytes / k.calls)
        bandwidth[level] = max(bandwidth.get(level, 0.0), k.bytes / k.seconds)
        if k.position.compute_share > 1:
            flops[k.precision] = max(flops.get(k.precision, 0.0), k.flops / k.seconds)
    return found.peaks.at_least(flops, bandwidth, "observed")


def _summarise(model: Model, peaks: Peaks, found: Recording, resident: int) -> Profile:
    """The profile of a recording.

    Means, because means add up and medians do not; of a machine that was never quiet the quickest of
    everything, because others can only slow a call down - such times need not add up.
    """
    if not found.names:
        raise InputError("the model calls no kernel: there is nothing to profile.", where=model.manifest.model)
    pick = np.min if found.disturbed else np.mean
    latency = float(pick(found.plain))
    known, planned = _kernels(model)
    flow = Flow.from_dict(model.manifest.report.get("flow", {}))
    onnx = _onnx_flops(flow, known)
    calls = _calls(found.names, pick(found.times, axis=0), known)
    rows = []
    apart = sum(c.seconds for c in calls)  # on a GPU kernels are launched one by one, with gaps that a graph has not
    whole = apart if found.disturbed else max(latency, apart) if found.instrument == "cuda events" else latency
    for name in dict.fromkeys(found.names):
        mine = [c for c in calls if c.kernel == name]
        if found.instrument == "cuda events" and name not in known:
            continue  # the virtual machine's own work, which takes the GPU no time
        row = _row(name, mine, known.get(name), whole, peaks, model.manifest.precision)
        rows.append(replace(row, onnx_flops=onnx.get(name, 0.0)))
    return Profile(
        model=model.manifest.model,
        target=str(model.manifest.target),
        threads=model.threads,
        latency_s=latency,
        kernels=tuple(sorted(rows, key=lambda k: -k.seconds)),
        calls=tuple(calls),
        instrument=found.instrument,
        overhead_s=(float(pick(found.total)) - latency) / len(found.names),
        runs=len(found.times),
        disturbed=found.disturbed,
        planned_bytes=planned,
        resident_bytes=resident,
        peaks=peaks,
        memory=memory(flow) if flow.steps and not _open(flow) else None,
        covered=float(np.median([t.sum() / all_ for t, all_ in zip(found.times, found.total, strict=True)])),
        flow=flow,
        precision=model.manifest.precision,
    )


def _open(flow: Flow) -> bool:
    """Whether a tensor has an open size."""
    return any(min(v.shape, default=0) < 0 for v in flow.values)


def _onnx_flops(flow: Flow, known: Mapping[str, Kernel]) -> dict[str, float]:
    """By kernel, of all its calls; nothing where sizes are open: nodes of open sizes would count as no work."""
    if _open(flow):
        return {}
    total: dict[str, float] = {}
    for step, flops in zip(flow.steps, attribute(flow, tuple(known.values())).flops(flow), strict=True):
        total[step.kernel] = total.get(step.kernel, 0.0) + flops
    return total


def _kernels(model: Model) -> tuple[dict[str, Kernel], int]:
    """The compile report's kernels by symbol, and the activations it planned."""
    report = model.manifest.report
    kernels = {}
    for data in report.get("kernels", ()):
        kernel = Kernel(**{**data, "nodes": tuple(map(tuple, data["nodes"]))})
        kernels[kernel.name] = kernel
    return kernels, int(report.get("activation_bytes", 0))


def _calls(names: list[str], times: Any, known: Mapping[str, Kernel]) -> list[Call]:
    """The run in order; the n-th call of a kernel belongs to its n-th call site."""
    calls, seen, now = [], dict.fromkeys(names, 0), 0.0
    for name, seconds in zip(names, times, strict=True):
        kernel, index = known.get(name), seen[name]
        seen[name] += 1
        nodes = kernel.nodes[index] if kernel and index < len(kernel.nodes) else ()
        calls.append(Call(name, nodes, now, float(seconds)))
        now += float(seconds)
    return calls


def _row(
    name: str, calls: list[Call], kernel: Kernel | None, latency: float, peaks: Peaks, precision: str
) -> KernelTime:
    seconds = sum(c.seconds for c in calls)
    flops, nbytes = (kernel.flops, kernel.bytes) if kernel else (0.0, 0.0)
    precision = (kernel.precision if kernel else "") or precision
    position = locate(seconds / len(calls), flops, nbytes, peaks, precision)
    family = kernel.family if kernel else "builtin"
    source = kernel.source if kernel else "builtin"
    return KernelTime(
        name=name,
        family=family,
        source=source,
        knobs=dict(kernel.knobs) if kernel else {},
        nodes=tuple(dict.fromkeys(n for c in calls for n in c.nodes)),
        calls=len(calls),
        seconds=seconds,
        share=seconds / latency if latency else 0.0,
        flops=flops * len(calls),
        onnx_flops=0.0,
        bytes=nbytes * len(calls),
        position=position,
        advice=advise(position, seconds, latency, family, source, len(calls), peaks, precision),
        precision=precision,
    )


def _resident() -> int:
    """Resident bytes of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Afterwards the list holds the most that resident memory rose above where it stood; empty where Linux
    does not tell.
    """
    import ctypes

    found: list[int] = []
    try:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:  # what loading freed would be used again, and the growth not be seen
            trim(0)
        before = _resident()
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        yield found
        return
    yield found
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found.append(max(0, int(lines["VmHWM"].split()[0]) * 1024 - before))


def chrome_trace(found: Profile) -> dict[str, Any]:
    """One run as a trace for Perfetto and chrome://tracing: a slice a call, with its nodes and figures."""
    by_name = {k.name: k for k in found.kernels}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{found.model} on {found.target}"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "kernels"}},
    ]
    for call in found.calls:
        kernel = by_name[call.kernel]
        flops, nbytes = kernel.flops / kernel.calls, kernel.bytes / kernel.calls
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "name": "+".join(call.nodes) or call.kernel,
                "cat": kernel.family,
                "ts": call.start * 1e6,
                "dur": call.seconds * 1e6,
                "args": {
                    "kernel": call.kernel,
                    "family": kernel.family,
                    "knobs from": kernel.source,
                    "bound": kernel.position.bound,
                    "of roof": f"{kernel.position.roof_share:.0%}",
                    "FLOP executed": flops,
                    "FLOP by ONNX": kernel.onnx_flops / kernel.calls,
                    "bytes": nbytes,
                },
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
