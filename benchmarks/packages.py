"""Python packages that use onnxruntime, unchanged, on tvmopt's drop-in session: the same answers, in which time.

    pip install rapidocr==3.10.0 rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3 magika==1.0.3 nudenet==3.4.2
    python benchmarks/packages.py                  # all of them
    python benchmarks/packages.py magika nudenet --rounds 9

Each package gets real inputs (photographs, lines of text on photographs, recordings, files of this machine's Python)
through its own interface, once with onnxruntime and once with `tvmopt.onnxruntime.install()`, each time in a process
of its own, in turn. Answers must be equal: texts, labels and counts exactly, scores and places within `NEAR`. Timed are
the package's calls as a whole and what of them passes inside `InferenceSession.run`. `--rounds 1 --calls 1` at first
compiles what is not in the cache. The results go into ``benchmarks/results/MACHINE/packages``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
ENGINES = ("onnxruntime", "tvmopt")
NEAR = {"score": 2e-3, "place": 1.5}
"""How far apart scores, and places in pixels or samples of 16 kHz, may be."""

Answer = list[dict[str, Any]]
Call = Callable[[], Answer]


# -- in the parent: what the packages are shown ------------------------------------------------------------------------


def write_samples(folder: Path) -> None:
    """Photographs, pages of text, recordings with noise between them and files, the same for every engine."""
    import int8_tasks
    from PIL import Image, ImageEnhance

    generator = np.random.default_rng(0)
    for n, picture in enumerate(int8_tasks.photographs()):
        picture.save(folder / f"photo-{n}.png")
    portrait = int8_tasks.photographs()[0]
    for n, light in enumerate((0.6, 1.0, 1.5)):
        ImageEnhance.Brightness(portrait).enhance(light).save(folder / f"face-{n}.png")
        portrait.crop((40 * n, 20 * n, 400 + 20 * n, 420)).save(folder / f"face-cut-{n}.png")
    for n, side in enumerate((480, 640, 640, 736)):
        int8_tasks.page(generator, side)[0].save(folder / f"page-{n}.png")
    for name in ("page.png", "text.png"):
        source = int8_tasks.real_models.FOLDER / int8_tasks.PICTURES.replace("==", "-") / name
        Image.open(source).convert("RGB").save(folder / f"page-scan-{name}")
    for n, sound in enumerate(int8_tasks.recordings()[:6]):
        noise = generator.normal(0, 0.003, 16_000).astype(np.float32)
        np.save(folder / f"sound-{n}.npy", np.concatenate([noise, sound, noise, sound[: len(sound) // 2], noise]))
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(p for p in library.rglob("*") if p.is_file() and 100 < p.stat().st_size < 200_000)
    for n, at in enumerate(generator.choice(len(files), 40, replace=False)):
        (folder / f"file-{n}").write_bytes(files[at].read_bytes())


# -- in a process of one engine ----------------------------------------------------------------------------------------


def rapidocr(folder: Path) -> Call:
    from rapidocr import RapidOCR

    engine = RapidOCR()

    def read() -> Answer:
        found = [engine(str(path)) for path in sorted(folder.glob("page-*.png"))]
        answers = []
        for f in found:
            places = [] if f.boxes is None else np.asarray(f.boxes).ravel().tolist()
            answers.append({"exact": list(f.txts or ()), "score": list(f.scores or ()), "place": places})
        return answers

    return read


def rapidocr_onnxruntime(folder: Path) -> Call:
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()

    def read() -> Answer:
        answers = []
        for path in sorted(folder.glob("page-*.png")):
            lines = engine(str(path))[0] or []
            places = np.asarray([line[0] for line in lines]).ravel().tolist()
            answers.append(
                {"exact": [line[1] for line in lines], "score": [line[2] for line in lines], "place": places}
            )
        return answers

    return read


def silero_vad(folder: Path) -> Call:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model = load_silero_vad(onnx=True)
    sounds = [torch.from_numpy(np.load(path)) for path in sorted(folder.glob("sound-*.npy"))]

    def hear() -> Answer:
        answers = []
        for sound in sounds:
            times = get_speech_timestamps(sound, model)
            model.reset_states()
            scores = [float(model(piece, 16_000)) for piece in sound.split(512) if len(piece) == 512]
            places = [t[end] for t in times for end in ("start", "end")]
            answers.append({"exact": [len(times)], "score": scores, "place": places})
        return answers

    return hear


def magika(folder: Path) -> Call:
    from magika import Magika

    engine = Magika()
    files = [path.read_bytes() for path in sorted(folder.glob("file-*"))]

    def tell() -> Answer:
        found = [engine.identify_bytes(content) for content in files]
        return [{"exact": [f.output.label], "score": [float(f.score)], "place": []} for f in found]

    return tell


def nudenet(folder: Path) -> Call:
    from nudenet import NudeDetector

    engine = NudeDetector()
    paths = [str(path) for path in sorted([*folder.glob("face-*.png"), *folder.glob("photo-*.png")])]

    def detect() -> Answer:
        answers = []
        for path in paths:
            found = sorted(engine.detect(path), key=lambda d: (d["class"], d["box"]))
            answers.append({
                "exact": [d["class"] for d in found], "score": [float(d["score"]) for d in found],
                "place": [int(v) for d in found for v in d["box"]],
            })  # fmt: skip
        return answers

    return detect


PACKAGES: dict[str, Callable[[Path], Call]] = {
    "rapidocr": rapidocr, "rapidocr-onnxruntime": rapidocr_onnxruntime, "silero-vad": silero_vad, "magika": magika,
    "nudenet": nudenet,
}  # fmt: skip


def child(engine: str, package: str, folder: Path, calls: int) -> None:
    """Run one package on one engine and print its answers, the median seconds of a call, and those inside sessions."""
    out = os.dup(1)  # packages print what they like
    os.dup2(2, 1)
    if engine == "tvmopt":
        import tvmopt.onnxruntime

        tvmopt.onnxruntime.install()
    import onnxruntime

    inside = [0.0]
    plain = onnxruntime.InferenceSession.run

    def run(self: Any, *args: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return plain(self, *args, **named)
        finally:
            inside[0] += time.perf_counter() - begin

    onnxruntime.InferenceSession.run = run
    begin = time.perf_counter()
    call = PACKAGES[package](folder)
    answers = call()
    first = time.perf_counter() - begin
    whole, sessions = [], []
    for _ in range(calls):
        inside[0], begin = 0.0, time.perf_counter()
        call()
        whole.append(time.perf_counter() - begin)
        sessions.append(inside[0])
    told = {"answers": answers, "first": first, "whole": median(whole), "sessions": median(sessions)}
    os.write(out, json.dumps(told, default=float).encode())


# -- both beside each other --------------------------------------------------------------------------------------------


def run_child(engine: str, package: str, folder: Path, calls: int) -> dict[str, Any]:
    """One process.

    Raises:
        SystemExit: it failed; its last lines are told.
    """
    command = [sys.executable, __file__, package, "--child", engine, "--samples", str(folder), "--calls", str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{package} failed on {engine}:\n" + "\n".join(done.stderr.splitlines()[-15:]))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def difference(mine: Answer, theirs: Answer) -> tuple[int, dict[str, float]]:
    """Samples whose answers are not equal, and the largest differences of scores and places.

    >>> one = [{"exact": ["a"], "score": [0.5], "place": [1]}]
    >>> difference(one, one), difference(one, [{"exact": ["b"], "score": [0.5], "place": [1]}])[0]
    ((0, {'score': 0.0, 'place': 0.0}), 1)
    >>> difference(one, [{"exact": ["a"], "score": [0.6], "place": [1]}])[0]
    1
    """
    wrong, most = abs(len(mine) - len(theirs)), dict.fromkeys(NEAR, 0.0)
    for a, b in zip(mine, theirs, strict=False):
        same = a["exact"] == b["exact"]
        for key, limit in NEAR.items():
            if len(a[key]) != len(b[key]):
                same = False
                continue
            far = float(np.max(np.abs(np.subtract(a[key], b[key])), initial=0.0))
            most[key] = max(most[key], far)
            same &= far <= limit
        wrong += not same
    return wrong, most


def measure(package: str, folder: Path, rounds: int, calls: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Every engine in turn, so many times."""
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in ENGINES[:: 1 if number % 2 else -1]:
            found[engine].append(run_child(engine, package, folder, calls))
            last = found[engine][-1]
            tell(f"{package} {engine}: first {last['first']:.1f} s, then {1e3 * last['whole']:.1f} ms")
    answers = {engine: ran[0]["answers"] for engine, ran in found.items()}
    wrong, most = difference(answers["tvmopt"], answers["onnxruntime"])
    ms = {e: {k: round(1e3 * median(r[k] for r in ran), 3) for k in ("whole", "sessions")} for e, ran in found.items()}
    return {
        "package": package, "samples": len(answers["tvmopt"]), "different": wrong, "largest": most,
        "told": sum(len(a["exact"]) for a in answers["tvmopt"]), "ms": ms, "rounds": rounds,
        "ratio": {k: round(ms["tvmopt"][k] / ms["onnxruntime"][k], 3) for k in ("whole", "sessions")},
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = [
        "| package | samples | answers | different | score within | call: ratio | in sessions: ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in results:
        ratios = f"{r['ratio']['whole']:.2f} | {r['ratio']['sessions']:.2f}"
        counts = f"{r['samples']} | {r['told']} | {r['different']}"
        lines.append(f"| {r['package']} | {counts} | {r['largest']['score']:.1e} | {ratios} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", choices=[*PACKAGES, []])
    parser.add_argument("--rounds", type=int, default=5, help="processes of each engine")
    parser.add_argument("--results", type=Path, help="a folder for them")
    parser.add_argument("--calls", type=int, default=5, help="timed calls in each")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.packages[0], args.samples, args.calls)
        return 0
    from tvmopt.bench.machine import describe_machine, slug

    folder = args.results or RESULTS / slug() / "packages"
    results = []
    with tempfile.TemporaryDirectory(prefix="tvmopt-packages-") as name:
        write_samples(Path(name))
        for package in args.packages or PACKAGES:
            result = measure(package, Path(name), args.rounds, args.calls, lambda text: print(text, file=sys.stderr))
            folder.mkdir(parents=True, exist_ok=True)
            told = result | {"machine": describe_machine(), "versions": {n: version(n) for n in (package, *ENGINES)}}
            (folder / f"{package}.json").write_text(json.dumps(told, indent=2) + "\n")
            results.append(result)
    print(table(results))
    return 1 if any(r["different"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
