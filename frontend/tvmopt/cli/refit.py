"""`tvmopt refit ARTIFACT MODEL`: other weights, the same code."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmopt.analysis.told import accuracy
from tvmopt.cli.common import escape, out, print_json, progress

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    artifact: Annotated[
        str, typer.Argument(help="A compiled file, stripped of its weights or not.", metavar="ARTIFACT")
    ],
    model: Annotated[str, typer.Argument(help="An ONNX file of the same graph.", metavar="MODEL")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file to write.", show_default="ARTIFACT itself")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Compare with onnxruntime; refuse a wrong result.")] = True,
    tolerance: Annotated[float | None, typer.Option(min=0, help="Of the verification.", show_default="derived")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Put a model's weights into a compiled file of the same graph; no code is generated."""
    from tvmopt.api import refit

    with progress() as show:
        fitted = refit(artifact, model, output=output or artifact, verify=verify, tolerance=tolerance, progress=show)
    if as_json:
        print_json({"path": fitted.path, "report": fitted.report.as_dict()})
        return
    out.print(escape(accuracy(fitted.report.accuracy)))
    out.print(f"[bold]{escape(fitted.path)}[/] has the weights of {escape(fitted.manifest.model)}")
