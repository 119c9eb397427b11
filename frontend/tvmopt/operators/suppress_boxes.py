"""ONNX's NonMaxSuppression as one Relax operator, for any number of boxes.

    y = tvmopt.suppress_boxes(boxes, scores, most=, iou=, score=)

    boxes   [n, N, 4] float32: two opposite corners (x, y, x, y) or (y, x, y, x)
    scores  [n, C, N] float32
    y       [1 + n * C * min(N, most), 3] int64: in the first row how many follow; then picture, class and box of what
            stays, class by class, the best score first, then the lower number; the rest is not written

A box stays for a class if its score is larger than `score`, and its intersection with each better one that stayed for
that class is at most `iou` of their union. Scores above the limit are gathered once; then the best one left is taken,
and what it overlaps leaves, until `most` are taken: scores above the limit times boxes taken, and no sorting.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmopt.operators.overlap import VALUES, Candidates, corners, memory, overlaps
from tvmopt.operators.register import Loops

OP = "tvmopt.suppress_boxes"

MOST = (1 << 31) - 1
"""No class has more boxes."""


def suppress_boxes(boxes: Any, scores: Any, most: int, iou: float, score: float) -> Any:
    """The call."""
    return SUPPRESS_BOXES.call([boxes, scores], most=most, iou=iou, score=score)


def _least(count: Any, most: int) -> Any:
    """The boxes of a class that may stay; no minimum where it says nothing, for the bounds of what is allocated."""
    return count if most >= MOST else tirx.min(count, most)


def _rows(shapes: Any, most: int) -> Any:
    pictures, classes, count = shapes[1]
    return 1 + pictures * classes * _least(count, most)


def _suppression(boxes: Any, scores: Any, y: Any, most: int, iou: float, score: float) -> Any:
    """The loops of :data:`OP`: `left` are the boxes of a class."""
    pictures, classes, count = scores.shape
    with IRBuilder() as ib:
        boxes, scores, y = (T.buffer_proxy(b) for b in (boxes, scores, y))

        with T.serial(0, 1):  # TVM takes one statement
            left, taken, row, found = Candidates(count), memory("int32"), memory("int64"), memory("float32", VALUES)
            row[0] = T.int64(0)
            with T.serial(0, pictures) as b, T.serial(0, classes) as c:
                left.clear()
                with T.serial(0, count) as i, T.If(scores[b, c, i] > T.float32(score)), T.Then():
                    left.add(tirx.Cast("int32", i), scores[b, c, i])
                with T.serial(0, _least(count, most)), T.If(left.many[0] > 0), T.Then():
                    taken[0] = left.numbers[left.best[0]]
                    row[0] = row[0] + T.int64(1)
                    for column, value in enumerate((b, c, taken[0])):
                        y[row[0], column] = tirx.Cast("int64", value)
                    for place, value in enumerate(corners(boxes, b, taken[0])):
                        found[place] = value
                    own = [found[i] for i in range(VALUES)]
                    left.drop(taken[0], lambda number: overlaps(corners(boxes, b, number), own, iou))
            y[0, 0] = row[0]
        return ib.get()


SUPPRESS_BOXES = Loops(
    OP,
    __name__,
    "boxes are selected",
    lambda shapes, told: ((_rows(shapes, told["most"]), 3), "int64"),
    lambda ins, out, told: _suppression(ins[0], ins[1], out, **told),
)
