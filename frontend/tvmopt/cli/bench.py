"""`tvmopt bench MODEL... --against ENGINES`: who is faster, by how much, and whether that can be believed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tvmopt.cli.common import (
    escape,
    many_threads,
    out,
    parse_inputs,
    parse_shapes,
    print_json,
    progress,
    without_spinner,
    words_of,
    written,
)
from tvmopt.errors import InputError
from tvmopt.files import check_writable, write_text
from tvmopt.texts import whole_number

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    models: Annotated[list[str], typer.Argument(help="ONNX files, or compiled files.", metavar="MODEL|ARTIFACT...")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE[:KEY=VALUE...],...",
            help="onnxruntime, onnxruntime-cuda, onnxruntime-tensorrt, openvino, tensorrt, tvm, tvmopt; with --decode "
            "onnxruntime, onnxruntime-genai, llama-cpp:gguf=FILE; repeatable.",
            show_default="onnxruntime",
        ),
    ] = None,
    subject: Annotated[str, typer.Option(help="The engine that the others are compared with.")] = "tvmopt",
    model: Annotated[
        str | None, typer.Option(metavar="MODEL.onnx", help="With an artifact: the ONNX file for the others.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy|FILE.npz", help="Inputs; the others are random."),
    ] = None,
    batch: Annotated[
        list[str] | None, typer.Option(metavar="1,2,4", help="Leading dimensions to try; repeatable.")
    ] = None,
    threads: Annotated[
        list[str] | None, typer.Option(metavar="1,2", help="Threads to try; repeatable.", show_default="all cores")
    ] = None,
    streams: Annotated[int, typer.Option(min=1, help="Concurrent callers.")] = 1,
    decode: Annotated[
        bool, typer.Option("--decode", help="Models are decoders: time a prompt, and the tokens behind it one by one.")
    ] = False,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="With --decode: tokens of the prompt.")] = 128,
    new_tokens: Annotated[int, typer.Option(min=1, help="With --decode: tokens behind it.")] = 128,
    sequences: Annotated[
        int, typer.Option(min=1, help="With --decode: time a step of so many texts together, too.")
    ] = 1,
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16, int8.")] = "fp32",
    rounds: Annotated[int, typer.Option(min=1, help="Undisturbed rounds wanted.")] = 36,
    launches: Annotated[int, typer.Option(min=1, help="Fresh processes of each engine.")] = 6,
    patience: Annotated[
        float, typer.Option(min=1, help="Go on while there is no answer, up to so many times the rounds.")
    ] = 4.0,
    iterations: Annotated[int, typer.Option(min=1, help="Timed calls of each engine, at the least.")] = 72,
    duration: Annotated[float, typer.Option(min=0.01, help="Seconds of timed calls of each engine.")] = 3.6,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds after which an engine counts as warm.")] = 3.0,
    pause: Annotated[float, typer.Option(min=0, help="Least seconds between turns.")] = 0.02,
    margin: Annotated[float, typer.Option(min=0, help="Differences below this are none.")] = 0.03,
    percentile: Annotated[
        list[str] | None, typer.Option(metavar="95,99.9", help="More percentiles to show; repeatable.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Of the outputs, relative to the largest.", show_default="derived")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    save: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the engine files there.")] = None,
    load: Annotated[str | None, typer.Option(metavar="DIR", help="Take the engine files from there.")] = None,
    export_times: Annotated[
        str | None, typer.Option(metavar="FILE.json", help="Write single-call times, evenly thinned to 4096 an engine.")
    ] = None,
    export_profile: Annotated[
        str | None, typer.Option(metavar="FILE.json", help="Write tvmopt's time per kernel.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write one self-contained page.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE.md", help="Write the tables as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Compare engines on models: outputs first, then interleaved rounds, each engine in its own process."""
    from tvmopt.bench.decode import bench_decoders
    from tvmopt.bench.measure import Plan
    from tvmopt.bench.run import Settings, bench
    from tvmopt.bench.stats import Rules
    from tvmopt.compiler.request import model_files
    from tvmopt.targets.detect import usable_cores

    if save and load:
        raise InputError("--save and --load exclude each other.", fix="--load DIR to reuse, --save DIR to write")
    _files_wanted(models, save, load, export_profile)
    check_writable(html, markdown, export_times, export_profile, reads=model_files(*models, model))
    settings = Settings(
        engines=(subject, *(["onnxruntime"] if against is None else words_of(against))),
        batches=tuple(_integers(batch, "--batch")),
        threads=tuple(_integers(threads, "--threads")) or (usable_cores(),),
        streams=streams,
        precision=precision,
        seed=seed,
        tolerance=tolerance,
        shapes=parse_shapes(shape or []),
        inputs=parse_inputs(inputs or []),
        save=save or load or "",
        reuse=bool(load),
    )
    many_threads(max(settings.threads))
    plan = Plan(rounds, launches, duration / rounds, -(-iterations // rounds), pause, warmup, patience)
    points = _numbers(percentile, "--percentile")
    words = (
        partial(bench_decoders, prompt_tokens=prompt_tokens, new_tokens=new_tokens, sequences=sequences)
        if decode
        else bench
    )
    with progress(quiet or as_json, lines=True) as show:
        result = words(
            models, settings, plan=plan, rules=Rules(margin=margin), source=model, progress=show,
            finished=None if as_json else partial(_show, percentiles=points),
        )  # fmt: skip
    if as_json:
        print_json(result.as_dict())
    _files(result, points, html, markdown, export_times)
    if export_profile:
        _profile(result, export_profile)
    if not as_json:
        written(html, markdown, export_times, export_profile)
    code = _exit_code(result)
    if code:
        raise typer.Exit(code)


def _exit_code(result: Any) -> int:
    """3: outputs of an engine are wrong; 2 or 5: the engine that the others are compared with failed, or is missing, or
    all the others did. One opponent of several that cannot run is a row, and no error."""
    if any(row.status == "wrong" for case in result.cases for row in case.engines):
        return 3
    found = {case.engines[0].status for case in result.cases}
    for case in result.cases:
        others = {row.status for row in case.engines[1:]}
        found |= others if "ok" not in others else set()
    return 2 if "failed" in found else 5 if "missing" in found else 0


def _files_wanted(models: list[str], save: str | None, load: str | None, profile: str | None) -> None:
    """Refuse folders of engine files that cannot be, and a profile of files that will be gone by then.

    Raises:
        InputError: see above.
    """
    from tvmopt.runtime.artifact import is_artifact

    for flag, folder in (("--save", save), ("--load", load)):
        if folder and (Path(folder).exists() or load) and not Path(folder).is_dir():
            raise InputError("there is no such folder of engine files.", where=f"{flag} {folder}", fix="give a folder")
    if profile and not (save or load) and not any(is_artifact(m) for m in models):
        raise InputError(
            "there would be no engine file left to profile.", where="--export-profile", fix="add --save DIR"
        )


def _show(case: Any, percentiles: list[float]) -> None:
    from tvmopt.bench import report

    colours = {
        "faster": "green",
        "slower": "red",
        "unstable": "yellow",
        "missing": "yellow",
        "wrong": "red bold",
    }
    head, *rows = report.text(case, percentiles, out.width if out.is_terminal else 0)
    without_spinner()
    out.print(f"[bold]{escape(report.heading(case))}[/]\n[dim]{escape(head)}[/]")
    for row in rows:
        safe = escape(row.rstrip())
        last = safe.rsplit(maxsplit=1)[-1]
        out.print(safe.removesuffix(last) + f"[{colours[last]}]{last}[/]" if last in colours else safe)
    for note in report.notes(case):
        out.print(escape(note), style="dim")
    out.print()


def _files(result: Any, points: list[float], html: str | None, markdown: str | None, times: str | None) -> None:
    from tvmopt.bench import report

    if html:
        from tvmopt.bench.html import html as render

        write_text(html, render(result))
    if markdown:
        write_text(markdown, report.markdown(result, points))
    if times:
        data = [
            {"case": report.heading(case), "engine": row.label, "seconds": list(row.samples)}
            for case in result.cases
            for row in case.engines
        ]
        write_text(times, json.dumps(data))


def _profile(result: Any, path: str) -> None:
    """Per-kernel times of each tvmopt artifact that was timed and still exists."""
    from tvmopt.analysis.profile import profile

    found = []
    for case in result.cases:
        for row in case.engines:
            if row.job.engine == "tvmopt" and Path(row.job.prepared).exists():
                found.append(profile(row.job.prepared, threads=case.threads).as_dict())
    if not found:
        raise InputError("there is no engine file left to profile.", where="--export-profile", fix="add --save DIR")
    write_text(path, json.dumps(found, indent=1))


def _integers(texts: list[str] | None, flag: str) -> list[int]:
    words = words_of(texts)
    wrong = next((w for w in words if not whole_number(w)), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} is not a positive number.", where=flag, fix=f"{flag} 1,2,4")
    return [int(w) for w in words]


def _numbers(texts: list[str] | None, flag: str) -> list[float]:
    words = words_of(texts)
    try:
        found = [float(w) for w in words]
    except ValueError:
        found = [-1.0]
    if not all(0 <= p <= 100 for p in found):
        raise InputError(f"{','.join(words)!r} is not a list of percentages.", where=flag, fix=f"{flag} 95,99,99.9")
    return found
