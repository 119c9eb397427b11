"""One model's queue and the threads that empty it: bounded, with deadlines, requests put together where asked.

    submit -> [queue, at most so many] -> thread 1..n: take one, wait for more of the same shape, run them as one batch
           -> at once, where a client is alone with the server and the call is known to be short

Requests are put together along the first axis, where it is one open size of all inputs and outputs. Of a batch every
request gets its own rows. Texts of a decoder take turns in the same queue (`tvmopt.serving.together`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmopt.dims import Dim
from tvmopt.errors import InputError
from tvmopt.generation import Tokenizer
from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import Array
from tvmopt.serving.alone import LONGEST, Alone
from tvmopt.serving.refusals import Refused
from tvmopt.serving.together import Group, Text

Outputs = dict[str, Array]

KNOWN = 256
"""Shapes whose calls' seconds are known, of each model."""


@dataclass(frozen=True)
class Limits:
    """How a model is served.

    Attributes:
        instances: calls at a time. threads: of each call; None: as the artifact says.
        max_batch: rows that are put together at most; 1: nothing is. max_delay: seconds to wait for more rows.
        max_queue: requests that may wait. timeout: seconds that a request, or a token of a text, may take, its wait
            included.
        max_texts: texts that a decoder generates at a time: each has caches of its own.
        cores: the processors that a model runs on, by its name: "0-3", "node0"; those of "" are for all others.
    """

    instances: int = 1
    threads: int | None = None
    max_batch: int = 1
    max_delay: float = 0.0
    max_queue: int = 64
    timeout: float = 60.0
    max_texts: int = 8
    cores: Mapping[str, str] = field(default_factory=dict)

    def cores_of(self, model: str) -> str | None:
        """The processors that a model runs on; None: whatever the process may use."""
        return self.cores.get(model, self.cores.get(""))


@dataclass(eq=False)
class _Job:
    """A request."""

    feeds: Mapping[str, Array]
    rows: int
    key: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    came: float = field(default_factory=time.perf_counter)

    def done(self, result: Any) -> None:
        def tell() -> None:
            if not self.future.done():
                if isinstance(result, Exception):
                    self.future.set_exception(result)
                else:
                    self.future.set_result(result)

        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self.loop.call_soon_threadsafe(tell)


@dataclass(eq=False)
class _Turn:
    """A turn of texts, whose work tells how many there were in its step."""

    work: Callable[[], int]
    came: float = field(default_factory=time.perf_counter)


def batch_symbol(model: Model) -> str:
    """The open size along which requests may be put together; empty if there is none."""
    firsts = {str(i.shape[0]) if i.shape else "" for i in (*model.inputs, *model.outputs)}
    if len(firsts) != 1 or not model.inputs:
        return ""
    size = model.inputs[0].shape[0]
    return str(size) if isinstance(size, Dim) and size.is_symbol else ""


class Batcher:
    """Runs requests for one model.

    Args:
        observe: called with (what, seconds or rows): "queue", "compute", "rows"; from any thread.
        words: a decoder's tokenizer. encoder: what computes the output that it looks at.
        alone: whether the loop that reads requests may compute one.
    """

    def __init__(
        self, model: Model, limits: Limits, observe: Any = lambda what, value: None, words: Tokenizer | None = None,
        encoder: Model | None = None, alone: Alone | None = None,
    ) -> None:  # fmt: skip
        self.model, self.limits, self.words, self.encoder, self._observe = model, limits, words, encoder, observe
        self._alone, self._seconds = alone, dict[Any, float]()
        symbol = batch_symbol(model) if limits.max_batch > 1 else ""
        self.most = min(limits.max_batch, model.symbols[symbol].max) if symbol else 1
        self._batches = bool(symbol)
        self._waiting: deque[_Job | _Turn] = deque()
        self._groups: list[Group] = []
        self._changed = threading.Condition()
        self._ends = False
        self.texts = self._running = 0
        self._here = False  # a call runs in the loop
        self._threads = [
            threading.Thread(target=self._work, name=f"tvmopt-serve-{n}", daemon=True) for n in range(limits.instances)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> int:
        return self._running + self._here

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, feeds: Mapping[str, Array]) -> Outputs:
        """The outputs for these inputs.

        Raises:
            Refused: the queue is full (429), it took too long (504), or the model refuses a value (400).
        """
        first = next(iter(feeds.values()), None)
        rows = first.shape[0] if self._batches and first is not None else 1
        if self._is_short(feeds):
            return self._run_here(feeds, rows)
        if asyncio.current_task() is None:
            await asyncio.sleep(0)  # who began it without a task makes one of it now
        key = tuple((n, a.shape[1:]) for n, a in sorted(feeds.items())) if self._batches else None
        loop = asyncio.get_running_loop()
        job = _Job(feeds, rows, key, loop, loop.create_future())
        with self._changed:
            if self._ends:
                raise Refused(503, "the model is being unloaded.")
            if len(self._waiting) >= self.limits.max_queue:
                raise Refused(429, f"{len(self._waiting)} requests wait already; try again later.")
            self._waiting.append(job)
            self._changed.notify()
        found: Outputs = await self._answer(job)
        return found

    def _is_short(self, feeds: Mapping[str, Array]) -> bool:
        """Whether a call may run where its request was read."""
        if self._alone is None or not self._alone.now or self.running or self._waiting:
            return False
        waits = self._batches and self.limits.max_delay  # for other requests
        return not waits and self.model.cores is None and self._seconds.get(_shapes(feeds), LONGEST) < LONGEST

    def _run_here(self, feeds: Mapping[str, Array], rows: int) -> Outputs:
        """What stands behind the call finds its caches cold, and the answer waits for it: it is kept short."""
        assert self._alone is not None
        self._here = True  # and then it looks whether the end has begun; `close` begins it, and then looks here
        begin, ok = time.perf_counter(), False
        try:
            if self._ends:
                raise Refused(503, "the model is being unloaded.")
            found: Outputs = self.model.run(feeds)
            ok = True
            return found
        except Refused:
            raise
        except InputError as error:
            raise Refused(400, error.what) from None
        except Exception as error:
            raise _failed(error) from error
        finally:
            seconds = time.perf_counter() - begin
            self._here = False
            if self._ends:
                with self._changed:
                    self._changed.notify_all()
            self._alone.look()
            asyncio.get_running_loop().call_soon(self._tell, feeds, seconds, rows, ok)  # when the answer is on its way

    def _tell(self, feeds: Mapping[str, Array], seconds: float, rows: int, ok: bool) -> None:
        if ok:
            self._keep(feeds, seconds)
        for what, value in (("queue", 0.0), ("compute", seconds), ("rows", rows)):
            self._observe(what, value)

    def _timed(self, feeds: Mapping[str, Array]) -> Outputs:
        """A call; how long it took is kept by its shapes."""
        begin = time.perf_counter()
        found: Outputs = self.model.run(feeds)
        self._keep(feeds, time.perf_counter() - begin)
        return found

    def _keep(self, feeds: Mapping[str, Array], seconds: float) -> None:
        if len(self._seconds) >= KNOWN:
            self._seconds.clear()
        self._seconds[_shapes(feeds)] = seconds

    @contextmanager
    def text(self, text: Text) -> Iterator[Group]:
        """A text joins, and goes on even while the model is being unloaded; it leaves with the end of the block.

        Raises:
            Refused: too many wait (429), or the model is being unloaded (503).
        """
        limits = self.limits
        with self._changed:
            if self._ends:
                raise Refused(503, "the model is being unloaded.")
            if self.texts >= limits.max_texts + limits.max_queue:
                raise Refused(429, f"{self.texts} texts are being generated or wait; try again later (--max-texts).")
            if not self._groups:
                each = -(-limits.max_texts // limits.instances)
                self._groups = [Group(self.model, each, self._turn, self.encoder) for _ in range(limits.instances)]
            self.texts += 1
        group = min(self._groups, key=lambda one: one.count)
        group.join(text)
        try:
            yield group
        finally:
            group.leave(text)
            with self._changed:
                self.texts -= 1
                self._changed.notify_all()

    def _turn(self, work: Callable[[], int]) -> None:
        with self._changed:
            self._waiting.append(_Turn(work))
            self._changed.notify_all()  # who waits for more rows cannot take it

    async def _answer(self, job: _Job) -> Any:
        try:
            async with asyncio.timeout(self.limits.timeout):  # wait_for of Python 3.11 loses a cancellation
                return await job.future
        except TimeoutError:
            raise Refused(504, f"there was no result within {self.limits.timeout:g} s.") from None
        finally:
            if job.future.cancelled():  # it makes room for others
                with self._changed, suppress(ValueError):
                    self._waiting.remove(job)

    def close(self) -> None:
        """Take nothing more; return when all that waited has been run, and all texts have ended."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self.running)

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while jobs := self._next():
            begin = time.perf_counter()
            for job in jobs:
                self._observe("queue", begin - job.came)
            try:
                if isinstance(jobs[0], _Turn):
                    rows = jobs[0].work()
                else:
                    rows = sum(job.rows for job in jobs)
                    self._run(jobs)
            finally:
                with self._changed:
                    self._running -= len(jobs)
            self._observe("compute", time.perf_counter() - begin)
            if rows:
                self._observe("rows", rows)

    def _next(self) -> list[_Job] | list[_Turn]:
        """Requests for one call, or a turn of texts; nothing at the end."""
        with self._changed:
            while True:
                while not self._waiting:
                    if self._ends and not self.texts:
                        return []
                    self._changed.wait()
                first = self._waiting.popleft()
                if isinstance(first, _Turn) or not first.future.done():  # else who asked went away, or it was late
                    break
            self._running += 1
            if isinstance(first, _Turn):
                return [first]
            jobs = [first]
            rows, until = first.rows, first.came + self.limits.max_delay
            while self._batches and rows < self.most:
                more = self._fitting(first.key, self.most - rows)
                jobs += more
                self._running += len(more)
                rows += sum(job.rows for job in more)
                left = until - time.perf_counter()
                if left <= 0 or self._ends or rows >= self.most:
                    break
                self._changed.wait(left)
            return jobs

    def _fitting(self, key: Any, rows: int) -> list[_Job]:
        taken: list[_Job] = []
        kept: deque[_Job | _Turn] = deque()
        for job in self._waiting:
            if isinstance(job, _Turn) or job.key != key or job.rows > rows:
                kept.append(job)
            elif not job.future.done():
                taken.append(job)
                rows -= job.rows
        self._waiting = kept
        return taken

    def _run(self, jobs: list[_Job]) -> None:
        try:
            if len(jobs) == 1:
                jobs[0].done(self._timed(jobs[0].feeds))
                return
            names = [i.name for i in self.model.inputs]
            found = self.model.run({n: np.concatenate([job.feeds[n] for job in jobs]) for n in names})
        except InputError as error:
            if len(jobs) > 1:  # one of them is to blame: each by itself
                for job in jobs:
                    self._run([job])
                return
            jobs[0].done(Refused(400, error.what))
            return
        except Exception as error:  # a thread that ends would leave the queue to nobody
            for job in jobs:
                job.done(_failed(error))
            return
        at = 0
        for job in jobs:
            job.done({name: array[at : at + job.rows] for name, array in found.items()})
            at += job.rows


def _failed(error: Exception) -> Refused:
    return Refused(500, f"the model failed: {type(error).__name__}: {error}")


def _shapes(feeds: Mapping[str, Array]) -> tuple[Any, ...]:
    return tuple([(name, array.shape) for name, array in feeds.items()])
