"""The command's entry: `tvmopt`, and `python -m tvmopt` where an environment's `bin` is not on the path.

Loading the command line takes 0.1 s. Ctrl-C, SIGTERM and SIGHUP in it end the process at once: nothing has been
written, and nobody needs to read where Python was. Later all of them interrupt the command (`tvmopt.ending`).
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys


def main() -> int:
    """Load the command line and run it: returns the exit code, see :func:`tvmopt.cli.main`."""
    _open_streams()
    if sys.platform != "linux" and sys.argv[1:2] not in (["doctor"], ["--version"], ["--help"], ["-h"], []):
        return _refused()
    from tvmopt.ending import handlers, left, watch

    watch()
    ours = handlers()
    for number in ours:
        signal.signal(number, _leave)
    from tvmopt.cli import main as command

    for number, handler in ours.items():
        signal.signal(number, handler)
    code = left(command())
    for number in ours:
        signal.signal(number, signal.SIG_IGN)  # all is done: Python only clears up
    gc.freeze()  # and need not look for garbage, which takes 0.1 s
    return code


def _open_streams() -> None:
    """Open /dev/null in place of the standard streams that whoever started this process has closed, as for a daemon.
    Otherwise the next file or pipe would get such a number, and be taken for the stream by every child process. What is
    printed is shown as an escape where the stream's encoding has no such character."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # also where it is the same: children inherit it then
            os.set_inheritable(number, True)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", buffering=1, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or not _takes_all(stream.encoding)):
            stream.reconfigure(errors="backslashreplace")


def _takes_all(encoding: str) -> bool:
    """Whether an encoding has every character: a terminal's of old, or a pipe's, may have 256 or 128."""
    return encoding.lower().replace("-", "").startswith("utf")


def _refused() -> int:
    """Of any other system than Linux."""
    from tvmopt.errors import MissingDependency
    from tvmopt.targets.systems import check_here

    try:
        check_here()
    except MissingDependency as error:
        print(f"{type(error).__name__}: {error.told()}", file=sys.stderr)
        return error.exit_code
    return 0


def _leave(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
