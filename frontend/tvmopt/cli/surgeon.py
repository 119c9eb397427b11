"""`tvmopt surgeon extract|fold|sanitize|reduce`: cut, fold, clean and shrink ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmopt.cli.common import Group, escape, human, out, parse_shapes, print_json, progress

if TYPE_CHECKING:
    from tvmopt.debug.edit import Edited

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="The ONNX file.", metavar="MODEL")]
Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE.onnx", help="The file to write.")]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@app.callback()
def surgeon() -> None:
    """Operations on ONNX files: files are written whole or not at all; weights beside a model stay beside it."""


@app.command()
def extract(
    model: Model,
    output: Output,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", "-i", metavar="TENSOR[:1x3x224x224[:float32]]", help="Becomes an input; repeatable."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--outputs", "-t", metavar="TENSOR|NODE", help="Becomes an output; repeatable."),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--nodes", "-n", metavar="NODE", help="Exactly these nodes instead; repeatable."),
    ] = None,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """The piece of a model between tensors, as a model of its own."""
    from tvmopt.debug.extract import extract

    done = extract(
        model,
        inputs=inputs or (),
        outputs=outputs or (),
        nodes=nodes or (),
        shape=parse_shapes(shape or []),
        output=output,
    )
    _show(done, as_json)


@app.command()
def fold(
    model: Model,
    output: Output,
    shape: Shape = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Most bytes of a constant larger than what it is computed from.")
    ] = 1 << 24,
    as_json: Json = False,
) -> None:
    """Compute what is constant: shape arithmetic, chains of constants."""
    from tvmopt.debug.fold import fold

    _show(fold(model, shape=parse_shapes(shape or []), limit=limit, output=output), as_json)


@app.command()
def sanitize(
    model: Model,
    output: Output,
    shape: Shape = None,
    opset: Annotated[int | None, typer.Option(min=1, help="Convert to this opset.", show_default="as it is")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Fold constants too.")] = False,
    as_json: Json = False,
) -> None:
    """Order and name the nodes, drop what is dead or does nothing, annotate every tensor with its type."""
    from tvmopt.debug.sanitize import sanitize

    _show(sanitize(model, shape=parse_shapes(shape or []), opset=opset, fold=fold, output=output), as_json)


@app.command()
def reduce(
    model: Model,
    output: Output,
    check: Annotated[
        str,
        typer.Option(
            metavar="numbers|compile|COMMAND",
            help="What fails: tvmopt's numbers, its compile, or a command with {model}, maybe {inputs}.",
        ),
    ] = "numbers",
    mode: Annotated[str, typer.Option(metavar="bisect|linear", help="Few checks, or every step.")] = "bisect",
    shape: Shape = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE.npz", help="Inputs with which it fails; else random."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    target: Annotated[str, typer.Option("--target", "-t", help="Of the built-in checks.")] = "cpu",
    precision: Annotated[str, typer.Option(help="Of the built-in checks.")] = "fp32",
    rtol: Annotated[float | None, typer.Option(min=0, help="Relative tolerance.", show_default="derived")] = None,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance, added.")] = 0.0,
    fail_regex: Annotated[
        str,
        typer.Option(metavar="REGEX", help="The command fails where its output matches, whatever its exit code."),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds of one check; more is a failure.")] = 600.0,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """The smallest piece of a model that still fails, written with the inputs that make it fail."""
    from tvmopt.debug.reduce import reduce

    with progress(quiet or as_json) as show:
        done = reduce(
            model, check=check, mode=mode, output=output, shape=parse_shapes(shape or []), inputs=inputs,
            seed=seed, target=target, precision=precision, rtol=rtol, atol=atol, fail_regex=fail_regex,
            timeout=timeout, progress=show,
        )  # fmt: skip
    if as_json:
        print_json(done)
        return
    if done.warning:
        out.print(f"[yellow]note:[/] {escape(done.warning)}")
    sure = "" if done.confirmed else " [yellow](what was written does not fail any more)[/]"
    out.print(
        f"[bold]{escape(done.path)}[/]: {done.nodes[1]} of {done.nodes[0]} nodes, {done.checks} checks, "
        f"{done.seconds:.0f} s{sure}"
    )
    for name in done.names[:20]:
        out.print(f"  {escape(name)}")
    out.print(f"fails: {done.kind}: {escape(done.failure, lines=True)}")
    if done.inputs:
        out.print(f"inputs: {escape(done.inputs)}")


def _show(done: Edited, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    before, after = done.nodes
    out.print(f"[bold]{escape(str(done.path))}[/]: {after} nodes (of {before}), {human(done.bytes, 'B')}")
    for text in (*done.changes, *(f"input {i}" for i in done.inputs), *(f"output {o}" for o in done.outputs)):
        out.print(f"  {escape(text)}")
