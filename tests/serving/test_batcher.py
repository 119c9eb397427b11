"""The queue of a model: requests put together, the bound, deadlines, clients that went away, the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tvmopt.errors import InputError
from tvmopt.serving.alone import Alone
from tvmopt.serving.batcher import Batcher, Limits, batch_symbol
from tvmopt.serving.refusals import Refused


@pytest.fixture(scope="module")
def model(artifacts: Path) -> Any:
    return tvmopt.load(artifacts / "rows.tvmopt")


class Slow:
    """The model behind a gate; it notes the rows of each call."""

    def __init__(self, model: Any) -> None:
        self.model, self.open, self.calls = model, threading.Event(), []
        self.inputs, self.outputs, self.symbols = model.inputs, model.outputs, model.symbols
        self.inside = threading.Semaphore(0)

    def run(self, feeds: Mapping[str, Any]) -> Any:
        self.calls.append(len(feeds["x"]))
        self.inside.release()
        self.open.wait()
        if np.isnan(feeds["x"]).any():
            raise InputError("no NaN here")
        return self.model.run(feeds)


def x(rows: int, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)}


def test_what_can_be_put_together(model: Any, artifacts: Path) -> None:
    assert batch_symbol(model) == "n" and batch_symbol(tvmopt.load(artifacts / "kinds.tvmopt")) == ""


async def started(slow: Slow, batcher: Batcher, *given: Any) -> list[asyncio.Task[Any]]:
    """Requests that wait while the first one is in the model."""
    tasks = [asyncio.create_task(batcher.run(given[0]))]
    await asyncio.to_thread(slow.inside.acquire)
    for one in given[1:]:
        tasks.append(asyncio.create_task(batcher.run(one)))
        await asyncio.sleep(0)
    return tasks


def test_waiting_requests_become_one_call(model: Any) -> None:
    slow = Slow(model)
    batcher = Batcher(slow, Limits(max_batch=8))  # type: ignore[arg-type]
    given = [x(n, n) for n in (1, 3, 2, 4, 1, 5)]

    async def work() -> list[Any]:
        tasks = await started(slow, batcher, *given)
        slow.open.set()
        return await asyncio.gather(*tasks)

    results = asyncio.run(work())
    assert slow.calls == [1, 6, 4, 5], "3 + 2 + 1 of those that waited, then what no other fits beside"
    for feed, result in zip(given, results, strict=True):
        np.testing.assert_allclose(result["y"], model(feed["x"]), rtol=1e-5, atol=1e-6)
    batcher.close()


def test_one_bad_request_fails_alone(model: Any) -> None:
    slow = Slow(model)
    batcher = Batcher(slow, Limits(max_batch=16))  # type: ignore[arg-type]
    given = [x(1), x(2), {"x": np.full((1, 8), np.nan, np.float32)}, x(3)]

    async def work() -> list[Any]:
        tasks = await started(slow, batcher, *given)
        slow.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(work())
    assert [getattr(r, "status", 200) for r in results] == [200, 200, 400, 200]
    batcher.close()


def test_the_queue_is_bounded_and_has_deadlines(model: Any) -> None:
    slow = Slow(model)
    batcher = Batcher(slow, Limits(max_queue=2, timeout=0.2))  # type: ignore[arg-type]

    async def work() -> list[Any]:
        tasks = await started(slow, batcher, x(1), x(1), x(1), x(1))
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(work())
    assert [r.status for r in results] == [504, 504, 504, 429]
    slow.open.set()
    assert asyncio.run(batcher.run(x(2)))["y"].shape == (2, 4)
    assert slow.calls == [1, 2], "what was late is not computed"
    batcher.close()


def test_a_client_that_goes_away_is_not_computed(model: Any) -> None:
    slow = Slow(model)
    batcher = Batcher(slow, Limits())  # type: ignore[arg-type]

    async def work() -> None:
        first, second, third = await started(slow, batcher, x(1), x(2), x(3))
        second.cancel()
        await asyncio.sleep(0)
        slow.open.set()
        await asyncio.gather(first, third)

    asyncio.run(work())
    assert slow.calls == [1, 3]
    batcher.close()


def test_the_end_answers_what_waits(model: Any) -> None:
    slow = Slow(model)
    batcher = Batcher(slow, Limits(instances=2))  # type: ignore[arg-type]

    async def work() -> list[Any]:
        tasks = await started(slow, batcher, x(1), x(2), x(3))
        ends = asyncio.create_task(asyncio.to_thread(batcher.close))
        while not batcher._ends:
            await asyncio.sleep(0.001)
        with pytest.raises(Refused) as refused:
            await batcher.run(x(1))
        assert refused.value.status == 503
        slow.open.set()
        found = await asyncio.gather(*tasks)
        await ends
        return found

    assert [len(r["y"]) for r in asyncio.run(work())] == [1, 2, 3]


def test_a_failure_of_the_model_leaves_its_thread(model: Any) -> None:
    slow = Slow(model)
    slow.open.set()
    batcher = Batcher(slow, Limits())  # type: ignore[arg-type]
    run, slow.run = slow.run, lambda feeds: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(Refused) as refused:
        asyncio.run(batcher.run(x(1)))
    assert refused.value.status == 500 and "ZeroDivisionError" in refused.value.text
    slow.run = run  # type: ignore[method-assign]
    assert asyncio.run(batcher.run(x(1)))["y"].shape == (1, 4)
    batcher.close()


class Socket:
    """A connection as asyncio shows it, and its other end."""

    def __init__(self, alone: Alone) -> None:
        self.ours, self.theirs = socket.socketpair()
        alone.add(self)

    def get_extra_info(self, name: str) -> Any:
        return self.ours


class Where:
    """The model, which notes the thread of each call."""

    def __init__(self, model: Any, during: Any = lambda: None) -> None:
        self.model, self.threads, self.during, self.cores = model, [], during, None
        self.inputs, self.outputs, self.symbols = model.inputs, model.outputs, model.symbols

    def run(self, feeds: Mapping[str, Any]) -> Any:
        self.threads.append(threading.get_ident() == threading.main_thread().ident)
        self.during()
        if np.isnan(feeds["x"]).any():
            raise InputError("no NaN here")
        return self.model.run(feeds)


async def asked(batcher: Batcher, alone: Alone, rows: int = 1, inside: int = 1) -> Any:
    """A request that a service has taken, of so many."""
    while batcher.running:  # a thread that has told its result
        await asyncio.sleep(0)
    alone.inside += inside
    try:
        return await batcher.run(x(rows))
    finally:
        alone.inside -= inside


def test_who_is_alone_is_computed_where_it_was_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, where = Alone(), Where(model)
    told: list[Any] = []
    batcher = Batcher(where, Limits(max_batch=8), lambda *one: told.append(one), alone=alone)  # type: ignore[arg-type]

    async def work() -> None:
        await asked(batcher, alone)
        assert where.threads == [False], "no connection is known"
        first = Socket(alone)
        await asked(batcher, alone)
        assert where.threads.pop(), "its seconds are known"
        found = await asked(batcher, alone, rows=2)
        np.testing.assert_allclose(found["y"], model(x(2)["x"]), rtol=1e-5, atol=1e-6)
        assert not where.threads.pop(), "this shape's seconds are not"
        await asked(batcher, alone, inside=2)
        assert not where.threads.pop(), "another one is inside"
        where.during = lambda: first.theirs.send(b"x")
        await asked(batcher, alone)
        where.during = lambda: None
        assert where.threads.pop()
        await asked(batcher, alone)
        assert not where.threads.pop(), "another one had to wait"
        first.ours.recv(9)
        monkeypatch.setattr(alone, "_until", 0.0)
        await asked(batcher, alone)
        assert where.threads.pop(), "that was long ago"
        batcher._seconds = dict.fromkeys(batcher._seconds, 1.0)
        await asked(batcher, alone)
        assert not where.threads.pop(), "a long call"
        await asyncio.sleep(0)
        alone.remove(first)

    asyncio.run(work())
    batcher.close()
    assert [what for what, _ in told].count("rows") == 8 and ("rows", 2) in told


def test_what_waits_for_other_requests_goes_to_a_thread(model: Any) -> None:
    alone, where = Alone(), Where(model)
    batcher = Batcher(where, Limits(max_batch=8, max_delay=0.001), alone=alone)  # type: ignore[arg-type]

    async def work() -> None:
        kept = Socket(alone)
        for _ in range(2):
            await asked(batcher, alone)
        assert where.threads == [False, False] and kept

    asyncio.run(work())
    batcher.close()


def test_a_failure_where_it_was_read_is_an_answer(model: Any) -> None:
    alone, where = Alone(), Where(model)
    batcher = Batcher(where, Limits(), alone=alone)  # type: ignore[arg-type]

    async def work() -> list[int]:
        kept, found = Socket(alone), []
        await asked(batcher, alone)
        for during in (lambda: 1 / 0, lambda: (_ for _ in ()).throw(InputError("not this"))):
            where.during = during
            with pytest.raises(Refused) as refused:
                await asked(batcher, alone)
            found.append(refused.value.status)
        assert where.threads[1:] == [True, True] and kept and not batcher.running
        return found

    assert asyncio.run(work()) == [500, 400]
    batcher.close()
    with pytest.raises(Refused) as refused:
        asyncio.run(batcher.run(x(1)))
    assert refused.value.status == 503
