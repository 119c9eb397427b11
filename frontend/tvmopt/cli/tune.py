"""`tvmopt tune MODEL`: make a model faster than its analytic schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmopt.cli.common import escape, many_threads, out, parse_shapes, print_json, progress, table
from tvmopt.errors import InputError

if TYPE_CHECKING:
    from tvmopt.cli.tune_display import Board, Lines
    from tvmopt.tuning.driver import TuningResult

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    model: Annotated[str, typer.Argument(help="The ONNX file.", metavar="MODEL")],
    target: Annotated[str, typer.Option("--target", "-t", help="cpu, a name, or a TOML file.")] = "cpu",
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, fp16, or tf32 (GPUs): what `compile` will be asked for.")
    ] = "fp32",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Candidates to measure, all runs together.", show_default="64 a kernel")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time of the search, all runs together: 90m, 2h, 1h30m; the comparison at the end is not counted.",
            show_default="none",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:1x3x224x224", help="Shape of an input with open dimensions; repeatable."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to tune for.", show_default="cores")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of every random choice.")] = 0,
    store: Annotated[
        Path | None, typer.Option(help="The tuning store.", show_default="~/.local/share/tvmopt/tuning.db")
    ] = None,
    only: Annotated[str, typer.Option(help="Only kernels whose name or ONNX node contains this.")] = "",
    generic: Annotated[bool, typer.Option(help="Search MetaSchedule's space beside the families' knobs.")] = True,
    compare: Annotated[bool, typer.Option(help="Run tuned and untuned model in turn at the end.")] = True,
    list_tasks: Annotated[bool, typer.Option("--list-tasks", help="Show what would be tuned, and stop.")] = False,
    rpc_tracker: Annotated[str, typer.Option(metavar="HOST:PORT", help="Measure on boards of this tracker.")] = "",
    rpc_key: Annotated[str, typer.Option(help="Which of the tracker's boards.")] = "",
    ray: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Measure on the machines of this Ray cluster: HOST:PORT, auto, local."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Tune the kernels of a model. Stop it, kill it, start it again: it goes on, nothing is measured twice.

    What it finds is kept in the store, and `tvmopt compile` uses it for this target from then on.
    """
    from tvmopt.cli.tune_display import observer
    from tvmopt.tuning import driver

    shapes = parse_shapes(shape or [])
    if budget is not None:
        driver.parse_duration(budget)
    if list_tasks:
        _list(model, target, precision, shapes, threads, only, as_json)
        return
    if threads is not None and target == "cpu" and not rpc_tracker and not ray:
        many_threads(threads)
    show = observer()
    runner = _elsewhere(target, threads, rpc_tracker, rpc_key, ray, show)
    machine = runner.machine if runner is not None else target
    try:
        found = driver.tune(
            model, target=machine, precision=precision, trials=trials, budget=budget, shape=shapes,
            threads=threads, seed=seed, store=store, only=only, generic=generic, compare=compare,
            runner=runner, observer=show, progress=show.stage,
        )  # fmt: skip
    finally:
        show.stop()
        if runner is not None:
            runner.close()
    if as_json:
        print_json(found)
    else:
        render(found)
    if found.interrupted:
        raise typer.Exit(130)


def _elsewhere(target: str, threads: int | None, rpc_tracker: str, rpc_key: str, ray: str, show: Lines | Board) -> Any:
    """What measures in place of this machine, if it was asked for."""
    if rpc_tracker and ray:
        what = "boards of a tracker and machines of a Ray cluster do not measure together."
        raise InputError(what, where="--rpc-tracker, --ray", fix="give one of them")
    if rpc_tracker:
        from tvmopt.tuning.rpc import RpcRunner

        return RpcRunner.connect(target, rpc_tracker, rpc_key, threads)
    if ray:
        from tvmopt.tuning.ray import RayRunner

        return RayRunner.connect(target, ray, threads, tell=show.note)
    return None


def _list(
    model: str,
    target: str,
    precision: str,
    shapes: dict[str, tuple[int | str, ...]],
    threads: int | None,
    only: str,
    as_json: bool,
) -> None:
    from tvmopt.cli.rendering import counted
    from tvmopt.targets import Machine
    from tvmopt.targets.precision import check
    from tvmopt.tuning import driver

    machine = Machine.load(target).with_threads(threads)
    check(precision, machine)
    with progress() as tell:
        tell("importing")
        sizes = driver.sizes_of(model, shapes)
        module = driver.module_at(model, sizes)
        tasks = driver.choose(driver.tasks_of(module, machine, precision), only)
    total = sum(t.weight * t.floor for t in tasks) or 1.0
    if as_json:
        print_json([
            {"kernel": t.name, "family": t.key.family, "shape": t.shape, "calls": round(t.weight),
             "points": t.space.size, "floor_s": t.floor, "share": t.weight * t.floor / total, "nodes": t.nodes}
            for t in tasks
        ])  # fmt: skip
        return
    rows = [
        (t.name, counted([n for site in t.nodes for n in site]), t.key.family, t.shape, f"{t.weight:.0f}",
         t.space.size, f"{1e6 * t.floor:.1f} us", f"{100 * t.weight * t.floor / total:.1f} %")
        for t in tasks
    ]  # fmt: skip
    table(("kernel", "ONNX node", "family", "shape", "calls", "points", "floor", "share"), rows, left=4)
    for note in sizes.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def render(found: TuningResult) -> None:
    """The result: kernels that became faster, the model, how to go on."""
    rows = [
        (
            t.name,
            t.family,
            t.knobs,
            t.trials,
            f"{1e6 * t.seconds:.1f} us",
            f"{t.ratio:.3f}",
            f"{100 * t.share:.1f} %",
        )
        for t in found.tasks
        if t.ratio < 1
    ]
    if rows:
        table(("kernel", "family", "knobs", "trials", "analytic", "tuned / analytic", "share"), rows, left=3)
    for t in found.tasks:
        if t.note:
            out.print(f"[yellow]note:[/] {escape(t.name)} was not tuned: {escape(t.note)}")
    for warning in found.warnings:
        out.print(f"[yellow]note:[/] {escape(warning)}")
    if found.spent:
        out.print(f"[yellow]note:[/] {found.spent}")
    base, best = found.estimate
    out.print(
        f"{found.trials} trials ({found.trials - found.resumed} in this run), "
        f"{len(rows)} of {len(found.tasks)} kernels faster; "
        f"kernels together about {1e3 * base:.2f} -> {1e3 * best:.2f} ms"
    )
    if found.model is not None:
        v = found.model
        words = "faster" if v.won else "slower: its records are withdrawn" if v.low > 1 else "no difference measured"
        out.print(
            f"[bold]the tuned model takes {v.ratio:.3f} of the untuned one's time[/] "
            f"[{v.low:.3f}, {v.high:.3f}], {v.n} rounds in turn: {words}"
        )
