"""The command line for tests: in this process, or as the words of a process of its own."""

from __future__ import annotations

import io
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tvmopt import cli

COMMAND = [sys.executable, "-m", "tvmopt"]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def tvmopt(*arguments: object, cwd: Path | None = None) -> Done:
    """The command, in this process (a start of Python costs more than most commands)."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()):
        code = cli.main([str(argument) for argument in arguments])
    return Done(code, out.getvalue(), err.getvalue())
