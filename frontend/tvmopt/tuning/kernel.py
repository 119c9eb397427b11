"""One candidate of one kernel: schedule it, build it, check its output, time it - inside a worker process.

The reference is the kernel without any schedule: loops as the operator's definition wrote them. It is built and run
once a task; every candidate's output is compared with it under the tolerance of the one comparator.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from tvmopt.analysis.comparator import compare
from tvmopt.lowering import math
from tvmopt.pipeline import compile_kernels
from tvmopt.runtime.tiles import request
from tvmopt.scheduling.blocks import blocks_of
from tvmopt.scheduling.discover import families
from tvmopt.scheduling.replay import Replay
from tvmopt.targets import Machine
from tvmopt.tuning.disturbance import RunDelay, disturbed
from tvmopt.tuning.effort import Effort, Kernel
from tvmopt.tuning.record import Candidate, host_name
from tvmopt.tuning.statistics import quantile, settled

SEED = 20260101


@dataclass
class Bench:
    """One task in one worker: its tensors and the candidates built here."""

    kernel: Kernel
    func: tirx.PrimFunc = field(init=False)
    built: dict[str, Callable[..., None]] = field(default_factory=dict)
    _ready: bool = False
    _inputs: list[Any] = field(default_factory=list)
    _reference: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.func = tvm.ir.load_json(self.kernel.module)["main"]

    # -- build -------------------------------------------------------------------------------------

    def build(self, candidate: Candidate) -> None:
        """Schedule and compile; the result is kept under the candidate's id."""
        self.built[candidate.id] = self._compiled(self.scheduled(candidate))

    def forget(self, ident: str) -> None:
        """Drop a built candidate; the analytic one stays, to be measured against."""
        if ident != Candidate(self.kernel.analytic).id:
            self.built.pop(ident, None)

    def scheduled(self, candidate: Candidate) -> tirx.PrimFunc:
        """The function under a candidate's schedule."""
        with self.kernel.machine.tvm_target():
            sch = Schedule(self.func)
            if candidate.trace:
                Replay(candidate.trace).apply(sch)
            else:
                family = next(f for f in families(self.kernel.machine.kind) if self.kernel.family == f.NAME)
                shape = family.recognise(self.func, self.kernel.machine)
                family.apply(sch, shape, candidate.knobs)
            return sch.mod["main"]

    def _module_of(self, func: tirx.PrimFunc) -> Any:
        return compiled_module(func, self.kernel.machine)

    def _compiled(self, func: tirx.PrimFunc) -> Callable[..., None]:
        call: Callable[..., None] = self._module_of(func)["main"]
        return call

    @property
    def precision(self) -> str | None:
        """Arithmetic that is coarser than the kernel's types show; None: it is not."""
        return None

    @property
    def host(self) -> str:
        """What measures, for the record."""
        return host_name()

    # -- outputs -----------------------------------------------------------------------------------

    def make_reference(self) -> str:
        """Write inputs and reference outputs, made by the unscheduled function; the digest of the latter."""
        folder = Path(self.kernel.folder)
        folder.mkdir(parents=True, exist_ok=True)
        inputs = seeded(self.func.params[: len(self.func.params) - self.kernel.outputs])
        outputs = self._run_once(self.func, inputs)
        digest = hashlib.sha256()
        for index, array in enumerate(inputs):
            np.save(folder / f"in{index}.npy", array)
        for index, tensor in enumerate(outputs):
            np.save(folder / f"out{index}.npy", tensor.numpy())
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        (folder / "digest").write_text(digest.hexdigest()[:16])
        return digest.hexdigest()[:16]

    def _run_once(self, func: tirx.PrimFunc, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a function that is not a candidate."""
        outputs = [self._tensor(a) for a in self._poisoned()]
        self._compiled(func)(*map(self._tensor, inputs), *outputs)
        return outputs

    def check(self, ident: str) -> tuple[bool, str, str]:
        """(right, digest, what is wrong) of a built candidate's output. Outputs are poisoned before the call."""
        self._load()
        outputs = self._empty_outputs()
        self.built[ident](*self._inputs, *outputs)
        return self._judged(outputs)

    def _judged(self, outputs: Sequence[Any]) -> tuple[bool, str, str]:
        found = {str(i): t.numpy() for i, t in enumerate(outputs)}
        reference = dict(zip(found, self._reference, strict=True))
        # 16-bit outputs are rounded once, after sums in float32
        terms = 1 if all(a.dtype.itemsize == 2 for a in self._reference) else reduction_length(self.func)
        result = compare(reference, found, reduction=terms, precision=self.precision)
        digest = (Path(self.kernel.folder) / "digest").read_text()
        return result.ok, f"{digest}:{result.max_error:.1e}", "" if result.ok else str(result)

    def _load(self) -> None:
        if not self._ready:
            self._ready = True
            folder = Path(self.kernel.folder)
            count = len(self.func.params) - self.kernel.outputs
            names = [f"in{i}.npy" for i in range(count)] + [f"out{i}.npy" for i in range(self.kernel.outputs)]
            kinds = [numpy_type(tensor_type(p)[1]) for p in self.func.params]
            # a file of bfloat16 says only that its elements have two bytes
            arrays = [np.load(folder / n, mmap_mode="r").view(k) for n, k in zip(names, kinds, strict=True)]
            self._inputs = [self._tensor(np.ascontiguousarray(a)) for a in arrays[:count]]
            self._reference = arrays[count:]

    def _tensor(self, array: Any) -> Any:
        return tvm.runtime.tensor(array, self.device)

    @property
    def device(self) -> Any:
        return tvm.cpu()

    def _empty_outputs(self) -> list[Any]:
        return [self._tensor(a) for a in self._poisoned()]

    def _poisoned(self) -> list[np.ndarray[Any, Any]]:
        """Output arrays full of what no kernel writes: NaN, or the largest integer."""
        made = []
        for param in self.func.params[len(self.func.params) - self.kernel.outputs :]:
            shape, dtype = tensor_type(param)
            array = np.zeros(shape, numpy_type(dtype))
            if array.dtype.kind in "fV":
                array.fill(np.nan)
            elif array.dtype.kind in "iu":
                array.fill(np.iinfo(array.dtype).max)
            made.append(array)
        return made

    # -- time --------------------------------------------------------------------------------------

    def measure(self, ident: str, effort: Effort) -> tuple[list[float], float]:
        """(seconds of single calls, lower quartile of the analytic schedule's in between), until the median is known
        well enough or the time is up."""
        base = Candidate(self.kernel.analytic)
        if base.id not in self.built:
            self.build(base)
        return sampled(self._timed(ident, effort.flush), self._timed(base.id, effort.flush), effort)

    def checked_and_measured(self, ident: str, effort: Effort) -> tuple[bool, str, str, list[float], float]:
        """(right, digest, what is wrong, samples, baseline): a wrong candidate is not timed."""
        right, digest, problem = self.check(ident)
        samples, baseline = self.measure(ident, effort) if right else ([], 0.0)
        return right, digest, problem, samples, baseline

    def compare(self, first: str, second: str, rounds: int, flush: str) -> list[tuple[float, float]]:
        """Two built candidates in turn, the order of each pair drawn: noise meets both alike."""
        return taken_in_turn(self._timed(first, flush), self._timed(second, flush), rounds)

    def _timed(self, ident: str, flush: str) -> Sample:
        """A function that takes one sample: one call, or as many as fill 20 us."""
        self._load()
        function, arguments = self.built[ident], (*self._inputs, *self._empty_outputs())
        weights = [arguments[i] for i in self.kernel.constants]
        evict: Callable[[], None] | None = None
        if flush == "memory" and weights:
            clflush = tvm.get_global_func("cache_flush_cpu_non_first_arg")
            evict = partial(clflush, weights[0], *weights)
        elif flush == "l3":
            evict = _sweep(self.kernel.machine)
        clock = time.perf_counter
        start = clock()
        function(*arguments)
        function(*arguments)
        calls = max(1, min(100, int(20e-6 / max(1e-7, (clock() - start) / 2))))

        delay = RunDelay()

        def sample() -> tuple[float, bool]:
            if evict is not None:
                evict()
            waited, begin = delay(), clock()
            for _ in range(calls):
                function(*arguments)
            took = clock() - begin
            return took / calls, not disturbed(took, delay() - waited)

        return sample


Sample = Callable[[], "tuple[float, bool]"]
"""Takes one sample: seconds, and whether it is clean (see disturbance.py)."""


def sampled(call: Sample, other: Sample, effort: Effort) -> tuple[list[float], float]:
    """(samples of `call`, lower quartile of `other`'s in between). Disturbed ones count only if there are too few clean
    ones: a screening is not a final."""
    call(), other()
    pairs, clean = list[tuple[float, float]](), list[tuple[float, float]]()
    end = time.perf_counter() + effort.seconds
    while len(pairs) < effort.most:
        (first, good), (second, fine) = call(), other()
        pairs.append((first, second))
        if good and fine:
            clean.append((first, second))
        late = time.perf_counter() > end
        if late or len(clean) >= effort.least:
            times = [a for a, _ in (clean if len(clean) >= effort.least else pairs)]
            base = [b for _, b in (clean if len(clean) >= effort.least else pairs)]
            hopeless = quantile(times, 0.25) > effort.give_up * quantile(base, 0.25)
            if late or hopeless or settled(times, effort.confidence):
                break
    kept = clean if len(clean) >= effort.least else pairs
    return [a for a, _ in kept], quantile([b for _, b in kept], 0.25)


def taken_in_turn(first: Sample, second: Sample, rounds: int, seconds: float = 8.0) -> list[tuple[float, float]]:
    """Up to `rounds` pairs, both samples clean, the order of each drawn; fewer where the machine is too busy."""
    first(), second()
    draw = random.Random(SEED)
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < rounds and time.perf_counter() < end:
        if draw.random() < 0.5:
            (a, good), (b, fine) = first(), second()
        else:
            (b, fine), (a, good) = second(), first()
        if good and fine:
            pairs.append((a, b))
    return pairs


@cache
def _sweep(machine: Machine) -> Callable[[], None]:
    """A function that fills every core's own caches with something else: each reads twice its L2."""
    from tvm import te

    length = 2 * machine.l2 // 4 // 1024
    source = te.placeholder((machine.cores, length, 1024), name="source")
    k = te.reduce_axis((0, length), name="k")
    total = te.compute((machine.cores, 1024), lambda c, i: te.sum(source[c, k, i], axis=k), name="total")
    sch = Schedule(te.create_prim_func([source, total]))
    block = sch.get_sblock("total")
    core, lane, row = sch.get_loops(block)
    sch.reorder(core, row, lane)
    sch.parallel(core)
    sch.vectorize(sch.split(lane, [None, machine.lanes()])[1])
    function = compiled_module(sch.mod["main"], machine)["main"]
    tensors = [tvm.runtime.tensor(np.zeros(tensor_type(p)[0], "float32")) for p in sch.mod["main"].params]
    return partial(function, *tensors)


def compiled_module(func: tirx.PrimFunc, machine: Machine) -> Any:
    """The function compiled as the product compiles it; this process may run it, tiles included, if the host can."""
    math.install()
    if machine.has_tiles:
        request()
    return compile_kernels(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), machine)


def tensor_type(param: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a PrimFunc's parameter."""
    kind: Any = getattr(param, "ty", None)
    source = kind if hasattr(kind, "shape") else param
    return tuple(int(d) for d in source.shape), str(source.dtype)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of TVM's name."""
    import ml_dtypes

    extended = getattr(ml_dtypes, dtype, None)
    return np.dtype(extended if extended is not None and not hasattr(np, dtype) else dtype)


def seeded(params: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Inputs of a kernel: floats standard normal, uint32 pairs of such bfloat16 (packed weights; nothing indexes by
    uint32), 8-bit integers over their range, other integers 0 or 1 (they may index)."""
    draw = np.random.default_rng(SEED)
    arrays = []
    for param in params:
        shape, dtype = tensor_type(param)
        kind = numpy_type(dtype)
        if kind.kind in "iu" and kind.itemsize == 1:
            info = np.iinfo(kind)
            arrays.append(draw.integers(info.min, info.max, shape, endpoint=True).astype(kind))
        elif kind == np.uint32:
            pairs = draw.standard_normal((*shape, 2), dtype=np.float32).astype(numpy_type("bfloat16"))
            arrays.append(pairs.view(np.uint32).reshape(shape))
        elif kind.kind in "iub":
            arrays.append(draw.integers(0, 2, shape).astype(kind))
        else:
            arrays.append(draw.standard_normal(shape, dtype=np.float32).astype(kind))
    return arrays


def reduction_length(func: tirx.PrimFunc) -> int:
    """Terms of the kernel's longest sum, in sequence of all its reductions: for the tolerance."""
    total = 1
    for block in blocks_of(func):
        terms = 1
        for axis in block.iter_vars:
            if int(axis.iter_type) == 2 and isinstance(axis.dom.extent, tirx.IntImm):
                terms *= int(axis.dom.extent)
        total += terms - 1
    return total
