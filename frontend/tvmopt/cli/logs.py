"""`tvmopt logs list|show|merge|prune|verify|export|import|curve`: the tuning records."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmopt.cli.common import Group, escape, note, out, print_json, table
from tvmopt.files import make_folder, write_text

if TYPE_CHECKING:
    from tvmopt.tuning.curve import Curve, Point
    from tvmopt.tuning.record import Key, Record
    from tvmopt.tuning.store import Store

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

StoreFile = Annotated[
    Path | None,
    typer.Option("--store", help="The tuning store.", show_default="~/.local/share/tvmopt/tuning.db"),
]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
TargetName = Annotated[
    str,
    typer.Option("--target", "-t", help="Only records of this target (cpu: this machine).", show_default="all"),
]

NO_WINNERS = "no winners: nothing that was measured is faster than the analytic schedules; --all takes everything"


@app.callback()
def logs() -> None:
    """What tuning found out, kept in one store; only records of exactly the compile's target are ever used."""


@app.command("list")
def list_records(
    store: StoreFile = None,
    target: TargetName = "",
    everything: Annotated[bool, typer.Option("--all", help="Every measurement, not only the winners.")] = False,
    as_json: Json = False,
) -> None:
    """The winners, one line a kernel; what was measured for each target."""
    from tvmopt.tuning.logs import pruned

    with _open(store) as opened:
        records = opened.records(target=_fingerprint(target))
    chosen = records if everything else pruned(records)
    if as_json:
        print_json([r.__dict__ for r in chosen])
        return
    for name, number in sorted(Counter(r.key.target for r in records).items()):
        out.print(
            f"[bold]{escape(name)}[/]: {number} measured, {_statuses([r for r in records if r.key.target == name])}"
        )
    if not chosen:
        out.print(NO_WINNERS if records else f"no records in {escape(opened.path)}")
        return
    rows = [
        (r.key.workload[:8], r.key.family, r.shape, str(r.candidate), r.status,
         f"{r.seconds * 1e6:.1f} us" if r.samples else "",
         f"{r.verdict.ratio:.3f} [{r.verdict.low:.3f}, {r.verdict.high:.3f}]" if r.verdict else "",
         r.date[:10])
        for r in sorted(chosen, key=lambda r: (r.key, r.seconds))
    ]  # fmt: skip
    table(("workload", "family", "shape", "knobs", "status", "median", "of analytic", "date"), rows, left=5)


def _kernels(store: Store) -> dict[str, list[str]]:
    """Workload -> the names that kernels of it have in the models that were tuned."""
    found: dict[str, set[str]] = {}
    for session in store.sessions():
        for digest, names in store.facts(session.id).get("names", {}).items():
            found.setdefault(digest, set()).update(names)
    return {digest: sorted(names) for digest, names in found.items()}


@app.command("show")
def show(
    workload: Annotated[
        str,
        typer.Argument(help="A kernel's name, or the first digits of a workload's hash (`tvmopt logs list`)."),
    ],
    store: StoreFile = None,
    as_json: Json = False,
) -> None:
    """Every measurement of one kernel, the fastest first, with its samples."""
    from tvmopt.errors import TuningError

    with _open(store) as opened:
        names = _kernels(opened)
        found = {digest for digest, known in names.items() if workload in known}
        records = [r for r in opened.records() if r.key.workload in found or r.key.workload.startswith(workload)]
    if not records:
        every = sorted({name for known in names.values() for name in known})
        if near := difflib.get_close_matches(workload, every, n=3, cutoff=0.5):
            fix = f"did you mean {' or '.join(map(repr, near))}?"
            raise TuningError(f"no record of a kernel {workload!r}", where=str(opened.path), fix=fix)
        raise TuningError(f"no record of a workload {workload!r}", where=str(opened.path), fix="tvmopt logs list --all")
    if as_json:
        print_json([r.__dict__ for r in records])
        return
    rows = [
        (str(r.candidate), r.status, f"{r.seconds * 1e6:.1f} us" if r.samples else "", len(r.samples),
         f"{r.verdict.ratio:.3f}{' won' if r.won else ''}" if r.verdict else "", r.digest, r.note[:60])
        for r in sorted(records, key=lambda r: r.seconds)
    ]  # fmt: skip
    first = records[0]
    out.print(
        f"[bold]{escape(first.key.family)} {first.key.version}[/] {escape(first.shape)}\n"
        f"{escape(first.key.target)}, TVM {escape(first.key.tvm)}"
    )
    if known := names.get(first.key.workload):
        out.print(f"kernels: {escape(', '.join(known))}")
    table(("knobs", "status", "median", "samples", "of analytic", "reference:error", "note"), rows, left=2)


@app.command("import")
def import_records(
    files: Annotated[list[Path], typer.Argument(help="Logs (.jsonl), or folders of MetaSchedule's JSON database.")],
    store: StoreFile = None,
    target: Annotated[str, typer.Option("--target", "-t", help="Of a MetaSchedule database: the machine.")] = "cpu",
) -> None:
    """Take records from files into the store; every readable line is taken, the others are listed."""
    from tvmopt.targets import Machine
    from tvmopt.tuning.logs import import_logs
    from tvmopt.tuning.store import Store

    folders = [f for f in files if f.is_dir()]
    with Store(store) as opened:
        added = import_logs(opened, [f for f in files if f not in folders])
        if folders:
            from tvmopt.tuning.metaschedule import databases, import_database

            machine = Machine.load(target)
            added += sum(import_database(opened, one, machine) for folder in folders for one in databases(folder))
    out.print(f"{added} new records in {escape(opened.path)}")


@app.command("merge")
def merge(stores: Annotated[list[Path], typer.Argument(help="Other tuning stores.")], store: StoreFile = None) -> None:
    """Take all records of other stores into this one."""
    from tvmopt.tuning.store import Store

    with Store(store) as opened:
        added = 0
        for path in stores:
            with _open(path) as other:
                added += opened.merge(other.records())
                for digest, module in other.workloads():
                    opened.put_workload(digest, module)
    out.print(f"{added} new records in {escape(opened.path)}")


@app.command("prune")
def prune(store: StoreFile = None) -> None:
    """Keep the best winner of each kernel only. What else was measured is forgotten, and will be measured again."""
    from tvmopt.tuning.logs import pruned

    with _open(store) as opened:
        gone = opened.remove(keep=pruned(opened.records()))
    out.print(f"{gone} records removed from {escape(opened.path)}")


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write: one file a target.")],
    store: StoreFile = None,
    target: TargetName = "",
    everything: Annotated[bool, typer.Option("--all", help="Every measurement, not only the winners.")] = False,
    metaschedule: Annotated[bool, typer.Option(help="Write MetaSchedule's JSON databases.")] = False,
) -> None:
    """Write sorted JSON-lines, to be reviewed, shared and shipped."""
    from tvmopt.tuning.logs import export_logs

    with _open(store) as opened:
        make_folder(folder)
        if metaschedule:
            from tvmopt.tuning.metaschedule import export_database

            written = export_database(opened, folder, target=_fingerprint(target))
        else:
            written = export_logs(opened, folder, target=_fingerprint(target), everything=everything)
    for path, number in written.items():
        out.print(f"{escape(path)}: {number} records")
    if not written:
        out.print("nothing to write: no measurement" if everything or metaschedule else NO_WINNERS)


@app.command("curve")
def draw_curve(
    session: Annotated[
        str, typer.Argument(help="A session's model, or the first digits of its identifier.", show_default="the last")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write PATH.json and PATH.svg.", metavar="PATH")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The ONNX file, for sessions that do not remember their kernels.")
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="With --model: what it was tuned for.")] = "cpu",
    precision: Annotated[str, typer.Option(help="With --model: what it was tuned for.")] = "fp32",
    threads: Annotated[int | None, typer.Option(min=1, help="With --model: threads it was tuned for.")] = None,
    store: StoreFile = None,
    as_json: Json = False,
) -> None:
    """The best latency of a model over trials and time, of one tuning session."""
    from tvmopt.tuning import curve

    calls = _calls(model, target, precision, threads) if model else None
    with _open(store) as opened:
        drawn = curve.curve(opened, curve.find_session(opened, session), calls)
    if output is not None:
        base = output.with_suffix("") if output.suffix in (".json", ".svg") else output
        for suffix, text in ((".json", json.dumps(drawn.as_dict(), indent=1) + "\n"), (".svg", curve.svg(drawn))):
            write_text(base.with_name(base.name + suffix), text)
    if as_json:
        print_json(drawn)
        return
    rows = [
        (p.trial, f"{p.seconds:.0f} s", f"{1e3 * p.confirmed:.3f} ms", f"{p.confirmed / drawn.untuned:.3f}")
        for p in _changes(drawn)
    ]
    out.print(f"[bold]{escape(drawn.model)}[/] ({escape(drawn.session)}), {escape(drawn.target)}")
    table(("trial", "time", "best confirmed", "of untuned"), rows, left=0)
    out.print(
        f"{drawn.trials} trials in {drawn.seconds:.0f} s, {drawn.won} of {drawn.kernels} kernels faster: "
        f"{1e3 * drawn.untuned:.3f} -> {1e3 * drawn.tuned:.3f} ms, the kernels' times added up"
    )


def _calls(model: Path, target: str, precision: str, threads: int | None) -> dict[Key, float]:
    from tvmopt.targets import Machine
    from tvmopt.tuning.driver import imported_module, tasks_of

    machine = Machine.load(target).with_threads(threads)
    return {t.key: t.weight for t in tasks_of(imported_module(model, {}), machine, precision)}


def _changes(drawn: Curve) -> list[Point]:
    """The points at which the confirmed latency fell, the first and the last."""
    kept = [drawn.points[0]]
    for point in drawn.points[1:]:
        if point.confirmed < kept[-1].confirmed:
            kept.append(point)
    return kept if kept[-1] is drawn.points[-1] else [*kept, drawn.points[-1]]


@app.command("verify")
def verify(
    files: Annotated[list[Path] | None, typer.Argument(help="Logs to check in place of the store.")] = None,
    store: StoreFile = None,
    as_json: Json = False,
) -> None:
    """Build the winners of this machine again and compare their outputs with the unscheduled kernel's."""
    from tvmopt.errors import TuningError
    from tvmopt.tuning.verify import verify_logs, verify_store

    checks = verify_logs(files, store=store) if files else verify_store(store)
    if as_json:
        print_json([c.__dict__ for c in checks])
    else:
        rows = [(c.workload[:8], c.family, c.shape, c.knobs, c.verdict, c.note) for c in checks]
        if not rows:
            out.print("no winners to verify")
            return
        table(("workload", "family", "shape", "knobs", "verdict", ""), rows, left=5)
    bad = [c for c in checks if c.verdict not in ("right", "not checked")]
    if bad:
        raise TuningError(f"{len(bad)} of {len(checks)} records are not right", fix="tune those kernels again")


@contextmanager
def _open(store: Path | None) -> Iterator[Store]:
    """A store that is there; at the end, the rows of it that are damaged are told."""
    from tvmopt.tuning.store import Store

    with Store(store, must_exist=True) as opened:
        yield opened
    for warning in opened.warnings:
        note(warning)


def _fingerprint(target: str) -> str:
    from tvmopt.targets import Machine
    from tvmopt.tuning.record import fingerprint

    return fingerprint(Machine.load(target)) if target else ""


def _statuses(records: list[Record]) -> str:
    return ", ".join(f"{n} {status}" for status, n in sorted(Counter(r.status for r in records).items()))
