"""`tvmopt run FILE.tvmopt`: run a compiled model (or an ONNX file, compiled for the occasion); time it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tvmopt.cli.common import many_threads, note, out, parse_inputs, parse_shapes, print_json, progress, table
from tvmopt.texts import threads_of

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    model: Annotated[
        str,
        typer.Argument(help="The file that `tvmopt compile` wrote, or an ONNX file.", metavar="ARTIFACT|MODEL"),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE.npy|FILE.npz",
            help="Inputs; repeatable. Missing ones are filled.",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:1x3x224x224",
            help="Of filled inputs whose sizes are open, or SIZE:NUMBER; of an ONNX file, as for compile. Repeatable.",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="For an ONNX file: fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    fill: Annotated[str, typer.Option(help="Fill of inputs not given: random (seeded), zeros, ones.")] = "random",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random fill.")] = 0,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE.npz|FILE.npy", help="Write the outputs there (.npy: the only one)."
        ),
    ] = None,
    print_time: Annotated[bool, typer.Option("--print-time", help="Time it, and print the summary.")] = False,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Time it, with so many calls.", show_default="100")
    ] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Time it, after so many calls.", show_default="10")] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Time it, for at least so many seconds.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="as compiled")] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="0-3|node0", help="The processors to run on, or those of a NUMA node.", show_default="all"
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="Of a file for a fleet: whose code to run. Of an ONNX file: the machine.",
            show_default="the best that this machine can",
        ),
    ] = None,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="NVTX ranges with ONNX names, for Nsight Systems.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print outputs' summary and times as JSON.")] = False,
) -> None:
    """Run a compiled model on files or filled inputs; print what came out and how long it took."""
    from tvmopt.api import run
    from tvmopt.files import check_writable

    check_writable(output, reads=[text.partition("=")[2] or text for text in inputs or ()])
    many_threads(threads, cores)
    with progress(as_json) as show:
        result = run(
            model, parse_inputs(inputs or []), shape=parse_shapes(shape or []), precision=precision, fill=fill,
            seed=seed, threads=threads, cores=cores, target=target, output=output, print_time=print_time,
            iterations=iterations, warmup=warmup, duration=duration, nvtx=nvtx, progress=show,
        )  # fmt: skip
    for told in result.notes:
        note(told)
    summary = [{"name": name, **_summary(array)} for name, array in result.outputs.items()]
    if as_json:
        found: dict[str, Any] = {"target": result.target, "fleet": result.fleet}
        found["classes"] = [[dict(zip(("score", "class", "name"), r, strict=True)) for r in t] for t in _named(result)]
        print_json({"outputs": summary, "timing": result.timing, "threads": result.threads, **found})
        return
    figures = ("min", "mean", "max")
    some = any(o["not_finite"] for o in summary)
    rows = [
        (
            o["name"], f"{o['dtype']}{o['shape']}",
            *("-" if o[name] is None else f"{o[name]:.6g}" for name in figures),
            *([f"{o['not_finite']} of {result.outputs[o['name']].size}"] if some else []),
        )
        for o in summary
    ]  # fmt: skip
    table(("output", "type", *figures, *(["NaN or Inf"] if some else [])), rows, left=2)
    for rows in _named(result):
        table(("score", "class", ""), rows, left=0, title="")
    if result.timing:
        t = result.timing
        row = [f"{v:.3f}" for v in (t.min_ms, t.median_ms, t.mean_ms, t.p90_ms, t.p99_ms)]
        title = f"\nlatency in ms, {t.n} calls after {t.warmup}, {threads_of(result.threads)}"
        table(
            ("min", "median", "mean", "p90", "p99", "calls/s"),
            [[*row, f"{t.throughput:.1f}"]],
            left=0,
            title=title,
        )
        if t.unstable:
            out.print("[yellow]note:[/] the times scatter (p90 a tenth above the median): what else runs?")


def _named(result: Any) -> list[list[tuple[str, str, str]]]:
    """Of each output of classes with names: the scores, numbers and names of the first row."""
    found = []
    outputs = list(result.outputs)
    for numbers, names in result.labels.items():
        scores = result.outputs[outputs[outputs.index(numbers) - 1]]
        first = [
            pair for pair in zip(_first_row(scores), _first_row(result.outputs[numbers]), strict=True) if pair[1] >= 0
        ]  # a detector's places that no box fills have class -1
        found.append([(f"{score:.6g}", str(number), names[int(number)]) for score, number in first])
    return found


def _first_row(array: Any) -> Any:
    """The first row of scores or classes; axes of size 1 behind them are left out."""
    shape = list(array.shape)
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    return array.reshape(-1, shape[-1])[0]


def _summary(array: Any) -> dict[str, Any]:
    """The least, mean and largest of the finite numbers, None where there are none, and how many are not finite."""
    import numpy as np

    finite = array[np.isfinite(array)] if array.dtype.kind in "fV" else array
    values = np.asarray(finite, np.float64)
    shape = list(array.shape)
    found = (values.min(), values.mean(), values.max()) if values.size else (None, None, None)
    figures = dict(zip(("min", "mean", "max"), (None if v is None else float(v) for v in found), strict=True))
    return {"dtype": str(array.dtype), "shape": shape, **figures, "not_finite": int(array.size - finite.size)}
