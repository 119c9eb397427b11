"""What both ways in do with a request for a model: find it, decode, run, count - for `rest` and `rpc`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
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


class _Found:
    """The version of a model that answers a request: the one asked for, or the newest."""

    version = ""
    batcher: Batcher

    def __init__(self, name: str, wanted: str) -> None:
        self._name, self._wanted = name, wanted

    def find(self, repository: Repository) -> None:
        """Take the one that there is now.

        Raises:
            Refused: there is none.
        """
        self.version, self.batcher = repository.find(self._name, self._wanted)


class Service:
    """A server's models.

    Attributes:
        drains: whether no new request is taken. max_body: bytes of one request.
    """

    def __init__(self, repository: Repository, metrics: Metrics, max_body: int) -> None:
        self.repository, self.metrics, self.max_body = repository, metrics, max_body
        self.drains = False
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
        with self._counted(name, version, protocol, 500) as found:
            request = decode(found.batcher.model)
            try:
                outputs = await found.batcher.run(request.feeds)
            except Refused as refused:
                if refused.status != 503:
                    raise
                found.find(self.repository)  # it was exchanged in this moment
                outputs = await found.batcher.run(request.feeds)
            return encode(request, found.version, outputs, found.batcher.model)

    async def generate(
        self, name: str, version: str, protocol: str, asked: texts.Asked
    ) -> AsyncGenerator[tuple[str, texts.Piece]]:
        """A text as it is computed, each piece with the version that computes it. Close it to cancel it.

        Raises:
            Refused: there is nothing more of it.
        """
        with self._counted(name, version, protocol, GONE) as found:
            observe = self.metrics.of_text(name, found.version)
            async with aclosing(texts.generate(found.batcher, asked, observe)) as pieces:
                async for piece in pieces:
                    yield found.version, piece

    @contextmanager
    def _counted(self, name: str, version: str, protocol: str, broken: int) -> Iterator[_Found]:
        """The model of a request, which is counted with its status when it has been answered; of a model that there is.

        Args:
            broken: the status if it ends with neither an answer nor a refusal.

        Raises:
            Refused: the server is ending, or there is no such model.
        """
        begin, status, found = time.perf_counter(), broken, _Found(name, version)
        self.alone.inside += 1
        try:
            if self.drains:
                raise Refused(503, "the server is ending.")
            found.find(self.repository)
            yield found
            status = 200
        except Refused as refused:
            status = refused.status
            raise
        finally:
            self.alone.inside -= 1
            if found.version:
                told = (name, found.version, protocol, status, time.perf_counter() - begin)
                asyncio.get_running_loop().call_soon(self.metrics.served, *told)  # when the answer is on its way

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
