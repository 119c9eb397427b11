"""The command's entry: `tvmopt`, and `python -m tvmopt` where an environment's `bin` is not on the path.

Loading the command line takes 0.1 s. A Ctrl-C in it ends the process at once: nothing has been written, and nobody
needs to read where Python was.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Load the command line and run it: returns the exit code, see :func:`tvmopt.cli.main`."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so behind nohup and `&`
    if ours:
        signal.signal(signal.SIGINT, _leave)
    from tvmopt.cli import main as command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = command()
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: Python only clears up
    return code


def _leave(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
