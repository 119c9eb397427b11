"""A benchmark as words and tables: the rows that the terminal, Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmopt.analysis.text import align
from tvmopt.bench.machine import warnings
from tvmopt.bench.records import BenchResult, Case, EngineResult
from tvmopt.bench.stats import Ratio

HEADER = (
    "engine",
    "median ms",
    "p10",
    "p90",
    "p99",
    "inf/s",
    "of floor",
    "peak MiB",
    "error",
    "against it",
    "verdict",
)


def table(case: Case, percentiles: Sequence[float] = ()) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a case; what is missing, failed or unstable is explained by :func:`notes`.

    The column "against it" is the first engine's latency over the row's, with its interval: below 1, the
    first engine is faster.
    """
    extra = tuple(f"p{p:g}" for p in percentiles)
    header = HEADER[:5] + extra + HEADER[5:]
    if case.phase:
        header = tuple("tokens/s" if name == "inf/s" else name for name in header)
    return header, [_row(case, row, percentiles) for row in case.engines]


def _row(case: Case, row: EngineResult, percentiles: Sequence[float]) -> tuple[str, ...]:
    if row.status != "ok" or row.latency is None:
        return (row.label, *[""] * (9 + len(percentiles)), row.status)
    t = row.latency
    more = [f"{v * 1e3:.3f}" for v in np.percentile(row.samples, list(percentiles))] if percentiles else []
    floor = f"{case.floor_ms / t.median_ms:.0%}" if case.floor_ms else ""
    ratio = case.ratios.get(row.label)
    against, verdict = ratio_words(ratio), verdict_words(case, row.label)
    mark = "" if row.quiet else "~"
    error = f"{row.accuracy:.0e}" if row.compared else "?"
    rate = case.batch / t.median_ms * 1e3 if case.phase else t.throughput
    return (
        row.label, f"{mark}{t.median_ms:.3f}", f"{t.p10_ms:.3f}", f"{t.p90_ms:.3f}", f"{t.p99_ms:.3f}", *more,
        f"{rate:.1f}", floor, f"{row.peak_mib - row.base_mib:.0f}", error, against,
        verdict,
    )  # fmt: skip


LESS = ("engine", "median ms", "against it", "verdict")


def text(case: Case, percentiles: Sequence[float] = (), width: int = 0) -> list[str]:
    """The table as aligned lines, header first; with a `width`, the columns of LESS only if all of them are wider."""
    header, rows = table(case, percentiles)
    lines = align([header, *rows], {0, len(header) - 1})
    if not width or max(map(len, lines)) <= width:
        return lines
    kept = [i for i, name in enumerate(header) if name in LESS or name in {f"p{p:g}" for p in percentiles}]
    return align([[row[i] for i in kept] for row in [header, *rows]], {0, len(kept) - 1})


def ratio_words(ratio: Ratio | None) -> str:
    """``0.83 [0.81, 0.85]``."""
    if ratio is None or not np.isfinite(ratio.value):
        return ""
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def verdict_words(case: Case, label: str) -> str:
    """The verdict with its subject: ``tvmopt faster``."""
    ratio = case.ratios.get(label)
    if ratio is None:
        return ""
    return f"{case.engines[0].label} {ratio.verdict}" if ratio.verdict in ("faster", "slower") else ratio.verdict


def heading(case: Case) -> str:
    """``resnet50.onnx, batch 1, 2 threads, fp32``, or ``llama.onnx, prefill of 128 tokens, 2 threads, fp32``."""
    what = {
        "prefill": f"prefill of {case.batch} tokens", "step": "one token a step",
        "together": f"a step of {case.batch} texts",
    }  # fmt: skip
    words = [
        case.model,
        what.get(case.phase, f"batch {case.batch}"),
        f"{case.threads} thread{'s' if case.threads > 1 else ''}",
    ]
    if case.streams > 1:
        words.append(f"{case.streams} streams")
    return ", ".join([*words, case.precision])


def notes(case: Case) -> list[str]:
    """What stands below a case's table: the floor, how it was measured, what disturbed it."""
    found = []
    if case.floor_words:
        found.append(f"Floor {case.floor_ms:.3f} ms: {case.floor_words}.")
    elif case.floor_ms:
        found.append(
            f"Floor {case.floor_ms:.3f} ms, by {case.floor_by}: {case.flops / 1e9:.2f} GFLOP and "
            f"{case.floor_bytes / 1e6:.1f} MB at this machine's measured peaks (an algorithm with fewer "
            "operations, such as Winograd's, may beat it)."
        )
    wanted, played = case.rounds
    found.append(f"{played} rounds played for {wanted} undisturbed ones; {case.seconds:.0f} s.")
    for row in case.engines:
        ratio = case.ratios.get(row.label)
        if row.status == "wrong":
            found.append(f"{row.label} gives WRONG outputs and has no times: {row.message}")
        elif row.message:
            found.append(f"{row.label}{'' if row.status == 'ok' else f' {row.status}'}: {row.message}")
        if ratio and ratio.verdict == "unstable":
            found.append(f"{row.label} is unstable: {ratio.reason}.")
        if row.latency and not row.quiet:
            found.append(f"~ {row.label}: every round was disturbed; its times only show the order of magnitude.")
        if row.latency and not 0.9 < row.rotation < 1.1:
            found.append(f"{row.label} took {row.rotation:.2f} of its usual time right after another engine's turn.")
        if row.transfers_ms:
            times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in row.transfers_ms.items())
            found.append(f"{row.label}: {times}.")
    return found


def machine_words(result: BenchResult) -> str:
    """One line about the machine."""
    m = result.machine
    names = ", ".join(f"{name} {number}" for name, number in m["versions"].items())
    return (
        f"{m['processor']}, {m['usable']} of {m['threads']} threads, {m['clock_mhz']} MHz, "
        f"governor {m['governor']}, turbo {m['turbo']}, load {m['load'][0]}; {names}"
    )


def facts(case: Case) -> list[tuple[str, str]]:
    """Label -> what the engine says of itself."""
    return [
        (row.label, "; ".join(f"{key} {value}" for key, value in row.facts.items()) + times(row))
        for row in case.engines
        if row.facts
    ]


def times(row: EngineResult) -> str:
    """Compile and load times as words."""
    built = f"; compiled in {row.build_s:.1f} s" if row.build_s else ""
    return f"{built}; loaded in {row.load_s:.2f} s"


def markdown(result: BenchResult, percentiles: Sequence[float] = ()) -> str:
    """The whole result as Markdown."""
    lines = [f"Machine: {machine_words(result)}", ""]
    lines += [f"- {w}" for w in warnings(result.machine)] + [""]
    for case in result.cases:
        header, rows = table(case, percentiles)
        lines += [f"### {heading(case)}", "", "| " + " | ".join(header) + " |"]
        lines.append("|" + "---|" + "---:|" * (len(header) - 2) + "---|")
        lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        lines += ["", *(f"- {note}" for note in notes(case)), *(f"- {n}: {w}" for n, w in facts(case)), ""]
    return "\n".join(lines)
