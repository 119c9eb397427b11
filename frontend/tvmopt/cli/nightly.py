"""`tvmopt nightly jobs.toml`: every night's tuning and check of a list of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmopt.cli.common import escape, out, print_json, progress, table

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    jobs: Annotated[Path, typer.Argument(help="The jobs file (TOML).", metavar="JOBS.toml")],
    night: Annotated[str, typer.Option(help="The date whose run this is.", show_default="today")] = "",
    check: Annotated[bool, typer.Option("--check", help="Read the file, list the jobs, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
) -> None:
    """Tune, compile, verify and time each job; fail, and name the kernel, if something became slower.

    Started again after a kill it goes on; started twice, the second refuses. Exit code 4: a regression or a failure.
    """
    from tvmopt.errors import collect
    from tvmopt.nightly.plan import read_plan
    from tvmopt.nightly.report import HEAD, rows
    from tvmopt.nightly.run import nightly

    plan = read_plan(jobs)
    if check:
        listed = [(j.name, str(j.model), j.target, j.precision, j.trials or j.budget) for j in plan.jobs]
        names = ("job", "model", "target", "precision", "budget")
        if as_json:
            print_json([dict(zip(names, row, strict=True)) for row in listed])
        else:
            table(names, listed, left=4)
        return
    with progress() as tell:
        done = nightly(plan, night=night, progress=tell)
    if as_json:
        print_json([entry.__dict__ for entry in done.entries])
    else:
        history = {e.job: plan.history.entries(e.job) for e in done.entries}
        table(HEAD, rows(done.entries, history), left=2)
        out.print(f"report: {escape(done.report)}")
    if done.problems:
        raise collect(done.problems)
