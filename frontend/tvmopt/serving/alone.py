"""Whether a client is alone with the server: then a short call runs where its request was read - for `batcher`.

A request that goes to a model's thread and back costs two changes of threads, 0.15 ms, and what was just read lies in
the cache of another core. Where nobody else could use the time, the loop that reads requests computes by itself. It
hears nothing meanwhile; who has sent something by the end of the call is not alone, and for a while all calls go to
the model's threads again, so that requests are read while others are computed.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST = 0.01
"""Seconds of a call that the loop computes at most: of longer ones a change of threads is no part to speak of."""

PAUSE = 0.25
"""Seconds for which the loop computes nothing after it kept another request waiting."""


class Alone:
    """All connections of a server, whose loop alone may use this.

    Attributes:
        inside: requests that are being answered.
    """

    def __init__(self) -> None:
        self._connections = selectors.DefaultSelector()
        self.inside = 0
        self._until = 0.0

    def add(self, transport: Any, waited: Callable[[], None] | None = None) -> None:
        """A client has come.

        Args:
            waited: called where something of it waited for a call; by itself that is taken for a request.
        """
        with suppress(ValueError, KeyError, OSError):  # it has gone already
            number = transport.get_extra_info("socket").fileno()
            self._connections.register(number, selectors.EVENT_READ, waited or self.pause)

    def remove(self, transport: Any) -> None:
        """It is gone; its socket is still open."""
        with suppress(ValueError, KeyError, OSError):
            self._connections.unregister(transport.get_extra_info("socket").fileno())

    @property
    def now(self) -> bool:
        """Whether the request that is being answered is the only one, as far as is known."""
        return self.inside == 1 and time.perf_counter() >= self._until and bool(self._connections.get_map())

    def pause(self) -> None:
        """A request has waited."""
        self._until = time.perf_counter() + PAUSE

    def run(self, call: Callable[[], T]) -> T:
        """Compute here, and look whether somebody waited for it."""
        try:
            return call()
        finally:
            for key, _ in self._connections.select(0):
                key.data()
