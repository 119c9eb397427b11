"""The `tvmopt` command: one file a subcommand, each parse -> one api call -> render."""

from __future__ import annotations


def main() -> int:
    """Entry point of the console script."""
    raise SystemExit("tvmopt: not built yet")
