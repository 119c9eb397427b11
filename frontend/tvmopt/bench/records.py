"""What a benchmark found: the records that tables, JSON and HTML are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tvmopt.bench.stats import Latency, Ratio

FORMAT = 1  # of the JSON


@dataclass(frozen=True)
class Job:
    """One engine's task: what to load and how. Plain data, so that it can be sent to the engine's process.

    Attributes:
        engine: a name of :data:`tvmopt.bench.runners.RUNNERS`.
        model: the ONNX file, absolute; empty when only an engine file is given.
        prepared: the engine file that `build` writes and `load` reads (a tvmopt artifact, a TensorRT plan).
        threads: that the engine may use.
        streams: concurrent callers.
        precision: ``fp32``, ``bf16``, ``fp16``, ``int8``, as far as the engine can be asked.
        shapes: static shapes of the model's open inputs.
        options: what else the engine spec said: ``onnxruntime:opt_level=basic``.
        phase: of a decoder: ``"prefill"`` times a prompt, ``"step"`` single tokens behind it, ``"together"`` those of
            several texts; empty: one inference.
    """

    engine: str
    model: str
    prepared: str = ""
    threads: int = 1
    streams: int = 1
    precision: str = "fp32"
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True)
class Turn:
    """One turn of an engine: its single-call times, and what happened meanwhile.

    Attributes:
        seconds: of each call, first ones after the switch left out.
        wall: of the whole turn.
        disturbed: something else used the processor.
        others: processors that others used on average.
    """

    seconds: tuple[float, ...]
    wall: float
    disturbed: bool = False
    others: float = 0.0


@dataclass(frozen=True)
class EngineResult:
    """One row.

    Attributes:
        label: the engine spec, with ``#2`` for the second of its kind.
        job: what it was asked.
        status: ``"ok"``, ``"missing"`` (package or device), ``"failed"``, ``"wrong"`` (outputs disagree).
        message: what to install, the error, the comparison that failed, or the outputs of which nothing was compared.
        facts: version, providers, precision read back, threads, transfers, as the engine tells them.
        accuracy: largest error relative to the reference's scale; `compared`: whether there was a number to compare.
        latency: of undisturbed turns, or of disturbed ones where there are no others (`quiet` is False); None
            unless ok.
        rounds: for each launch, the median of each undisturbed round in seconds.
        samples: single-call times in seconds, thinned to at most 4096.
        alone_ms: median of turns right after a turn of its own; `rotation` is its time after another engine's turn
            over that.
        peak_mib: the process's peak memory while loading and running, `base_mib` before the engine was imported.
        build_s, load_s: seconds to compile and to load.
        disturbed: turns thrown away.
        transfers_ms: host-to-device and device-to-host times, where there is a device.
    """

    label: str
    job: Job
    status: str = "ok"
    message: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    accuracy: float = 0.0
    compared: bool = True
    latency: Latency | None = None
    quiet: bool = True
    rounds: tuple[tuple[float, ...], ...] = ()
    samples: tuple[float, ...] = ()
    alone_ms: float = 0.0
    rotation: float = 1.0
    peak_mib: float = 0.0
    base_mib: float = 0.0
    build_s: float = 0.0
    load_s: float = 0.0
    disturbed: int = 0
    transfers_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """All engines on one model with one batch and one number of threads.

    Attributes:
        model: the file's name.
        batch: leading dimension of the first input.
        ratios: the first engine's latency over each other's, by label.
        flops: operations of one call; `floor_bytes` the bytes that must move; `floor_ms` the time that
            nothing can beat on this machine with these threads; `floor_by` ``"compute"`` or ``"memory"``.
        rounds: rounds asked for and rounds played.
        phase: of a decoder, see :class:`Job`; then `batch` is the number of tokens of a call, and its inputs tell the
            lengths. floor_words: what the floor is made of.
    """

    model: str
    batch: int
    threads: int
    streams: int
    precision: str
    inputs: dict[str, str]
    engines: tuple[EngineResult, ...]
    ratios: dict[str, Ratio]
    flops: float = 0.0
    floor_bytes: float = 0.0
    floor_ms: float = 0.0
    floor_by: str = ""
    rounds: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    phase: str = ""
    floor_words: str = ""


@dataclass(frozen=True)
class BenchResult:
    """One `tvmopt bench`: the machine, the settings, and every case."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    cases: tuple[Case, ...]
    peaks: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data; a ratio that could not be measured is null."""
        data: dict[str, Any] = _without_nan(asdict(self))
        return data


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
