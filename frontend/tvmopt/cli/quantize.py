"""`tvmopt quantize MODEL -o OUTPUT --data DATA`: a float model in 8 bits, with what each layer loses."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmopt.cli.common import escape, human, out, parse_shapes, print_json, progress, table, written
from tvmopt.errors import InputError

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    model: Annotated[str, typer.Argument(help="The ONNX file in floats.", metavar="MODEL.onnx")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE.onnx", help="The quantised model.")],
    data: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|FILE.npz", help="Real inputs: pictures, .npy and .npz files, or one of these."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many to use at most.")] = 300,
    mean: Annotated[str, typer.Option(metavar="M[,M,M]", help="Of pictures from 0 to 1: (x - mean) / std.")] = "0",
    std: Annotated[str, typer.Option(metavar="S[,S,S]", help="Of pictures from 0 to 1: (x - mean) / std.")] = "1",
    preset: Annotated[
        str, typer.Option(help="performance: symmetric activations; mixed: each with its zero point.")
    ] = "performance",
    smooth_quant: Annotated[
        bool, typer.Option("--smooth-quant", help="Move transformers' large activations into weights (NNCF).")
    ] = False,
    method: Annotated[str, typer.Option(help="auto, nncf or onnxruntime.")] = "auto",
    weights: Annotated[str, typer.Option(metavar="int8|int4", help="Only round the weights of products.")] = "",
    group: Annotated[int, typer.Option(help="With --weights: rows that share a scale.")] = 32,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Stays in floats; * for any characters; repeatable.")
    ] = None,
    max_drop: Annotated[str, typer.Option(metavar="0.5%|0.01", help="How much the metric may fall.")] = "",
    metric: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="Gets a function that runs the model; higher: better."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write ranges and losses as one page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Quantise a float model on real inputs, by NNCF or onnxruntime, into a QDQ file for `tvmopt compile`.

    The table shows the layers that lose most by themselves: what to --exclude first. With --max-drop and --metric they
    are left in floats until the metric holds.
    """
    from tvmopt.compiler.request import model_files
    from tvmopt.files import check_writable, write_text
    from tvmopt.quantization.quantize import quantize

    check_writable(html, output, reads=model_files(model))
    with progress(quiet or as_json) as show:
        result = quantize(
            model, output, data=data, samples=samples, mean=_numbers(mean, "--mean"), std=_numbers(std, "--std"),
            preset=preset, smooth_quant=smooth_quant, method=method, weights=weights, group=group,
            exclude=exclude or [], max_drop=max_drop, metric=metric, shape=parse_shapes(shape or []), progress=show,
        )  # fmt: skip
    from tvmopt.quantization.html import decibels
    from tvmopt.quantization.html import html as render

    if html:
        write_text(html, render(result))
    if as_json:
        print_json(result.as_dict())
        return
    out.print(f"{escape(result.method)}, {result.samples} samples, sha256 {result.data_sha256[:16] or '-'}")
    out.print(f"{human(result.bytes_before, 'B')} -> {human(result.bytes_after, 'B')}")
    for name, value in (result.outputs or {}).items():
        out.print(f"output {escape(name)}: {decibels(value)}")
    if result.metric is not None:
        tried = ", ".join(f"{a.value:.6g} with {len(a.excluded)} nodes in floats" for a in result.attempts)
        out.print(f"metric: {result.metric:.6g} in floats; {tried}")
    rows = [(one.node, one.operator, decibels(one.own), decibels(one.total)) for one in result.worst()]
    if rows:
        table(("node", "operator", "by itself", "in the model"), rows, left=2, title="\nlayers that lose most")
    written(output, html)


def _numbers(text: str, flag: str) -> list[float]:
    """``"0.485,0.456"`` -> numbers.

    Raises:
        InputError: something else.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or any(n != n or (flag == "--std" and n == 0) for n in numbers):
        raise InputError(f"{text!r} are no numbers for {flag}.", where=flag, fix=f"{flag} 0.485,0.456,0.406")
    return numbers
