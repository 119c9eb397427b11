"""`tvmopt profile ARTIFACT|MODEL`: time per kernel, what bounds it, and what to do about it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tvmopt.cli.common import (
    escape,
    human,
    many_threads,
    out,
    parse_inputs,
    parse_shapes,
    print_json,
    progress,
    table,
    written,
)
from tvmopt.cli.rendering import counted
from tvmopt.texts import threads_of

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    source: Annotated[str, typer.Argument(help="A compiled file, or an ONNX file.", metavar="ARTIFACT|MODEL")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy|FILE.npz", help="Inputs; missing ones are filled."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="For an ONNX file; repeatable.")
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="For an ONNX file: the machine.")] = "cpu",
    precision: Annotated[str, typer.Option(help="For an ONNX file: fp32, bf16, fp16, or tf32 (GPUs).")] = "fp32",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="as compiled")] = None,
    iterations: Annotated[int, typer.Option(min=5, help="Instrumented runs, at most.")] = 30,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of measuring, at most.")] = 3.0,
    top: Annotated[int, typer.Option(min=0, help="Kernels to show; 0: all.")] = 15,
    html: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write one self-contained page.")] = None,
    svg: Annotated[str | None, typer.Option(metavar="FILE.svg", help="Write the roofline plot.")] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE.json", help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Time every kernel inside real runs: nodes, FLOPs, bytes, share of the roof, advice with its gain."""
    from tvmopt.analysis.profile import chrome_trace, profile
    from tvmopt.compiler.request import model_files
    from tvmopt.files import check_writable, write_text
    from tvmopt.runtime.artifact import is_artifact

    check_writable(html, svg, trace, reads=model_files(source))
    many_threads(threads)
    with tempfile.TemporaryDirectory(prefix="tvmopt-profile-") as folder, progress(as_json) as show:
        file = source
        if not is_artifact(source):
            from tvmopt.api import compile_isolated
            from tvmopt.targets import Machine

            file = str(Path(folder) / f"{Path(source).stem}.tvmopt")
            compile_isolated(
                source, target=Machine.load(target), precision=precision, shape=parse_shapes(shape or []),
                threads=threads, verify=False, output=file, progress=show,
            )  # fmt: skip
        show("timing kernels")
        found = profile(file, parse_inputs(inputs or []), threads=threads, runs=iterations, seconds=duration)
    if as_json:
        print_json(found.as_dict())
    else:
        _show(found, top)
    if html or svg:
        from tvmopt.analysis import profile_html
        from tvmopt.analysis.svg import standalone

        if html:
            write_text(html, profile_html.html(found))
        if svg:
            write_text(svg, standalone(profile_html.roofline_svg(found)))
    if trace:
        write_text(trace, json.dumps(chrome_trace(found)))
    if not as_json:
        written(html, svg, trace)


HEADER = ("kernel", "ONNX node", "family", "us", "share", "GFLOP/s", "of roof", "bound")


def added_up(found: Any) -> str:
    """Whether the kernels' times add up to the latency."""
    if found.disturbed:
        return f"no run was quiet, kernels are {found.covered:.1%} of a run with the instrument"
    return f"kernels account for {found.accounted_s / found.latency_s:.1%}"


def _show(found: Any, top: int) -> None:
    shown = found.kernels[:top] if top else found.kernels
    rows = [_row(k, found.flow.nodes) for k in shown]
    rate = human(found.onnx_flops / found.latency_s, "FLOP/s")
    work = human(found.onnx_flops, "FLOP")
    definition = f"{work} by the model's definition ({rate}), " if found.onnx_flops else ""
    out.print(
        f"[bold]{escape(found.model)}[/] for {escape(found.target)}, {found.precision}, {threads_of(found.threads)}: "
        f"{found.latency_s * 1e3:.3f} ms, {definition}{human(found.flops, 'FLOP')} executed; "
        f"{added_up(found)}, "
        f"the {found.instrument} instrument adds {found.overhead}"
    )
    table(HEADER, rows, left=3)
    rest = found.kernels[len(shown) :]
    if rest:
        out.print(f"[dim]and {len(rest)} more, {sum(k.share for k in rest):.1%}; --top 0 shows all[/]")
    for kernel in sorted(shown, key=lambda k: -k.advice.gain)[:5]:
        if kernel.advice.text and kernel.advice.gain >= 1.005:
            out.print(escape(f"{kernel.advice.gain:.2f}x  {kernel.name}: {kernel.advice.text}"))
    measured = (
        f", measured {human(found.measured_bytes, 'B')} with the kernels' workspaces"
        if found.measured_bytes is not None
        else ""
    )
    if found.flow.steps and not found.memory:
        out.print(f"activations: {human(found.planned_bytes, 'B')} planned for the largest open sizes{measured}")
    if found.memory and found.memory.peak >= 0:
        alive = ", ".join(f"{t.name} {human(t.bytes, 'B')}" for t in found.peak_tensors[:5])
        step = found.flow.steps[found.memory.peak].kernel
        out.print(
            f"activations: {human(found.memory.peak_bytes, 'B')} alive at the peak "
            f"(in {escape(step)}: {escape(alive)}), {human(found.memory.planned, 'B')} planned{measured}"
        )
    out.print(f"[dim]the process grew by {human(found.resident_bytes, 'B')} over loading and the first run[/]")
    if found.disturbed:
        out.print(
            "[yellow]note:[/] the machine was never quiet: each time is the quickest of all runs, "
            "and they need not add up"
        )
    if found.peaks.raised:
        told = ", ".join(f"{name} ({by})" for name, by in found.peaks.raised.items())
        out.print(f"[yellow]note:[/] the measured peaks were too low; higher is what was declared or reached: {told}")
    if found.instrument == "cuda events":
        out.print(
            "[yellow]note:[/] kernels were launched one by one, and a short one's time includes the gap before it: "
            "as CUDA graphs they take the latency in the first line, not the sum"
        )
    if not found.disturbed and found.instrument == "python":
        out.print("[yellow]note:[/] no C compiler: the Python instrument makes short kernels look slower")


def _row(kernel: Any, nodes: Mapping[str, Any]) -> tuple[str, ...]:
    k = kernel
    calls = f" x{k.calls}" if k.calls > 1 else ""
    node = counted(k.nodes, lambda name: (nodes[name].flops or 0.0) if name in nodes else 0.0)
    return (
        k.name + calls, node, k.family, f"{k.seconds * 1e6:.1f}", f"{k.share:.1%}", f"{k.gflops:.1f}",
        f"{k.position.roof_share:.0%}", k.position.bound,
    )  # fmt: skip
