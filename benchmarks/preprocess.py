"""Pictures resized, cropped and scaled: an artifact's stage beside Pillow and NumPy, in turn, on one thread.

    python benchmarks/preprocess.py

Every round runs both on the same picture, after the results were compared; processor time counts, as other work may run
on the machine. Printed are the medians, the ratio with its 10th and 90th percentile, and the floor: every byte of the
picture and of the result moved once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto, helper
from PIL import Image

import tvmopt
from tvmopt.targets import Machine

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
SIZE, CROP = 256, 224


def nothing() -> bytes:
    """A model that hands its input on, so that only the stage is measured."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, CROP, CROP, 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def by_pillow(x: np.ndarray, name: str) -> np.ndarray:
    """The same with Pillow and NumPy, from the array to the array."""
    image = Image.fromarray(x)
    width, height = image.size
    size = (SIZE * width // height, SIZE) if height <= width else (SIZE, SIZE * height // width)
    image = image.resize(size, getattr(Image.Resampling, name.upper()))
    left, top = round((size[0] - CROP) / 2), round((size[1] - CROP) / 2)
    pixels = np.asarray(image.crop((left, top, left + CROP, top + CROP))).astype(np.float32)
    result: np.ndarray = ((pixels / np.float32(255) - MEAN) / STD)[None]
    return result


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def floor(given: tuple[int, int], machine: Machine) -> float:
    """Seconds: the picture read and the result written once, as fast as a core copies what is in its caches."""
    return (given[0] * given[1] * 3 + CROP * CROP * 3 * 4) / machine.core_bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    stage = f"image:resize={SIZE},crop={CROP},mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
    machine = Machine.load("cpu")
    times = f"{'ours ms':>8} {'floor':>6} {'Pillow ms':>9} {'ratio':>6} {'p10':>5} {'p90':>5}"
    print(f"{'pictures':>10} {'filter':>9} {times} {'error':>8}")
    for given in ((480, 640), (1080, 1920)):
        x = np.random.default_rng(0).integers(0, 256, (*given, 3), dtype=np.uint8)
        for name in ("bilinear", "bicubic", "lanczos"):
            text = f"{stage},filter={name},from={given[0]}x{given[1]}"
            model = tvmopt.compile(nothing(), preprocess=text, threads=1, verify=False).model
            error = float(np.abs(model(x[None]) - by_pillow(x, name)).max())
            ours_now, theirs_now = partial(model, x[None]), partial(by_pillow, x, name)
            both = [(seconds(ours_now), seconds(theirs_now)) for _ in range(rounds)]
            ours, theirs = np.median(both, 0) * 1e3
            ratios = np.array([b / a for a, b in both])
            low, middle, high = np.percentile(ratios, (10, 50, 90))
            least = floor(given, machine) * 1e3
            size = f"{given[0]}x{given[1]}"
            times = f"{ours:8.3f} {least:6.3f} {theirs:9.3f} {middle:6.1f} {low:5.1f} {high:5.1f}"
            print(f"{size:>10} {name:>9} {times} {error:8.1e}")


if __name__ == "__main__":
    main()
