"""A loaded artifact that answers over a pipe - the half of `tvmopt.toolchain.emulation` that an emulator runs.

    python -m tvmopt.analysis.guest ARTIFACT THREADS READ WRITE

READ and WRITE are open descriptors: whatever else this process prints does no harm. A message is ``("run", feeds)`` or
``("observe", feeds)``, an answer ``("ok", result)`` or ``("error", what)``; ``("ready", None)`` is the first one.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tvmopt.analysis.observe import observe
from tvmopt.children import die_with_parent, freeze
from tvmopt.errors import TvmoptError
from tvmopt.runtime.artifact import read
from tvmopt.runtime.model import Model


def main(path: str, threads: str, reading: str, writing: str) -> None:
    """Answer until the pipe ends."""
    reader, writer = Connection(int(reading), writable=False), Connection(int(writing), readable=False)
    try:
        model = Model(read(path), threads=int(threads) or None)
    except TvmoptError as error:
        writer.send(("error", freeze(error)))
        return
    writer.send(("ready", None))
    while True:
        try:
            command, feeds = reader.recv()
        except EOFError:
            return
        try:
            result = model.run(feeds) if command == "run" else observe(model, feeds)
        except TvmoptError as error:
            writer.send(("error", freeze(error)))
            continue
        writer.send(("ok", result))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
