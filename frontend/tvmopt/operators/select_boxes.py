"""Of a detector's boxes those that no better one overlaps, as one Relax operator with a fixed number of places.

    y = tvmopt.select_boxes(boxes, scores, most=, iou=, score=, any_class=)

    boxes   [n, N, 4] float32: two opposite corners (x, y, x, y) or (y, x, y, x)
    scores  [n, C, N] float32
    y       [n, most] int64: box * C + class of what stays, the best score first, then the lower number; -1 where
            nothing is left

A box stays for a class if its score is larger than `score`, and its intersection with each better one that stayed for
that class is at most `iou` of their union: ONNX's NonMaxSuppression, and then the best of all classes. With
`any_class` a box counts for its best class only, and better boxes of other classes overlap it, too. Scores above the
limit are gathered once; then the best one left is taken, and what it overlaps leaves, until `most` are taken: scores
above the limit times boxes taken, and no sorting.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmopt.operators.overlap import VALUES, Candidates, corners, memory, overlaps
from tvmopt.operators.register import Loops

OP = "tvmopt.select_boxes"


def select_boxes(boxes: Any, scores: Any, most: int, iou: float, score: float, any_class: bool = False) -> Any:
    """The call."""
    return SELECT_BOXES.call([boxes, scores], most=most, iou=iou, score=score, any_class=any_class)


def _selection(boxes: Any, scores: Any, y: Any, most: int, iou: float, score: float, any_class: bool) -> Any:
    """The loops of :data:`OP`: `left` are the scores of all classes."""
    n, classes, count = scores.shape
    with IRBuilder() as ib:
        boxes, scores, y = (T.buffer_proxy(b) for b in (boxes, scores, y))

        with T.parallel(0, n) as b:
            left, behind = Candidates(classes * count), memory("int32")
            taken, found = memory("int32"), memory("float32", VALUES)
            left.clear()
            with T.serial(0, count) as i, T.serial(0, classes) as c:
                mine = scores[b, c, i]
                with T.If(mine > T.float32(score)), T.Then():
                    behind[0] = T.int32(0)
                    with T.serial(0, classes if any_class else 0) as o:  # how many classes are no better, and no NaN
                        other = scores[b, o, i]
                        with T.If(tirx.any(other < mine, tirx.all(other == mine, o >= c))), T.Then():
                            behind[0] = behind[0] + 1
                    with T.If(behind[0] == (classes if any_class else 0)), T.Then():
                        left.add(tirx.Cast("int32", i * classes + c), mine)
            with T.serial(0, most) as k:
                y[b, k] = T.int64(-1)
                with T.If(left.many[0] > 0), T.Then():
                    taken[0] = left.numbers[left.best[0]]
                    y[b, k] = tirx.Cast("int64", taken[0])
                    for place, value in enumerate(corners(boxes, b, taken[0] // classes)):
                        found[place] = value
                    own, owner = [found[i] for i in range(VALUES)], taken[0] % classes

                    def over(number: Any) -> Any:
                        same = tirx.const(True) if any_class else number % classes == owner
                        return tirx.all(same, overlaps(corners(boxes, b, number // classes), own, iou))

                    left.drop(taken[0], over)
        return ib.get()


SELECT_BOXES = Loops(
    OP,
    __name__,
    "boxes are selected",
    lambda shapes, told: ((shapes[0][0], told["most"]), "int64"),
    lambda ins, out, told: _selection(ins[0], ins[1], out, **told),
)
