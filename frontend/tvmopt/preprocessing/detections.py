"""A model with the selection of its boxes as nodes of its own graph.

the model -> corners, scores -> SelectBoxes -> y_boxes [n, most, 4], y_scores, y_classes [n, most], y_count [n]

The best box of a picture comes first; behind the last one are boxes of zeros, scores of 0 and classes of -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.errors import InputError
from tvmopt.importer.boxes import ANY, OLDEST_OPSET, SELECT
from tvmopt.importer.own import DOMAIN, define
from tvmopt.importer.protos import describe_type, opset_versions, to_tensor
from tvmopt.preprocessing.boxes import Boxes
from tvmopt.preprocessing.stages import geometry_of

NODES = "postprocess"
OLDEST_IR = 8
"""Functions in a model belong to this version of ONNX's files."""
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


class Detections:
    """Writes one stage behind a model.

    Args:
        value: the output with the boxes.
    """

    def __init__(self, model: onnx.ModelProto, value: onnx.ValueInfoProto, asked: Boxes, where: str) -> None:
        self.model, self.graph, self.value, self.asked, self.where = model, model.graph, value, asked, where
        self.opset = opset_versions(model).get("", 1)
        graph = model.graph
        self.taken = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
        self.taken |= {name for node in graph.node for name in (*node.input, *node.output)}

    def refused(self, what: str, fix: str) -> InputError:
        return InputError(what, where=self.where, fix=fix)

    def write(self) -> tuple[str, int]:
        """Write the nodes; the outputs take the place of those that they are made of.

        Returns:
            The name of the output of classes, and how many classes there are (0: not known).
        """
        if self.opset < OLDEST_OPSET:
            raise self.refused(f"the model is of opset {self.opset}.", f"export it with opset {OLDEST_OPSET} or later")
        self.model.ir_version = max(self.model.ir_version, OLDEST_IR)
        used = [self.value]
        if self.asked.head == "pair":
            used.append(self._scores_output())
            boxes, scores, classes = self._pair(*used)
        else:
            boxes, scores, classes = self._head(self.value)
        self.geometry = self._geometry()
        corners = self._corners(boxes)
        numbers = self._results(corners, scores, used)
        return numbers, classes

    # -- what the model gives ----------------------------------------------------------------------------------

    def _sizes(self, value: onnx.ValueInfoProto, rank: int = 3) -> list[int]:
        """The sizes of an output, 0 where one is open."""
        kind = value.type.tensor_type
        if kind.elem_type not in FLOATS or len(kind.shape.dim) != rank:
            what = f"the output '{value.name}' is {describe_type(value.type)}."
            raise self.refused(what, f"name an output of floats of three dimensions; head={self.asked.head} reads such")
        return [int(d.dim_value) for d in kind.shape.dim]

    def _head(self, value: onnx.ValueInfoProto) -> tuple[str, str, int]:
        """Boxes [n, N, 4] and scores [n, classes, N] of one tensor."""
        v8 = self.asked.head == "yolov8"
        axis, first = (1, 4) if v8 else (2, 5)
        features = self._sizes(value)[axis]
        if features and features <= first:
            what = f"axis {axis} of '{value.name}' {describe_type(value.type)} has {features} numbers of each box."
            told = "4 and one a class" if v8 else "4, the score of an object, and one a class"
            other = "head=yolov5 reads [n, N, 5 + classes]" if v8 else "head=yolov8 reads [n, 4 + classes, N]"
            raise self.refused(what, f"{told} are wanted; {other}")
        whole = self._float(value.name)
        boxes = self._slice(whole, axis, 0, 4, "boxes")
        scores = self._slice(whole, axis, first, np.iinfo(np.int64).max, "scores")
        if v8:
            return self._add("Transpose", "boxes_last", [boxes], perm=[0, 2, 1]), scores, max(0, features - first)
        scores = self._add("Mul", "of_objects", [scores, self._slice(whole, axis, 4, 5, "objects")])
        return boxes, self._add("Transpose", "classes_first", [scores], perm=[0, 2, 1]), max(0, features - first)

    def _scores_output(self) -> onnx.ValueInfoProto:
        others = [v for v in self.graph.output if v.name != self.value.name]
        found = [v for v in others if v.name == self.asked.scores] if self.asked.scores else others
        if len(found) != 1:
            told = ", ".join(f"'{v.name}' {describe_type(v.type)}" for v in others) or "none"
            what = f"which output has the scores of '{self.value.name}' is not known."
            raise self.refused(what, f"name it: scores=NAME; the other outputs are {told}")
        return found[0]

    def _pair(self, value: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> tuple[str, str, int]:
        """Boxes [n, N, 4] and scores [n, classes, N] of two tensors; boxes may be [n, N, 1, 4]."""
        rank = len(value.type.tensor_type.shape.dim)
        sizes, boxes = self._sizes(value, 4 if rank == 4 else 3), self._float(value.name)
        if sizes[-1] != 4 or (rank == 4 and sizes[2] != 1):
            raise self.refused(f"'{value.name}' {describe_type(value.type)} has no boxes of four numbers.", "[n, N, 4]")
        if rank == 4:
            boxes = self._add("Reshape", "boxes_of_all", [boxes, self._numbers("shape", [0, -1, 4])])
        count, given, scores = sizes[1], self._sizes(other), self._float(other.name)
        first = bool(count) and given[2] == count and given[1] != count
        if count and count not in given[1:] and all(given[1:]):
            what = f"'{other.name}' {describe_type(other.type)} has no scores of {count} boxes."
            raise self.refused(what, f"[n, {count}, classes] or [n, classes, {count}]")
        classes, axis = given[1 if first else 2], 1 if first else 2
        if self.asked.softmax:
            if first:
                scores, axis, first = self._add("Transpose", "classes_last", [scores], perm=[0, 2, 1]), 2, False
            scores = self._add("Softmax", "softmax", [scores], axis=2)
        if self.asked.background:
            begin, end = (1, np.iinfo(np.int64).max) if self.asked.background == "first" else (0, -1)
            scores, classes = self._slice(scores, axis, begin, end, "without_background"), max(0, classes - 1)
        return boxes, scores if first else self._add("Transpose", "classes_first", [scores], perm=[0, 2, 1]), classes

    def _geometry(self) -> str:
        """The tensor that says where the picture lies; "": corners are left as they are."""
        units = self.asked.units
        if units == "model" or (self.asked.head == "pair" and not units):
            return ""
        found = geometry_of(self.model)
        if units and not found:
            fix = "--preprocess with resize, crop or letterbox, for one input, or leave in=picture out"
            raise self.refused("no stage in front of the model says where its picture lies.", fix)
        return found

    def _in_the_picture(self, corners: str) -> str:
        """Corners as pixels of the picture that came, inside of it."""
        sides = self._add("Cast", "geometry", [self.geometry], to=TensorProto.FLOAT)
        sides = self._add("Gather", "geometry_of_corners", [sides, self._numbers("sides", [1, 0, 1, 0])], axis=1)
        size, padded, resized, begin = (
            self._add("Gather", f"geometry_{what}", [sides, self._constant(what, np.array(at, np.int64))], axis=0)
            for at, what in enumerate(("size", "padded", "resized", "begin"))
        )
        scale = self._add("Div", "scale", [padded, resized])
        moved = self._add("Mul", "scaled_corners", [self._add("Add", "moved_corners", [corners, begin]), scale])
        low = self._add("Max", "not_before", [moved, self._constant("edge", np.array(0, np.float32))])
        return self._add("Min", "not_behind", [low, size])

    # -- what is written ---------------------------------------------------------------------------------------

    def _corners(self, boxes: str) -> str:
        """Boxes [n, N, 4] as (x, y, x, y)."""
        if self.asked.corners == "yxyx":
            return self._add("Gather", "corners", [boxes, self._numbers("order", [1, 0, 3, 2])], axis=2)
        if self.asked.corners == "xyxy":
            return boxes
        centre, size = self._slice(boxes, 2, 0, 2, "centre"), self._slice(boxes, 2, 2, 4, "size")
        half = self._add("Mul", "half_of_it", [size, self._constant("half", np.array(0.5, np.float32))])
        ends = [self._add(op, name, [centre, half]) for op, name in (("Sub", "low"), ("Add", "high"))]
        return self._add("Concat", "corners", ends, axis=2)

    def _results(self, corners: str, scores: str, used: Sequence[onnx.ValueInfoProto]) -> str:
        """Select, and gather what was selected; returns the name of the output of classes."""
        asked, name = self.asked, self.value.name
        counted = self._counted(scores)
        limits = [
            self._numbers("most", [asked.most]), self._constant("iou", np.array([asked.iou], np.float32)),
            self._constant("score", np.array([asked.score], np.float32)),
        ]  # fmt: skip
        select = ANY if asked.agnostic else SELECT
        found = self._add(select, "select", [corners, counted, *limits], domain=DOMAIN)
        define(self.model, select)
        zero = self._numbers("zero", [0])
        absent = self._add("Less", "absent", [found, zero])
        place = self._add("Where", "place", [absent, zero, found])
        shape = self._add("Shape", "shape", [counted])
        classes = self._add("Gather", "number", [shape, self._numbers("second", [1])], axis=0)
        box = self._add("Div", "box", [place, classes])
        fours = self._add("Unsqueeze", "fours", [box], unsqueezed=2)
        fours = self._add("Expand", "four_of_each", [fours, self._numbers("four", [1, 1, 4])])
        gathered = self._add("GatherElements", "their_boxes", [corners, fours], axis=1)
        if self.geometry:
            gathered = self._in_the_picture(gathered)
        by_boxes = self._add("Transpose", "scores_by_boxes", [counted], perm=[0, 2, 1])
        flat = self._add("Reshape", "all_scores", [by_boxes, self._numbers("flat", [0, -1])])
        worth = self._add("GatherElements", "their_scores", [flat, place], axis=1)
        kind = self._add("Mod", "class", [place, classes])
        if asked.background == "first":
            kind = self._add("Add", "class_behind_background", [kind, self._numbers("one", [1])])
        nothing = self._constant("nothing", np.array(0, np.float32))
        apart = self._add("Unsqueeze", "absent_boxes", [absent], unsqueezed=2)
        there = self._add("Cast", "there", [self._add("Not", "present", [absent])], to=TensorProto.INT64)
        names = [self._fresh(f"{name}_{what}") for what in ("boxes", "scores", "classes", "count")]
        self._add("Where", "boxes_there", [apart, nothing, gathered], result=names[0])
        self._add("Where", "scores_there", [absent, nothing, worth], result=names[1])
        self._add("Where", "classes_there", [absent, self._numbers("none", [-1]), kind], result=names[2])
        self._sum(there, names[3])
        self._outputs(names, used)
        return names[2]

    def _counted(self, scores: str) -> str:
        """The scores that count: -inf in the place of the others."""
        if self.asked.multi or self.asked.agnostic:
            return scores
        best = self._add("ArgMax", "best_class", [scores], axis=1, keepdims=1)
        every = self._add("Shape", "shape_of_scores", [scores])
        classes = self._add("Gather", "number_of_classes", [every, self._constant("one_axis", np.array(1, np.int64))])
        begin, step = (self._constant(n, np.array(v, np.int64)) for n, v in (("begin", 0), ("step", 1)))
        row = self._add("Range", "rows", [begin, classes, step])
        row = self._add("Unsqueeze", "row_of_each_class", [row], unsqueezed=1)
        mine = self._add("Equal", "is_best", [best, row])
        none = self._constant("no_score", np.array(-np.inf, np.float32))
        return self._add("Where", "best_only", [mine, scores, none])

    def _sum(self, x: str, result: str) -> None:
        axes = [self._numbers("places", [1])] if self.opset >= 13 else []
        options: dict[str, Any] = {} if axes else {"axes": [1]}
        self._add("ReduceSum", "count", [x, *axes], result=result, keepdims=0, **options)

    def _outputs(self, names: Sequence[str], used: Sequence[onnx.ValueInfoProto]) -> None:
        """The new outputs in the place of the boxes; those that they are made of are none any more."""
        batch = onnx.TensorShapeProto.Dimension()
        batch.CopyFrom(self.value.type.tensor_type.shape.dim[0])
        most = self.asked.most
        kinds = [(TensorProto.FLOAT, [most, 4]), (TensorProto.FLOAT, [most]), (TensorProto.INT64, [most]),
                 (TensorProto.INT64, [])]  # fmt: skip
        made = []
        for name, (kind, sizes) in zip(names, kinds, strict=True):
            value = helper.make_tensor_value_info(name, kind, [None, *sizes])
            value.type.tensor_type.shape.dim[0].CopyFrom(batch)
            made.append(value)
        gone = {v.name for v in used}
        outputs: list[onnx.ValueInfoProto] = []
        for value in self.graph.output:
            outputs += made if value.name == self.value.name else [] if value.name in gone else [value]
        kept = [v for v in self.graph.output if v.name in gone]
        del self.graph.output[:]
        self.graph.output.extend(outputs)
        self.graph.value_info.extend(kept)

    # -- words of the graph ------------------------------------------------------------------------------------

    def _float(self, name: str) -> str:
        kinds = {v.name: v.type.tensor_type.elem_type for v in self.graph.output}
        return name if kinds[name] == TensorProto.FLOAT else self._add("Cast", f"{name}/wide", [name], to=1)

    def _slice(self, x: str, axis: int, begin: int, end: int, name: str) -> str:
        numbers = [self._numbers(f"{name}/{what}", [v]) for what, v in (("begin", begin), ("end", end), ("axis", axis))]
        return self._add("Slice", name, [x, *numbers])

    def _numbers(self, name: str, values: Sequence[int]) -> str:
        return self._constant(name, np.array(values, np.int64))

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        name = self._fresh(f"{NODES}/{self.value.name}/{name}")
        self.graph.initializer.append(to_tensor(array, name))
        return name

    def _add(
        self, op: str, name: str, inputs: Sequence[str], domain: str = "", result: str = "",
        unsqueezed: int | None = None, **attributes: Any,
    ) -> str:  # fmt: skip
        """A node; the name of its result. `unsqueezed`: the axis of Unsqueeze, an input from opset 13 on."""
        called = f"{NODES}/{self.value.name}/{name}"
        inputs = list(inputs)
        if unsqueezed is not None and self.opset >= 13:
            inputs.append(self._numbers(f"{name}/axis", [unsqueezed]))
        elif unsqueezed is not None:
            attributes["axes"] = [unsqueezed]
        result = result or self._fresh(f"{called}/y")
        self.graph.node.append(helper.make_node(op, inputs, [result], name=called, domain=domain, **attributes))
        return result

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name
