"""`tvmopt compile MODEL`: ONNX in, one checked file out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tvmopt.cli.common import (
    escape,
    human,
    out,
    parse_shapes,
    parse_threads,
    parse_values,
    print_json,
    progress,
    table,
    written,
)
from tvmopt.cli.rendering import c_archive, coverage, decisions, fleet, kernels
from tvmopt.errors import InputError
from tvmopt.report import Report

PAIRS = ("--dump-after", "--dump-code")
"""Options that take a name and a folder."""


class Command(TyperCommand):
    """With repeatable options of two words, which Typer has not: they are handed on as one, a NUL between the two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = iter(args)
        joined = []
        for word in words:
            joined.append(word)
            if word in PAIRS:
                joined.append("\0".join(value for value in (next(words, ""), next(words, "")) if value))
        ctx.meta["json"] = "--json" in joined  # --list-passes ends before the options behind it are read
        return list(super().parse_args(ctx, joined))


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


def _stages(texts: list[str] | None, *options: Any) -> dict[str, str] | None:
    """What :func:`tvmopt.preprocessing.asked.named` makes of texts; None where there are none."""
    if not texts:
        return None
    from tvmopt.preprocessing.asked import named

    return named(texts, *options)


def _folders(option: str, texts: list[str] | None) -> dict[str, str]:
    """Names and folders, as :class:`Command` joined them.

    >>> _folders("--dump-after", ["FuseOps\\0dumps"])
    {'FuseOps': 'dumps'}

    Raises:
        InputError: a folder is missing.
    """
    for text in texts or ():
        if "\0" not in text:
            fix = f"{option} {text or 'NAME'} DIR"
            raise InputError("there is no folder to write to.", where=option, fix=fix)
    return dict(text.split("\0") for text in texts or ())


def list_stages(ctx: typer.Context, wanted: bool) -> None:
    """Print every stage of the pipeline for CPUs, with its part."""
    if wanted:
        from tvmopt import pipeline
        from tvmopt.targets import Machine

        parts = pipeline.stages(pipeline.Job(Machine.load("cpu"), lift=True))
        found = [(stage.short, part.heading, not stage.needed) for part in parts for stage in part.stages]
        if ctx.meta.get("json"):
            print_json([dict(zip(("stage", "part", "can_be_left_out"), stage, strict=True)) for stage in found])
        else:
            rows = [(f"{n:02d}", name, part, "yes" if free else "") for n, (name, part, free) in enumerate(found, 1)]
            table(("", "stage", "part", "can be left out"), rows, left=3)
        raise typer.Exit


@app.command(cls=Command)
def command(
    model: Annotated[str, typer.Argument(help="The ONNX file.", metavar="MODEL")],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            help="cpu (this machine), cuda, a name of `tvmopt targets list`, or a TOML file; several CPUs with a + "
            "between them make one file for a fleet.",
        ),
    ] = "cpu",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The file, or the folder, to write.", show_default="MODEL.tvmopt, MODEL"),
    ] = None,
    emit: Annotated[
        str,
        typer.Option(
            metavar="artifact|c-archive",
            help="What to write: one file for `tvmopt run` and Python, or a folder with a static library and a header "
            "for C, which needs neither TVM nor Python.",
        ),
    ] = "artifact",
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:1x3x224x224", help="Shape of an input with open dimensions; repeatable."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=16000", help="An input that becomes a constant; repeatable."),
    ] = None,
    preprocess: Annotated[
        list[str] | None,
        typer.Option(
            metavar="image:KEY=VALUE,...",
            help="Take pictures of bytes, and resize, crop and scale them in the artifact: image:resize=256,crop=224,"
            "mean=0.485/0.456/0.406,std=0.229/0.224/0.225,from=480x640, or image:@preprocessor_config.json. "
            "from=any takes pictures of any size, letterbox=640 keeps their ratio. "
            "NAME=image:... says which input; repeatable.",
        ),
    ] = None,
    postprocess: Annotated[
        list[str] | None,
        typer.Option(
            metavar="scores:WORD,...",
            help="Give probabilities, or the largest scores and their classes: scores:softmax,top-k=5,labels=FILE; of "
            "a detector the boxes that no better one overlaps: boxes:head=yolov8,score=0.25,iou=0.45,most=300. "
            "NAME=scores:... or NAME=boxes:... says which output; repeatable.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare with onnxruntime on seeded inputs; refuse a wrong result.")
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Of the verification, relative to the largest value.",
            show_default="what rounding explains",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N|N+N...",
            help="Threads to compile for; several numbers with a + between them make code for each, of which loading "
            "takes that for the cores it finds.",
            show_default="cores",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Only what rounds as the operators' definitions do: no Winograd, no rows of 8 bits."
        ),
    ] = False,
    int8: Annotated[
        str,
        typer.Option(
            metavar="auto|all|off",
            help="Products of a quantised model, or of MatMulNBits with accuracy_level 4, in integers: each where it "
            "is predicted to be faster, wherever possible, or nowhere.",
        ),
    ] = "auto",
    kv_cache: Annotated[
        str,
        typer.Option(
            metavar="fp32|bf16|int8",
            help="How a decoder stores the keys and values that it keeps: in full, or in a half or a quarter of the "
            "memory.",
        ),
    ] = "fp32",
    strip_weights: Annotated[
        bool,
        typer.Option(
            "--strip-weights",
            help="Leave the weights out; `tvmopt refit` puts them in. Of a C archive: a file of their own.",
        ),
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
    without: Annotated[
        list[str] | None, typer.Option(metavar="STAGE", help="Leave a stage of the pipeline out; repeatable.")
    ] = None,
    dump_after: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE DIR", help="Write the module behind a stage into a folder; repeatable."),
    ] = None,
    dump_all: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the module behind each stage, numbered in their order.")
    ] = None,
    dump_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KERNEL DIR",
            help="Write a kernel's loops, LLVM IR and assembly (CUDA C++, PTX and SASS); repeatable.",
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache", help="Take the artifact of the same compile where one is kept (`tvmopt cache`)."
        ),
    ] = True,
    first: Annotated[
        str | None,
        typer.Option(
            metavar="decoder_model.onnx",
            help="Beside the steps of a decoder (decoder_with_past_model.onnx) the file of its first call, which "
            "computes what the steps read of the encoder's output.",
        ),
    ] = None,
    list_passes: Annotated[
        bool,
        typer.Option("--list-passes", is_eager=True, callback=list_stages, help="Print the stages in order, and end."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every stage's time, every kernel, what passes did and declined.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compile an ONNX model to one file, checked against onnxruntime on the same inputs."""
    from tvmopt.api import compile_isolated
    from tvmopt.runtime.artifact import read_manifest

    after, code = _folders("--dump-after", dump_after), _folders("--dump-code", dump_code)
    with progress() as show:
        compiled = compile_isolated(
            model,
            target=target,
            precision=precision,
            shape=parse_shapes(shape or []),
            values=parse_values(values or []),
            preprocess=_stages(preprocess),
            postprocess=_stages(postprocess, "--postprocess", ("scores:", "boxes:")),
            verify=verify,
            tolerance=tolerance,
            output=output or f"{Path(model).stem}{'.tvmopt' if emit == 'artifact' else ''}",
            emit=emit,
            threads=parse_threads(threads),
            exact=exact,
            int8=int8,
            kv_cache=kv_cache,
            strip_weights=strip_weights,
            records=records,
            cuda_graph=cuda_graph,
            store=store,
            without=without,
            dump_after=after,
            dump_all=dump_all,
            dump_code=code,
            cache=cache,
            first=first,
            progress=show,
        )
    if as_json:
        print_json(compiled)
        return
    assert compiled.path is not None  # an output was given
    reports = compiled.reports or (compiled.report,)
    manifest = read_manifest(compiled.path) if compiled.reports else None
    names = [member.title for member in manifest.fleet] if manifest else [compiled.report.target]
    for name, report in zip(names, reports, strict=True):
        _report(replace(report, target=name), verbose)
    how = [f"compiled in {sum(sum(r.seconds.values()) for r in reports):.1f} s"]
    if cached := [name for name, report in zip(names, reports, strict=True) if report.cached]:
        some = f" for {', '.join(cached)}" if len(cached) < len(reports) else ""
        how = how if some else []
        how.append(f"taken from the cache of an earlier compile{some} (--no-cache compiles again)")
    if compiled.archive:
        c_archive(compiled.path, compiled.archive, how[0])
    else:
        size = human(compiled.path.stat().st_size, "B")
        out.print(f"[bold]{escape(compiled.path)}[/]: {size}, {', '.join(how)}")
    if manifest:
        fleet(manifest)
    written(*dict.fromkeys([*after.values(), dump_all, *code.values()]))


def _report(report: Report, verbose: bool) -> None:
    """What was done for one target."""
    coverage(report)
    if verbose:
        kernels(report)
        for verdict in ("applied", "declined"):
            decisions(report, verdict)
        rows = [(stage, f"{seconds:.2f} s") for stage, seconds in report.seconds.items()]
        if rows:
            table(("stage", "time"), rows, title="\nstages")
