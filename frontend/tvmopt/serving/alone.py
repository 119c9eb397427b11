"""Whether a client is alone with the server: then a short call runs where its request was read - for `batcher`.

A request that goes to a model's thread and back costs two changes of threads, 0.15 ms, and what was just read lies in
the cache of another core. Where nobody else could use the time, the loop that reads requests computes by itself. It
hears nothing meanwhile; who has sent something by the end of the call is not alone, and for a while all calls go to
the model's threads again, so that requests are read while others are computed.

The next request of such a client is not slept for at once: for :data:`AWAKE` the loop asks again and again whether it
has come (:class:`Polling`), as a model's threads do for their next task. A core that sleeps takes 0.1 ms to wake and
finds its caches cold.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LONGEST = 0.025
"""Seconds of a call that the loop computes at most: of longer ones a change of threads is no part to speak of."""

PAUSE = 0.25
"""Seconds for which the loop computes nothing after it kept another request waiting."""


AWAKE = 0.001
"""Seconds for which the loop polls for the next request of a client that was alone."""


class Alone:
    """All connections of a server, whose loop alone may use this.

    Attributes:
        inside: requests that are being answered. awake: when the loop may sleep again.
    """

    def __init__(self) -> None:
        self._connections = selectors.DefaultSelector()
        self.inside = 0
        self.awake = self._until = 0.0
        self._polls = AWAKE if len(os.sched_getaffinity(0)) > 1 else 0.0  # the only core is the client's, too

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

    def look(self) -> None:
        """The loop has computed: see whether somebody waited for it."""
        for key, _ in self._connections.select(0):
            key.data()
        self.awake = time.perf_counter() + self._polls


class Polling(selectors.DefaultSelector):
    """What a loop waits with: it stays awake for a while after a request of a client that is alone."""

    def __init__(self, alone: Alone) -> None:
        super().__init__()
        self._alone = alone

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, after at most `timeout` seconds; None: when there is something."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        begin = time.perf_counter()
        end = self._alone.awake if timeout is None else min(self._alone.awake, begin + timeout)
        while time.perf_counter() < end:
            os.sched_yield()  # to whoever is on this core, perhaps the client
            if found := super().select(0):
                return found
        return super().select(None if timeout is None else max(0.0, begin + timeout - time.perf_counter()))
