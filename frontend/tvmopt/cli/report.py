"""`tvmopt report MODEL|ARTIFACT -o report.html`: all about it on one page."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmopt.cli.common import many_threads, note, parse_shapes, parse_values, print_json, progress, written

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    source: Annotated[str, typer.Argument(help="An ONNX file or a compiled file.", metavar="MODEL|ARTIFACT")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE.html", help="The page.")] = "report.html",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of a compiled file: its ONNX file, for the comparison layer by layer."),
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="For an ONNX file: the machine.")] = "cpu",
    precision: Annotated[str, typer.Option(help="For an ONNX file: fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="For an ONNX file; repeatable.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=16000", help="For an ONNX file: an input that becomes a constant."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="as compiled")] = None,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of profiling, at most.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is on the page as JSON.")] = False,
) -> None:
    """Write one page about a model, with nothing to load: what was compiled, its graph, where time and memory go, how
    it was verified, and its layers beside onnxruntime's. What cannot be made here is left out, and told.

    Exit code 3 where the comparison finds a difference; the page is written all the same.
    """
    from tvmopt.debug.report_page import report_page

    many_threads(threads)
    with progress(as_json) as show:
        found = report_page(
            source, output, model=model, target=target, precision=precision, shape=parse_shapes(shape or []),
            values=parse_values(values or []), threads=threads, duration=duration, progress=show,
        )  # fmt: skip
    for heading, why in found.left_out.items():
        note(f"{heading} is left out: {why}")
    if as_json:
        agrees = None if found.comparison is None else found.comparison.ok
        print_json({"path": found.path, "sections": found.sections, "left_out": found.left_out, "agrees": agrees})
    else:
        written(output)
    if found.comparison is not None and not found.comparison.ok:
        raise typer.Exit(3)
