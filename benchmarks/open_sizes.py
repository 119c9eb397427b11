"""One artifact with open sizes, size by size, beside the static build of each size and the peers.

    python benchmarks/open_sizes.py                        # every model, all sizes
    python benchmarks/open_sizes.py bert_base --only 1x128,8x512
    python benchmarks/open_sizes.py --quiet QUIET          # slices run behind a command that pauses others
    python benchmarks/open_sizes.py --table                # only the table, from the results there are

onnxruntime and OpenVINO read the file as it is, with open dimensions, once, and are then given each size in turn; so is
our open artifact. The static build of each size is made for it alone. A slice builds the static artifacts of some
sizes, and then times them in one process an engine: rounds in which each engine has a turn, the order turned round
every time, until `--rounds` were undisturbed or the size has had its share of `--seconds`. Outputs are compared with
onnxruntime's before. A size that was timed is not timed again (``--again`` adds rounds to those there are).

One JSON file a model and size goes into ``benchmarks/results/MACHINE/open``, and the table into its README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
import real_models
import suite
from open_calls import difference

import tvmopt
from tvmopt.analysis.samples import sample_inputs
from tvmopt.bench.engine import Engine
from tvmopt.bench.machine import describe_machine, slug
from tvmopt.bench.records import Job
from tvmopt.bench.stats import Rules, compare_rounds
from tvmopt.files import save_arrays

HERE = Path(__file__).resolve().parent
LIMIT = 1e-3
"""Of the largest output, between any two engines."""

ENGINES = ("open", "static", "onnxruntime", "openvino")
TURN = 0.1
"""Seconds of calls an engine has in a round, and one call at least."""


@dataclass(frozen=True)
class Open:
    """One model with open sizes.

    Attributes:
        path: writes the file, once, and says where it is.
        inputs: the shape of each input at a size.
        sizes: to be timed.
    """

    path: Callable[[], Path]
    inputs: Callable[[tuple[int, ...]], dict[str, tuple[int, ...]]]
    sizes: tuple[tuple[int, ...], ...]


TEXTS = ("input_ids", "attention_mask", "token_type_ids")
LENGTHS = (1, 8, 16, 32, 37, 64, 100, 128, 200, 384, 512)
SIDES = (
    (320, 320), (320, 480), (416, 416), (480, 640), (512, 512), (544, 960),
    (640, 480), (640, 640), (736, 736), (736, 992), (800, 608), (960, 960),
)  # fmt: skip
WIDTHS = (64, 96, 128, 160, 200, 240, 320, 400, 480, 640, 800, 1000)


def bert() -> Path:
    """BERT-base with an open batch and length."""
    return models.write_open("bert_base")


def trained(name: str) -> Callable[[], Path]:
    """A model of real_models.py as its file is."""
    return lambda: real_models.fetch([m for m in real_models.MODELS if m.name == name])[name]


def picture(size: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """A picture of that height and width."""
    return {"x": (1, 3, *size)}


MODELS = {
    "bert_base": Open(bert, lambda size: dict.fromkeys(TEXTS, size), tuple((b, n) for b in (1, 3, 8) for n in LENGTHS)),
    "ch_PP-OCRv4_det_infer": Open(trained("ch_PP-OCRv4_det_infer"), picture, SIDES),
    "ch_PP-OCRv4_rec_infer": Open(trained("ch_PP-OCRv4_rec_infer"), picture, tuple((48, w) for w in WIDTHS)),
    "PP-OCRv6_rec_small": Open(trained("PP-OCRv6_rec_small"), picture, tuple((48, w) for w in WIDTHS)),
}


def named(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def prepared(
    name: str, sizes: Sequence[tuple[int, ...]], threads: int, folder: Path
) -> dict[tuple[int, ...] | None, Path]:
    """The open artifact, compiled once for each state of the compiler, and a static one of each size."""
    model, found = MODELS[name].path(), {}
    for size in (None, *sizes):
        stem = f"{name}-t{threads}-{suite.code()}-{named(size) if size else 'open'}"
        found[size] = folder / f"{stem}.tvmopt"
        if found[size].exists():
            continue
        shape = MODELS[name].inputs(size) if size else None
        start = time.perf_counter()
        compiled = tvmopt.compile(
            model, shape=shape, verify=False, records=False, threads=threads, output=found[size], cache=True
        )
        seconds = round(time.perf_counter() - start, 1)
        print(f"{stem}: compiled in {seconds} s, {len(compiled.report.kernels)} kernels", flush=True)
    return found


def timed(
    name: str, sizes: Sequence[tuple[int, ...]], threads: int, paths: Any, rounds: int, seconds: float, until: float
) -> Iterator[dict[str, Any]]:
    """Time sizes, one after another; ends when `until` is near. Each engine with open sizes is started once."""
    model = str(MODELS[name].path())
    jobs = {
        "open": Job("tvmopt", model, str(paths[None]), threads),
        "onnxruntime": Job("onnxruntime", model, threads=threads),
        "openvino": Job("openvino", model, threads=threads),
    }
    engines: dict[str, Engine] = {}
    try:
        for label, job in jobs.items():
            engines[label] = Engine(job)
            engines[label].ask("load", job)
        known = tvmopt.load(paths[None])
        for number, size in enumerate(sizes):
            if number and time.perf_counter() > until:
                return
            shapes = MODELS[name].inputs(size)
            infos = known.inputs_at(known.bind([shapes[info.name] for info in known.inputs]))
            feeds = sample_inputs(infos, seed=1, bounds=known.manifest.options.get("bounds"))
            job = Job("tvmopt", model, str(paths[size]), threads, shapes=shapes)
            with Engine(job) as static:
                static.ask("load", job)
                every = {e: static if e == "static" else engines[e] for e in ENGINES}
                yield {"size": list(size)} | one(every, feeds, rounds, seconds)
    finally:
        for engine in engines.values():
            engine.close()


def one(engines: dict[str, Engine], feeds: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Compare the outputs, and play the rounds of one size: medians of each engine's undisturbed turns."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        save_arrays(inputs, feeds)
        outputs, begin = {}, time.perf_counter()
        for label, engine in engines.items():
            engine.ask("bind", str(inputs))
            engine.ask("check", f"{folder}/{label}.npz")
            with np.load(f"{folder}/{label}.npz") as file:
                outputs[label] = dict(file)
    took, right = time.perf_counter() - begin, outputs["onnxruntime"]
    errors = {e: difference({n: found[n] for n in right}, right) for e, found in outputs.items() if e != "onnxruntime"}
    record: dict[str, Any] = {"errors": errors, "rounds": {e: [] for e in engines}, "disturbed": 0}
    if not max(errors.values()) <= LIMIT:
        return record | {"wrong": True}
    for engine in engines.values() if took < seconds / 2 else ():  # else the comparison was the warm-up
        engine.turn(TURN, 1)
        engine.settle(0.02)
    begin = time.perf_counter()
    for number in range(4 * rounds):
        if len(record["rounds"]["open"]) >= rounds or (number and time.perf_counter() - begin > seconds):
            break
        turns = {}
        for label in list(engines)[:: 1 if number % 2 else -1]:
            turns[label] = engines[label].turn(TURN, 1)
            engines[label].settle(0.02)
        if any(turn.disturbed for turn in turns.values()):
            record["disturbed"] += 1
            continue
        for label, turn in turns.items():
            record["rounds"][label].append(round(float(np.median(turn.seconds)), 7))
    return record


# -- the record and the table ----------------------------------------------------------------------


def kept(path: Path) -> dict[str, Any]:
    """What stands in a file, of this state of the compiler; else nothing."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if data["code"] == suite.code() else {}


def keep(path: Path, name: str, threads: int, found: dict[str, Any]) -> dict[str, Any]:
    """Add the rounds of one launch to a file."""
    old = kept(path)
    launches = [*old.get("launches", []), found.pop("rounds")]
    data = {
        "model": name, "threads": threads, "code": suite.code(), "machine": describe_machine(), **found,
        "disturbed": old.get("disturbed", 0) + found["disturbed"], "launches": launches,
    }  # fmt: skip
    data["median_ms"] = {e: _median(launches, e) for e in ENGINES}
    data["ratios"] = {e: asdict(ratio(launches, e)) for e in ENGINES[1:]}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(suite_json(data)))
    part.replace(path)
    return data


def suite_json(value: Any) -> Any:
    """Plain JSON: a ratio that could not be measured is null."""
    if isinstance(value, dict):
        return {key: suite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [suite_json(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def ratio(launches: Sequence[dict[str, list[float]]], peer: str) -> Any:
    """The open artifact's time over a peer's, paired round by round."""
    return compare_rounds([one["open"] for one in launches], [one[peer] for one in launches], Rules(clean=3))


def _median(launches: Sequence[dict[str, list[float]]], engine: str) -> float | None:
    times = [t for one in launches for t in one[engine]]
    return round(float(np.median(times)) * 1e3, 4) if times else None


def words(data: dict[str, Any]) -> str:
    """One size in one line, for the log."""
    if data.get("wrong"):
        return f"{data['model']} {named(data['size'])}: outputs differ, {data['errors']}"
    cells = [f"{e} {r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for e, r in data["ratios"].items() if r["value"]]
    return f"{data['model']} {named(data['size'])} t{data['threads']}: {data['median_ms']['open']} ms; " + ", ".join(
        cells
    )


def table(folder: Path) -> str:
    """The results of a folder as Markdown."""
    every = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    lines = [
        "# One artifact with open sizes",
        "",
        "Each model is compiled once without `--shape`. Milliseconds are medians of interleaved rounds, each engine",
        "in its own process, outputs compared first. The ratios are the open artifact's time over that of the",
        "static build of the size, and over the peers', which read the file with its open dimensions: below 1 the open",
        "artifact is faster. Few rounds make an interval too narrow to be believed; a single one makes none.",
    ]
    for name, threads in sorted({(d["model"], d["threads"]) for d in every}):
        rows = [d for d in every if (d["model"], d["threads"]) == (name, threads)]
        rows.sort(key=lambda d: d["size"])
        lines += ["", f"## {name}, {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += [
            "| size | open ms | / static | / onnxruntime | / OpenVINO | rounds | error |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [_row(d) for d in rows]
        good = [d for d in rows if not d.get("wrong") and all(r["value"] for r in d["ratios"].values())]
        if good:
            static = [d["ratios"]["static"]["value"] for d in good]
            peers = [max(d["ratios"][e]["value"] for e in ENGINES[2:]) for d in good]
            lines += ["", f"- / static: {_summary(static)}", f"- / the better of the peers: {_summary(peers)}"]
    return "\n".join(lines) + "\n"


def _row(data: dict[str, Any]) -> str:
    cells = [
        f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if r["value"] else "" for r in data["ratios"].values()
    ]
    rounds = sum(len(one["open"]) for one in data["launches"])
    time_ = "wrong" if data.get("wrong") else f"{data['median_ms']['open'] or 0:.2f}"
    return (
        "| "
        + " | ".join([named(data["size"]), time_, *cells, str(rounds), f"{max(data['errors'].values()):.0e}"])
        + " |"
    )


def _summary(values: Sequence[float]) -> str:
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return f"geometric mean {mean:.3f}, best {min(values):.2f}, worst {max(values):.2f} of {len(values)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--only", help="sizes, as 1x128,3x37 (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10, help="undisturbed rounds of each size and launch")
    parser.add_argument("--seconds", type=float, default=8.0, help="for the rounds of one size")
    parser.add_argument("--slice", type=float, default=40.0, help="seconds after which no further size is begun")
    parser.add_argument("--builds", type=int, default=6, help="static artifacts that are kept at a time")
    parser.add_argument("--quiet", help="a command that runs what follows it while other programs pause")
    parser.add_argument("--results", type=Path, default=HERE / "results" / slug() / "open")
    parser.add_argument("--artifacts", type=Path, default=Path(tempfile.gettempdir()) / "tvmopt-open-sizes")
    parser.add_argument("--again", action="store_true", help="add a launch to sizes that were timed")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)  # what is built, in one slice
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    for folder in (args.results, args.artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    for name in () if args.table else args.names or MODELS:
        asked = [tuple(map(int, size.split("x"))) for size in args.only.split(",")] if args.only else MODELS[name].sizes
        todo = [
            s
            for s in asked
            if args.again or not any(one["open"] for one in kept(_file(args, name, s)).get("launches", []))
        ]
        if args.time:
            _slice(args, name, todo)
            continue
        while todo:
            now = todo[: args.builds]
            paths = prepared(name, now, args.threads, args.artifacts)
            while now:
                command = [*([args.quiet] if args.quiet else []), sys.executable, __file__, name, "--time"]
                command += ["--only", ",".join(map(named, now)), "--again"]
                for option in ("threads", "rounds", "seconds", "slice", "results", "artifacts"):
                    command += [f"--{option}", str(getattr(args, option))]
                before = time.time()
                subprocess.run(command, check=True)
                done = [
                    s for s in now if _file(args, name, s).exists() and _file(args, name, s).stat().st_mtime > before
                ]
                if not done:
                    raise SystemExit(f"{name}: no size was timed")
                now, todo = [s for s in now if s not in done], [s for s in todo if s not in done]
            for size, path in paths.items():
                if size:
                    path.unlink()
    (args.results / "README.md").write_text(table(args.results))
    return 0


def _file(args: argparse.Namespace, name: str, size: tuple[int, ...]) -> Path:
    path: Path = args.results / f"{name}-{named(size)}-t{args.threads}.json"
    return path


def _slice(args: argparse.Namespace, name: str, sizes: Sequence[tuple[int, ...]]) -> None:
    """Time as many of the sizes as a slice has time for; their artifacts are there."""
    paths = prepared(name, sizes, args.threads, args.artifacts)
    until = time.perf_counter() + args.slice
    for found in timed(name, sizes, args.threads, paths, args.rounds, args.seconds, until):
        print(words(keep(_file(args, name, tuple(found["size"])), name, args.threads, found)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
