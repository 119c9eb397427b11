"""The queue of a model: requests put together, the bound, deadlines, clients that went away, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tvmopt.errors import InputError
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
