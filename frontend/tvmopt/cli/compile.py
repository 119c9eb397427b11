"""`tvmopt compile MODEL`: ONNX in, one checked file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmopt.cli.common import escape, human, out, parse_shapes, parse_values, print_json, progress, table
from tvmopt.cli.rendering import coverage, decisions, kernels

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    model: Annotated[str, typer.Argument(help="The ONNX file.", metavar="MODEL")],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            help="cpu (this machine), cuda, a name of `tvmopt targets list`, or a TOML file.",
        ),
    ] = "cpu",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file to write.", show_default="MODEL.tvmopt")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:1x3x224x224", help="Shape of an input with open dimensions; repeatable."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=16000", help="An input that becomes a constant; repeatable."),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare with onnxruntime on seeded inputs; refuse a wrong result.")
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Of the verification, relative to the largest value.",
            show_default="from dtype and reduction length",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to compile for.", show_default="cores")] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Only algorithms that round as the operators' definitions do: no Winograd."),
    ] = False,
    strip_weights: Annotated[
        bool, typer.Option("--strip-weights", help="Leave the weights out; `tvmopt refit` puts them in.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="Use tuning records of exactly this target.")
    ] = True,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph/--no-cuda-graph", help="On a GPU: kernels captured as CUDA graphs.")
    ] = True,
    store: Annotated[
        Path | None, typer.Option(help="Tuning store.", show_default="~/.local/share/tvmopt/tuning.db")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every stage's time, every kernel, what passes did and declined.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compile an ONNX model to one file, checked against onnxruntime on the same inputs."""
    from tvmopt.api import compile_isolated

    with progress() as show:
        compiled = compile_isolated(
            model,
            target=target,
            precision=precision,
            shape=parse_shapes(shape or []),
            values=parse_values(values or []),
            verify=verify,
            tolerance=tolerance,
            output=output or f"{Path(model).stem}.tvmopt",
            threads=threads,
            exact=exact,
            strip_weights=strip_weights,
            records=records,
            cuda_graph=cuda_graph,
            store=store,
            progress=show,
        )
    if as_json:
        print_json(compiled)
        return
    report = compiled.report
    coverage(report)
    if verbose:
        kernels(report)
        for verdict in ("applied", "declined"):
            decisions(report, verdict)
        rows = [(stage, f"{seconds:.2f} s") for stage, seconds in report.seconds.items()]
        table(("stage", "time"), rows, title="\nstages")
    seconds = sum(report.seconds.values())
    assert compiled.path is not None  # an output was given
    out.print(
        f"[bold]{escape(compiled.path)}[/]: {human(compiled.path.stat().st_size, 'B')}, compiled in {seconds:.1f} s"
    )
