"""ONNX operators of our own that select a detector's boxes, each with its meaning as a function of ONNX's operators.

    SelectBoxes(boxes, scores, most, iou, score)                 see :mod:`tvmopt.operators.select_boxes`
    SelectBoxesOfAnyClass(boxes, scores, most, iou, score)       each box counts for its best class

NonMaxSuppression says which boxes stay, as many as there are; here a fixed number of places is filled by them, the best
first. The functions are of opset 11.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

SELECT, ANY = "SelectBoxes", "SelectBoxesOfAnyClass"
INPUTS = dict.fromkeys((SELECT, ANY), ("boxes", "scores", "most", "iou", "score"))
AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax has its axes as an input."""
OLDEST_OPSET = 11


def body(name: str, opset: int) -> list[onnx.NodeProto]:
    """The nodes of a definition: the scores of what stays are put in their places of a table that is -inf elsewhere,
    of which the largest are taken."""
    node = helper.make_node

    def constant(name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> onnx.NodeProto:
        return node("Constant", [], [name], value=numpy_helper.from_array(value, name))

    nothing = numpy_helper.from_array(np.array([-np.inf], np.float32), "nothing")
    if name == SELECT:
        stay = [node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["stay"])]
    else:
        axes = opset >= AXES_ARE_INPUTS
        stay = [
            constant("classes_axis", np.array([1], np.int64)),
            node("ReduceMax", ["scores", "classes_axis"], ["worth"])
            if axes
            else node("ReduceMax", ["scores"], ["worth"], axes=[1]),
            node("ArgMax", ["scores"], ["class"], axis=1, keepdims=1),
            node("NonMaxSuppression", ["boxes", "worth", "most", "iou", "score"], ["of_one_class"]),
            node("GatherND", ["class", "of_one_class"], ["its_class"]),
            constant("column", np.array([-1, 1], np.int64)),
            node("Reshape", ["its_class", "column"], ["class_column"]),
            constant("outer", np.array([0], np.int64)),
            constant("inner", np.array([2], np.int64)),
            node("Gather", ["of_one_class", "outer"], ["picture"], axis=1),
            node("Gather", ["of_one_class", "inner"], ["box"], axis=1),
            node("Concat", ["picture", "class_column", "box"], ["stay"], axis=1),
        ]
    return [
        *stay,
        constant("boxes_first", np.array([0, 2, 1], np.int64)),
        node("Gather", ["stay", "boxes_first"], ["cells"], axis=1),
        node("Transpose", ["scores"], ["by_boxes"], perm=[0, 2, 1]),
        node("Shape", ["by_boxes"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["table"], value=nothing),
        node("GatherND", ["by_boxes", "cells"], ["their_scores"]),
        node("ScatterND", ["table", "cells", "their_scores"], ["filled"]),
        constant("rows", np.array([0, -1], np.int64)),
        node("Reshape", ["filled", "rows"], ["flat"]),
        constant("first", np.array([0], np.int64)),
        node("Gather", ["shape", "first"], ["pictures"]),
        node("Concat", ["pictures", "most"], ["spare"], axis=0),
        node("ConstantOfShape", ["spare"], ["empty"], value=nothing),
        node("Concat", ["flat", "empty"], ["all"], axis=1),
        node("TopK", ["all", "most"], ["best", "places"], axis=1),
        constant("least", np.array(-np.inf, np.float32)),
        node("Equal", ["best", "least"], ["none"]),
        constant("absent", np.array(-1, np.int64)),
        node("Where", ["none", "absent", "places"], ["y"]),
    ]
