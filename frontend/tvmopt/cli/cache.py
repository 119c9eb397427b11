"""`tvmopt cache`: what was kept of earlier compiles, on this user's disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tvmopt.cli.common import escape, human, out, print_json, table

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)
"""The machine code of kernels that were compiled: list it, remove what was not used for longest, or all."""

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("list")
def list_(
    top: Annotated[int, typer.Option(min=0, help="Files to list, those used last first; 0: all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Where it is, how large it is, how large it may become, and the files that were used last."""
    from tvmopt.toolchain.cache import Cache

    cache = Cache.default()
    entries = cache.entries()
    total = sum(entry.size for entry in entries)
    if as_json:
        print_json(
            {"folder": cache.folder, "limit": cache.limit, "bytes": total, "files": len(entries), "entries": entries}
        )
        return
    if cache.folder is None:
        out.print("nothing is kept: TVMOPT_CACHE is off, or no folder can be written")
        return
    out.print(f"{escape(cache.folder)}: {len(entries)} files, {human(total, 'B')} of {human(cache.limit, 'B')}")
    now = time.time()
    shown = entries[:top] if top else entries
    rows = [(e.key[:16], human(e.size, "B"), f"{(now - e.used) / 3600:.1f} h ago") for e in shown]
    if rows:
        table(("key", "size", "last used"), rows)


@app.command()
def prune(
    megabytes: Annotated[
        int | None,
        typer.Option("--mb", min=0, help="What may stay.", show_default="TVMOPT_CACHE_MB, or 512"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what was not used for longest, until the rest fits."""
    _remove(None if megabytes is None else megabytes << 20, as_json)


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Remove everything."""
    _remove(0, as_json)


def _remove(limit: int | None, as_json: bool) -> None:
    from tvmopt.toolchain.cache import Cache

    removed = Cache.default().prune(limit)
    freed = sum(entry.size for entry in removed)
    if as_json:
        print_json({"removed": len(removed), "bytes": freed})
    else:
        out.print(f"removed {len(removed)} files, {human(freed, 'B')}")
