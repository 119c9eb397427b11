"""`tvmopt cache`: what was kept of earlier compiles, on this user's disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tvmopt.cli.common import Group, escape, human, out, print_json, table

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)
"""Machine code of kernels, artifacts, and models of the drop-in session: list them, remove the oldest, or all."""

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("list")
def list_(
    top: Annotated[int, typer.Option(min=0, help="Files of each kind to list, those used last first; 0: all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Where it is, how large it is, how large it may become, and the files that were used last."""
    from tvmopt.cache import KINDS

    found = [(kind.kind, cache, cache.entries()) for kind in KINDS for cache in (kind.default(),)]
    if as_json:
        print_json(
            {
                name: {
                    "folder": cache.folder, "limit": cache.limit, "bytes": sum(e.size for e in entries),
                    "files": len(entries), "entries": entries,
                }
                for name, cache, entries in found
            }
        )  # fmt: skip
        return
    now, rows = time.time(), []
    for name, cache, entries in found:
        if cache.folder is None:
            out.print(f"{name}: nothing is kept, TVMOPT_CACHE is off, its limit is 0, or no folder can be written")
            continue
        total = human(sum(e.size for e in entries), "B")
        out.print(f"{name}: {len(entries)} files, {total} of {human(cache.limit, 'B')}, in {escape(cache.folder)}")
        shown = entries[:top] if top else entries
        rows += [(name, e.key[:16], human(e.size, "B"), f"{(now - e.used) / 3600:.1f} h ago") for e in shown]
    if rows:
        table(("kind", "key", "size", "last used"), rows, left=2)


@app.command()
def prune(
    megabytes: Annotated[
        int | None,
        typer.Option(
            "--mb", min=0, help="What may stay of each kind.", show_default="TVMOPT_[CACHE|MODELS|ARTIFACTS]_MB"
        ),
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
    from tvmopt.cache import KINDS

    removed = [entry for kind in KINDS for entry in kind.default().prune(limit)]
    freed = sum(entry.size for entry in removed)
    if as_json:
        print_json({"removed": len(removed), "bytes": freed})
    else:
        out.print(f"removed {len(removed)} files, {human(freed, 'B')}")
