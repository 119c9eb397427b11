"""What both ways in do with a request for a model: find it, decode, run, count - for `rest` and `rpc`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from tvmopt.runtime.model import Model
from tvmopt.serving import texts
from tvmopt.serving.batcher import Batcher
from tvmopt.serving.metrics import Metrics
from tvmopt.serving.protocol import Request
from tvmopt.serving.refusals import Refused
from tvmopt.serving.repository import Repository

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
              "statistics", "generate"]  # fmt: skip

GONE = 499
"""Counted for a client that went away before its text ended."""


class _Counted:
    """A request while it is being answered, and the version of a model that answers it: the one asked for, or the
    newest. It is counted with its status when it has been answered, if there is such a model.

    Args:
        broken: the status if it ends with neither an answer nor a refusal.

    Raises:
        Refused: the server is ending, or there is no such model.
    """

    version = ""
    batcher: Batcher

    def __init__(self, service: Service, name: str, wanted: str, protocol: str, broken: int) -> None:
        self._service, self._name, self._wanted, self._protocol, self._broken = service, name, wanted, protocol, broken

    def __enter__(self) -> _Counted:
        self._begin = time.perf_counter()
        if self._service.drains:
            raise Refused(503, "the server is ending.")
        self.find()
        self._service.alone.inside += 1
        return self

    def find(self) -> None:
        """Take the version that there is now.

        Raises:
            Refused: there is none.
        """
        self.version, self.batcher = self._service.repository.find(self._name, self._wanted)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._service.alone.inside -= 1
        status = 200 if error is None else error.status if isinstance(error, Refused) else self._broken
        told = (self._name, self.version, self._protocol, status, time.perf_counter() - self._begin)
        asyncio.get_running_loop().call_soon(self._service.metrics.served, *told)  # when the answer is on its way


class Service:
    """A server's models.

    Attributes:
        drains: whether no new request is taken. max_body: bytes of one request.
        receiving: the tasks that wait for the body of a request.
    """

    def __init__(self, repository: Repository, metrics: Metrics, max_body: int) -> None:
        self.repository, self.metrics, self.max_body = repository, metrics, max_body
        self.drains = False
        self.receiving: set[asyncio.Task[Any]] = set()
        self.alone = repository.alone

    @property
    def inside(self) -> int:
        """Requests that are being answered."""
        return self.alone.inside

    @property
    def is_ready(self) -> bool:
        return not self.drains and self.repository.is_ready

    async def infer(
        self, name: str, version: str, protocol: str, decode: Callable[[Model], Request],
        encode: Callable[[Request, str, dict[str, Any], Model], Any],
    ) -> Any:  # fmt: skip
        """One inference; `decode` makes the request for the model, `encode` the answer of request, version and outputs.

        Raises:
            Refused: it got no result.
        """
        with _Counted(self, name, version, protocol, 500) as found:
            request = decode(found.batcher.model)
            try:
                outputs = await found.batcher.run(request.feeds)
            except Refused as refused:
                if refused.status != 503:
                    raise
                found.find()  # it was exchanged in this moment
                outputs = await found.batcher.run(request.feeds)
            return encode(request, found.version, outputs, found.batcher.model)

    async def generate(
        self, name: str, version: str, protocol: str, asked: texts.Asked
    ) -> AsyncGenerator[tuple[str, texts.Piece]]:
        """A text as it is computed, each piece with the version that computes it. Close it to cancel it.

        Raises:
            Refused: there is nothing more of it.
        """
        with _Counted(self, name, version, protocol, GONE) as found:
            observe = self.metrics.of_text(name, found.version)
            async with aclosing(texts.generate(found.batcher, asked, observe)) as pieces:
                async for piece in pieces:
                    yield found.version, piece

    def refuse_bodies(self) -> None:
        """Wait no more for requests that are half sent: who ends takes none of them."""
        for task in self.receiving:
            task.cancel()

    def overview(self) -> dict[str, Any]:
        """What the page shows."""
        from tvmopt.serving.protocol import metadata

        models = []
        for one in self.repository.index():
            told: dict[str, Any] = dict(one)
            if one["state"] == "READY":
                _, batcher = self.repository.find(one["name"], one["version"])
                told |= metadata(one["name"], [one["version"]], batcher.model)
                told["shapes"] = {i.name: [str(d) for d in i.shape] for i in batcher.model.inputs}
                told |= {"waiting": batcher.waiting, "running": batcher.running, "threads": batcher.model.threads}
                told |= {"generates": batcher.model.manifest.decoder.in_place, "words": batcher.words is not None}
            models.append(told | self.metrics.recent(one["name"]))
        return {"models": models, "ready": self.is_ready, "begin": self.metrics.begin}
