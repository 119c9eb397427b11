"""The suite against its peers: compile every model, interleave it with onnxruntime and OpenVINO, keep all.

    python benchmarks/suite.py                           # every model, 1 and 2 threads, batch 1
    python benchmarks/suite.py resnet50 bert_base        # some
    python benchmarks/suite.py --precision bf16          # against OpenVINO in bf16
    python benchmarks/suite.py --table                   # only the table, from the results there are

One JSON file a model, batch, number of threads and precision, in ``benchmarks/results/MACHINE/``. A case is not
measured again if its file is there, none of its verdicts is "unstable", and compiler and engines are the same as then
(``--again`` measures all the same): a run that was stopped goes on. The table, losses included, is
``benchmarks/results/MACHINE/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import models

from tvmopt.bench.machine import describe_machine, slug, versions
from tvmopt.bench.measure import Plan
from tvmopt.bench.records import BenchResult
from tvmopt.bench.report import machine_words
from tvmopt.bench.run import Settings, bench
from tvmopt.errors import TvmoptError

HERE = Path(__file__).parent
ENGINES = {"fp32": "tvmopt:records=off,onnxruntime,openvino", "bf16": "tvmopt:records=off,openvino"}
"""By precision: onnxruntime's CPU kernels have no bf16."""


def measure(
    name: str,
    threads: int,
    folder: Path,
    *,
    engines: Sequence[str],
    plan: Plan,
    batch: int = 1,
    precision: str = "fp32",
    again: bool = False,
    source: Path | None = None,
    reuse: Path | None = None,
) -> Path:
    """Measure one case and write its file; or leave the file that is there.

    Args:
        source: folder of the models; they are written there if absent.
        reuse: folder of compiled files, to be kept from one number of threads or one run to the next.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-b{batch}-t{threads}{'' if precision == 'fp32' else f'-{precision}'}.json"
    if not again and current(path, engines):
        print(f"{path.stem}: measured before", flush=True)
        return path
    model = models.write(name, source or models.FOLDER, batch=batch)
    settings = Settings(
        engines=tuple(engines), threads=(threads,), precision=precision, save=str(reuse or ""), reuse=False
    )
    result = bench([model], settings, plan=plan)
    part = path.with_suffix(".part")
    data = compact(result.as_dict()) | {"code": code()}
    part.write_text(json.dumps(data))
    part.replace(path)
    print(line(data["cases"][0]), flush=True)
    return path


def current(path: Path, engines: Sequence[str]) -> bool:
    """Whether a file holds this case, whole, by the engines and versions of now."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    same = data["machine"]["versions"] == versions() and data["settings"]["engines"] == list(engines)
    verdicts = {r["verdict"] for c in data["cases"] for r in c["ratios"].values()}
    return bool(same and data.get("code") == code() and verdicts and "unstable" not in verdicts)


@cache
def code() -> str:
    """A hash of everything that decides what is compiled: a result belongs to one state of the compiler."""
    root = HERE.parent
    rooms = ("importer", "operators", "passes", "lowering", "scheduling", "compiler", "toolchain", "runtime")
    folders = [
        *(root / "frontend/tvmopt" / room for room in rooms),
        *(root / f for f in ("schedules", "targets")),
    ]
    files = [f for folder in folders for f in folder.rglob("*.*") if f.suffix in (".py", ".toml", ".c")]
    files.append(root / "frontend/tvmopt/pipeline.py")
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def compact(data: dict[str, Any]) -> dict[str, Any]:
    """The result with fewer samples and digits: what a repository can keep."""
    for case in data["cases"]:
        case["model"] = Path(case["model"]).name
        for row in case["engines"]:
            samples = row["samples"]
            row["samples"] = [round(s, 7) for s in samples[:: max(1, len(samples) // 200)]]
            row["rounds"] = [[round(s, 7) for s in launch] for launch in row["rounds"]]
            row["job"] |= {"model": Path(row["job"]["model"]).name, "prepared": ""}
    return data


def line(case: dict[str, Any]) -> str:
    """One case in one line, for the log."""
    words = [f"{Path(case['model']).stem} b{case['batch']} t{case['threads']}:"]
    for row in case["engines"]:
        ratio = case["ratios"].get(row["label"])
        time = f"{row['latency']['median_ms']:.2f} ms" if row["latency"] else row["status"]
        words.append(f"{row['label']} {time}" + (f" ({ratio['value'] or 0:.2f} {ratio['verdict']})" if ratio else ""))
    return " ".join(words)


def table(folder: Path, asked: Sequence[str]) -> str:
    """The results of a folder as Markdown: models down, peers across, geometric means below."""
    cases = [json.loads(p.read_text()) for p in sorted(folder.glob("*-b*-t*.json"))]
    if not cases:
        return "Nothing measured yet.\n"
    newest = max(cases, key=lambda c: c["machine"]["versions"].get("tvmopt", ""))
    words = machine_words(BenchResult(newest["machine"], {}, ()))
    lines = [
        f"# {newest['machine']['processor']}, {newest['machine']['threads']} processors",
        "",
        "Latency of one inference, medians of interleaved rounds, each engine in its own process; outputs "
        "compared first. The ratio is tvmopt's latency over the peer's with its interval: below 1 tvmopt "
        "is faster. "
        "No tuning records.",
        "",
        f"{words}",
        "",
    ]
    every = [c for d in cases for c in d["cases"]]
    for threads, precision in sorted({_kind(c) for c in every}, key=lambda k: (k[1] != "fp32", k[1], k[0])):
        found = [c for c in every if _kind(c) == (threads, precision)]
        found.sort(key=lambda c: _order(c["model"], asked))
        lines += _section(found, threads, precision)
    return "\n".join(lines)


def _kind(case: dict[str, Any]) -> tuple[int, str]:
    return case["threads"], case.get("precision", "fp32")


def _order(file: str, asked: Sequence[str]) -> tuple[int, str]:
    stem = Path(file).stem.split("_b")[0] if Path(file).stem not in asked else Path(file).stem
    return (asked.index(stem) if stem in asked else len(asked), file)


def _section(cases: list[dict[str, Any]], threads: int, precision: str) -> list[str]:
    first = cases[0]["engines"][0]["label"].partition(":")[0]
    peers = list(dict.fromkeys(row["label"] for c in cases for row in c["engines"][1:]))
    header = ["model", "batch", f"{first} ms", *(f"{p} ms" for p in peers), *(f"/ {p}" for p in peers)]
    header += [*(f"verdict, {p}" for p in peers), "of floor", "error"]
    lines = [f"## {precision}, {threads} thread{'s' if threads > 1 else ''}", "", "| " + " | ".join(header) + " |"]
    lines.append("|---|" + "---:|" * (len(header) - 1))
    for case in cases:
        lines.append("| " + " | ".join(_cells(case, peers)) + " |")
    lines += ["", *(f"- / {peer}: {summary(cases, peer)}" for peer in peers)]
    return [*lines, *([f"- / the better of them: {against_best(cases)}"] if len(peers) > 1 else []), ""]


def _cells(case: dict[str, Any], peers: Sequence[str]) -> list[str]:
    rows = {row["label"]: row for row in case["engines"]}
    mine = case["engines"][0]
    ratios = [case["ratios"].get(peer) for peer in peers]
    of_floor = case["floor_ms"] / mine["latency"]["median_ms"] if mine["latency"] else 0.0
    return [
        Path(case["model"]).stem, str(case["batch"]), _time(mine),
        *(_time(rows[p]) if p in rows else "" for p in peers),
        *(f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if _finite(r) else "" for r in ratios),
        *(r["verdict"] if r else "" for r in ratios),
        f"{of_floor:.0%}" if of_floor else "", f"{mine['accuracy']:.0e}" if mine["latency"] else "",
    ]  # fmt: skip


def _time(row: dict[str, Any]) -> str:
    if not row["latency"]:
        return str(row["status"])
    return ("" if row["quiet"] else "~") + f"{row['latency']['median_ms']:.2f}"


def _finite(ratio: dict[str, Any] | None) -> bool:
    return ratio is not None and ratio["value"] is not None


def summary(cases: list[dict[str, Any]], peer: str) -> str:
    """Geometric mean, best, worst and the count of verdicts against one peer."""
    ratios = [c["ratios"][peer] for c in cases if _finite(c["ratios"].get(peer))]
    if not ratios:
        return "nothing measured"
    values = [r["value"] for r in ratios]
    mean = math.exp(sum(map(math.log, values)) / len(values))
    verdicts = [r["verdict"] for r in ratios]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return f"geometric mean {mean:.2f}, best {min(values):.2f}, worst {max(values):.2f}; {counts}"


def against_best(cases: list[dict[str, Any]]) -> str:
    """Geometric mean and worst of the ratios to the fastest peer, model by model."""
    worst = {c["model"]: max((r["value"] for r in c["ratios"].values() if _finite(r)), default=0.0) for c in cases}
    values = {Path(model).stem: value for model, value in worst.items() if value}
    if not values:
        return "nothing measured"
    mean = math.exp(sum(map(math.log, values.values())) / len(values))
    slowest = max(values, key=values.__getitem__)
    return f"geometric mean {mean:.2f}, worst {values[slowest]:.2f} ({slowest})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare tvmopt with its peers on the suite.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which (default: all)")
    parser.add_argument("--engines", help="default: tvmopt without records, onnxruntime (fp32 only), openvino")
    parser.add_argument("--precision", choices=tuple(ENGINES), default="fp32")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--patience", type=float, default=2.0, help="see `tvmopt bench --help`")
    parser.add_argument("--models", type=Path, default=models.FOLDER, help="folder of the ONNX files")
    parser.add_argument("--results", type=Path, default=HERE / "results" / slug())
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    parser.add_argument("--table", action="store_true", help="only write the table")
    args = parser.parse_args(arguments)
    unknown = sorted(set(args.names) - set(models.BY_NAME))
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(models.BY_NAME)}")
    failed = 0
    if not args.table:
        print(f"on {describe_machine()['processor']}, into {args.results}", flush=True)
        plan = Plan(rounds=args.rounds, launches=args.launches, patience=args.patience)
        for name in args.names or list(models.BY_NAME):
            for threads in map(int, args.threads.split(",")):
                try:
                    measure(
                        name, threads, args.results, engines=(args.engines or ENGINES[args.precision]).split(","),
                        plan=plan, batch=args.batch, precision=args.precision, again=args.again, source=args.models,
                    )  # fmt: skip
                except (TvmoptError, RuntimeError, ValueError, ImportError) as error:
                    failed += 1
                    print(f"{name} t{threads}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / "README.md").write_text(table(args.results, list(models.BY_NAME)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
