"""A trained detector with its boxes selected in the artifact, beside the same selection by its package in Python.

Two artifacts: one takes what the package's own code makes of a picture; the other takes the picture itself, of any
size, and gives boxes in its pixels.

    pip install --target FOLDER --no-deps nudenet==3.4.2 opencv-python-headless
    python benchmarks/real_models.py; PYTHONPATH=FOLDER python benchmarks/detector.py PICTURE...

Boxes of the first are compared number by number. Pixels of the second are one step off here and there, as OpenCV rounds
once where Pillow's two passes round twice; its boxes are the same if the class is, the score within 0.05, and all but a
twentieth of the area.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tvmopt

MODEL = Path(__file__).parent / "trained" / "nudenet-3.4.2" / "320n.onnx"
SIDE = 320
STAGE = "boxes:head=yolov8,agnostic,score=0.25,iou=0.45,most=100"
PICTURE = "image:letterbox=320,place=first,fill=0,filter=linear,pixels=bgr,model=bgr,from=any"
"""As the package reads what cv2 gives: zeros on the right and below make a square."""
LARGEST = 2048
Box = tuple[int, float, tuple[int, ...]]


def ours(found: dict[str, Any], width: int, height: int, x_pad: int, y_pad: int) -> list[Box]:
    """What the artifact gives, in the picture's pixels and clipped to it, as the package writes boxes."""
    boxes = []
    across, down = (width + x_pad) / SIDE, (height + y_pad) / SIDE
    for k in range(int(found["output0_count"][0])):
        x0, y0, x1, y1 = map(float, found["output0_boxes"][0, k])
        x, y = max(0.0, min(x0 * across, width)), max(0.0, min(y0 * down, height))
        sides = min((x1 - x0) * across, width - x), min((y1 - y0) * down, height - y)
        score = float(found["output0_scores"][0, k])
        boxes.append((int(found["output0_classes"][0, k]), score, tuple(map(int, (x, y, *sides)))))
    return sorted(boxes)


def corners(found: dict[str, Any]) -> list[tuple[int, float, list[float]]]:
    """What the artifact of whole pictures gives."""
    count = int(found["output0_count"][0])
    parts = [found[f"output0_{what}"][0, :count].tolist() for what in ("classes", "scores", "boxes")]
    return list(zip(*parts, strict=True))


def alike(mine: tuple[int, float, list[float]], theirs: Box) -> bool:
    """Whether two boxes are the same; the package's have a corner and a size, cut to whole pixels."""
    x, y, w, h = theirs[2]
    x0, y0, x1, y1 = mine[2]
    both = max(0.0, min(x1, x + w) - max(x0, x)) * max(0.0, min(y1, y + h) - max(y0, y))
    share = both / ((x1 - x0) * (y1 - y0) + w * h - both)
    return mine[0] == theirs[0] and abs(mine[1] - theirs[1]) < 0.05 and share > 0.95


def main() -> None:
    """Compare picture by picture, and say how many boxes are the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="+")
    asked = parser.parse_args()
    import cv2
    from nudenet import nudenet

    numbers = {name: number for number, name in enumerate(vars(nudenet)["__labels"])}
    compiled = tvmopt.compile(str(MODEL), shape={"images": (1, 3, SIDE, SIDE)}, postprocess=STAGE)
    shape = {"images": (1, f"1..{LARGEST}", f"1..{LARGEST}", 3)}
    whole = tvmopt.compile(str(MODEL), shape=shape, preprocess=PICTURE, postprocess=STAGE)
    detector, total, same, found = nudenet.NudeDetector(), 0, 0, 0
    for path in asked.pictures:
        picture = cv2.imread(path)
        if picture is None:
            print(f"{path}: no picture")
            continue
        blob, _, _, x_pad, y_pad, width, height = nudenet._read_image(picture, SIDE)
        mine = ours(compiled.model.run({"images": blob}), width, height, x_pad, y_pad)
        theirs = sorted((numbers[d["class"]], d["score"], tuple(d["box"])) for d in detector.detect(picture))
        equal = sum(any((a[0], a[2]) == (b[0], b[2]) and abs(a[1] - b[1]) < 1e-4 for a in mine) for b in theirs)
        total, same = total + max(len(mine), len(theirs)), same + equal
        direct = corners(whole.model.run({"images": picture[None]}))
        found += sum(any(alike(a, b) for a in direct) for b in theirs) - max(0, len(direct) - len(theirs))
        print(f"{Path(path).name}: {len(theirs)} boxes, {equal} the same" + ("" if equal == len(mine) else f": {mine}"))
    print(f"{same} of {total} boxes are the same, and {found} where whole pictures come")


if __name__ == "__main__":
    main()
