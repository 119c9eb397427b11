"""How often Python looks for garbage while models are compiled.

It does after every 700 new objects by default, which took a tenth of the time that importing TVM takes; nearly all that
a compile makes is either freed at once or needed to its end.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = (100_000, 20, 100)
"""As `gc.set_threshold` takes it."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python looks for garbage rarely until this ends, and then as often as before. Where it never does, it stays so.

    >>> before = gc.get_threshold()
    >>> with seldom_collected():
    ...     gc.get_threshold() == RARELY
    True
    >>> gc.get_threshold() == before
    True
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
