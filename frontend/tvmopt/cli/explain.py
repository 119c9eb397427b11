"""`tvmopt explain MODEL|ARTIFACT`: what was done to each node and why not."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmopt.cli import rendering
from tvmopt.cli.common import parse_shapes, print_json, progress

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    source: Annotated[
        str,
        typer.Argument(
            help="An ONNX file (compiled now, nothing is written) or a compiled file.",
            metavar="MODEL|ARTIFACT",
        ),
    ],
    node: Annotated[
        str | None,
        typer.Option(help="Only what concerns this ONNX node, or those whose name contains this.", metavar="NAME"),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="All about this kernel: knobs, nodes, decisions.", metavar="NAME")
    ] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", help="For an ONNX file: the machine. Of a file for a fleet: which target.")
    ] = "cpu",
    precision: Annotated[str, typer.Option(help="For an ONNX file: fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable.")
    ] = None,
    int8: Annotated[
        str, typer.Option(metavar="auto|all|off", help="For an ONNX file: products of bytes, as for compile.")
    ] = "auto",
    top: Annotated[int, typer.Option(min=0, help="Show the kernels with the most FLOPs; 0: all, in order.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """What was done to each node, by which kernel with which knobs, and what declined and why."""
    from tvmopt.analysis.about import fates
    from tvmopt.api import explain

    with progress() as show:
        report = explain(
            source, node, kernel=kernel, target=target, precision=precision, shape=parse_shapes(shape or []),
            int8=int8, progress=show,
        )  # fmt: skip
    if as_json:
        print_json(report)
        return
    whole = node is None and kernel is None
    if whole:
        rendering.coverage(report)
        rendering.kernels(report, top)
        rendering.between(report)
    else:
        for one in fates(report, node) if node else ():
            rendering.fate(one)
        for found in report.kernels:
            rendering.kernel(report, found)
    rendering.launches(report)
    for verdict in ("applied", "declined"):
        rendering.decisions(report, verdict, top if whole else 0)
