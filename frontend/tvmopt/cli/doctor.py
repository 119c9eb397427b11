"""`tvmopt doctor`: is everything here that tvmopt needs, and how to mend what is not."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tvmopt.cli.common import escape, out, print_json, table

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Check versions, compiler, CPU, GPU, threads; say how to mend. Exits with 5 if something is broken."""
    from tvmopt.doctor import examine

    checks = examine()
    if as_json:
        print_json([check.as_dict() for check in checks])
    else:
        marks = {
            "ok": "[green]ok[/]",
            "optional": "[dim]--[/]",
            "warning": "[yellow]!![/]",
            "broken": "[red]XX[/]",
        }
        rows = [(Text.from_markup(marks[c.state]), c.name, c.found) for c in checks]
        table(("", "check", "found"), rows, left=3)
        for check in checks:
            if check.fix:
                out.print(f"{marks[check.state]} {check.name}: {escape(check.fix)}")
    if any(check.state == "broken" for check in checks):
        raise typer.Exit(5)
