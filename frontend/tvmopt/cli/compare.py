"""`tvmopt compare MODEL [OTHER]`: who computes something else, from which layer on, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tvmopt.analysis.told import numberless
from tvmopt.cli.common import (
    escape,
    out,
    parse_inputs,
    parse_shapes,
    parse_values,
    print_json,
    progress,
    table,
    words_of,
    written,
)
from tvmopt.errors import InputError, MissingDependency, first_line

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

COLOURS = {"ok": "green", "wrong": "red bold", "missing": "yellow", "failed": "red"}


@app.command()
def command(
    model: Annotated[str, typer.Argument(help="The ONNX file.", metavar="MODEL.onnx")],
    other: Annotated[
        str | None,
        typer.Argument(help="A second ONNX file, or a compiled file of MODEL.", metavar="[OTHER.onnx|FILE.tvmopt]"),
    ] = None,
    engines: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE[:KEY=VALUE...],...",
            help="tvmopt, onnxruntime, openvino, ... as for `tvmopt bench`; repeatable.",
            show_default="tvmopt, or none with OTHER",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(metavar="fp32,bf16", help="Tried with each engine; repeatable.", show_default="fp32"),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare inner tensors also where the outputs agree.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy|FILE.npz", help="Inputs; the others are random."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=16000", help="An input that becomes a constant; repeatable."),
    ] = None,
    rtol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME:]1e-3",
            help="Tolerance relative to the largest value, of all outputs or one; repeatable.",
            show_default="what rounding explains",
        ),
    ] = None,
    atol: Annotated[
        list[str] | None, typer.Option(metavar="[NAME:]1e-5", help="Absolute tolerance, added; repeatable.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option(help="On a difference: find its cause and write a model that reproduces it.")
    ] = True,
    repro: Annotated[
        str | None,
        typer.Option(metavar="FILE.onnx", help="The reproducing model.", show_default="MODEL.repro.onnx"),
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="Of tvmopt.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Of every engine.", show_default="cores")] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write one self-contained page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Compare engines, precisions, a compiled file or a second model with onnxruntime on the same inputs.

    Exit code 3 where something differs, 5 where an engine is not installed. Of a difference the first layer that leaves
    its tolerance is named, and the pass, kernel, constant or precision to blame; a model of a few nodes that reproduces
    it is written.
    """
    from tvmopt.compiler.request import model_files
    from tvmopt.debug.compare import compare
    from tvmopt.files import check_writable, write_text

    check_writable(html, reads=model_files(model, other))
    with progress(quiet or as_json) as show:
        result = compare(
            model,
            other,
            engines=tuple(words_of(engines)),
            precision=tuple(words_of(precision)) or ("fp32",),
            target=target,
            threads=threads,
            shape=parse_shapes(shape or []),
            values=parse_values(values or []),
            inputs=parse_inputs(inputs or []),
            seed=seed,
            rtol=tolerances(rtol or [], "--rtol"),
            atol=tolerances(atol or [], "--atol"),
            layers=layers,
            bisect=bisect,
            repro=repro,
            progress=show,
        )
    if html:
        from tvmopt.debug.html import html as render

        write_text(html, render(result))
    if as_json:
        print_json(result.as_dict())
    else:
        render_result(result)
        written(html)
    if not result.ok or result.missing:
        raise typer.Exit(3 if result.differs or not result.missing else MissingDependency.exit_code)


def tolerances(texts: list[str], flag: str) -> dict[str, float]:
    """``["1e-3", "logits:1e-2"]`` -> ``{"": 1e-3, "logits": 1e-2}``.

    Raises:
        InputError: not a number, or negative.
    """
    found = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if not 0 <= found[name] < float("inf"):
            raise InputError(f"{text!r} is not a tolerance.", where=flag, fix=f"{flag} 1e-3, or {flag} NAME:1e-3")
    return found


def render_result(result: Any) -> None:
    """Tables and sentences, the answer last."""
    inputs = ", ".join(f"{n} {t}" for n, t in result.inputs.items())
    out.print(f"[bold]{escape(result.model)}[/] against {escape(result.reference)}, inputs {escape(inputs)}")
    rows = []
    for row in result.rows:
        if not row.outputs:
            rows.append(
                (
                    row.label,
                    row.status,
                    "",
                    "",
                    "",
                    "",
                    first_line(row.message),
                )
            )
        agrees = "agrees" if row.status == "wrong" else ""
        for one in row.outputs:
            figures = [f"{v:.2g}" for v in (one.max_error, one.scale, one.needed, one.tolerance)]
            rows.append((row.label, row.status, *figures, f"{one.name}: {one.problem or agrees}".rstrip(": ")))
    table(("row", "verdict", "max error", "largest value", "relative error", "tolerance", "output"), rows, left=2)
    for trace in result.traces:
        _trace(trace)
    for bad in result.nonfinite[:5]:
        out.print(
            f"[yellow]note:[/] {escape(bad.node)} ({bad.operator}) makes {bad.nan} NaN and {bad.inf} Inf "
            "of finite inputs, in the reference too"
        )
    if result.numberless:
        out.print(f"[yellow]note:[/] {escape(numberless(result.numberless))}")
    for text in result.structure:
        out.print(f"[yellow]note:[/] {escape(text)}")
    for one in result.constants[:5]:
        out.print(
            f"constant [bold]{escape(one.name)}[/] of {escape(', '.join(one.nodes) or '?')}: "
            f"{one.different} of {one.of} elements differ, by at most {one.largest:.3g} at {list(one.worst)}"
        )
    if len(result.constants) > 5:
        out.print(f"... and {len(result.constants) - 5} more constants")
    if result.blame:
        out.print(f"[bold red]to blame:[/] {result.blame.kind}: {escape(result.blame.text, lines=True)}")
        for tried in result.blame.experiments:
            out.print(f"  {tried.verdict:6} {escape(tried.name)}", style="dim")
    if result.repro:
        size = len(result.repro.nodes)
        sure = "reproduces it" if result.repro.confirmed else "was cut out, but does not reproduce it alone"
        out.print(
            f"[bold]{escape(result.repro.path)}[/] {sure}: {size} node{'s' if size != 1 else ''}, "
            f"{escape(', '.join(result.repro.nodes))}"
        )
        if result.repro.command:
            out.print(f"  {escape(result.repro.command)}")
    colour = "red" if result.differs else "green" if result.compared and not result.missing else "yellow"
    out.print(f"[{colour}]{escape(result.verdict)}[/], {result.seconds:.0f} s")


def _trace(trace: Any) -> None:
    known = [one for one in trace.layers if one.status != "unmatched"]
    out.print(f"{escape(trace.label)}, layer by layer ({trace.how}): {len(known)} of {len(trace.layers)} compared")
    culprit = trace.culprit
    if culprit is None:
        worst = max(known, key=lambda one: one.comparison.needed / (one.comparison.tolerance or 1), default=None)
        if worst:
            out.print(
                f"  all within their tolerance; nearest to it: {escape(worst.node)} ({worst.operator}) "
                f"{escape(worst.tensor)}, {worst.comparison.needed:.2g} of {worst.comparison.tolerance:.2g}"
            )
        return
    near = [one for one in trace.layers if one.status != "unmatched"]
    at = near.index(culprit)
    rows = [
        (
            one.node,
            one.operator,
            one.tensor,
            one.kernel,
            one.status,
            f"{one.comparison.max_error:.2g}",
            f"{one.comparison.needed:.2g}",
            f"{one.comparison.tolerance:.2g}",
        )
        for one in near[max(0, at - 3) : at + 4]
    ]
    table(
        ("node", "operator", "tensor", "kernel", "verdict", "max error", "relative error", "tolerance"),
        rows,
        left=5,
    )
    out.print(
        f"  [bold]first to leave its tolerance: {escape(culprit.node)} ({culprit.operator})[/], "
        f"tensor {escape(str(culprit.comparison))}"
    )
