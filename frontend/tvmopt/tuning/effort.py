"""What a worker is told: the kernel, and how hard to measure - plain data, no TVM, for both sides of the socket."""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.targets import Machine


@dataclass(frozen=True)
class Kernel:
    """A task as a worker receives it: plain data.

    Attributes:
        id: the workload's hash.
        module: TVM's JSON of an IRModule whose `main` is the normalized PrimFunc.
        family: its family's name.
        constants: indices of the parameters that are weights: what the cache flush evicts between runs.
        outputs: how many parameters, the last ones, are outputs.
        analytic: the knobs of the analytic point.
        rpc: host and port of a tracker, and the key of the boards that measure; None: this machine measures.
        folder: where inputs and reference are kept as .npy files, shared by all workers.
    """

    id: str
    module: str
    family: str
    machine: Machine
    constants: tuple[int, ...]
    outputs: int
    analytic: dict[str, int]
    folder: str = ""
    rpc: tuple[str, int, str] | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure. Samples of a candidate are taken in turn with samples of the analytic schedule.

    Attributes:
        least, most: samples. confidence: stop when the 95 % interval of the median is within this share of
            it.
        seconds: of one candidate, at most.
        flush: where the weights are before each sample: "memory", "l3" (out of each core's own caches), or "no" flush.
        give_up: once `least` samples show more than this many times the analytic schedule's time, it does not win.
        rounds: pairs of a final.
    """

    least: int = 7
    most: int = 100
    confidence: float = 0.02
    seconds: float = 0.1
    flush: str = "memory"
    give_up: float = float("inf")
    rounds: int = 40
