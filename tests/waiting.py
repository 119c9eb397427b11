"""Waiting for an event. The limit is there for what never comes, and says nothing about the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable

FOREVER = 600.0
"""Seconds after which something that should have happened is said to hang."""


def until(happened: Callable[[], object], what: str) -> None:
    """Return as soon as `happened()` is true; fail if it hangs."""
    end = time.monotonic() + FOREVER
    while not happened():
        assert time.monotonic() < end, f"this never happened: {what}"
        time.sleep(0.01)
