"""A model with what stands before it as nodes of its own graph: its input becomes a picture of bytes.

    x uint8 [n, height, width, c] -> ResampleColumns -> ResampleRows -> Cast -> Mul -> Add -> Transpose -> the model
    x uint8 [n, ?, ?, c] -> ScalePicture                             -> Cast ...     pictures of any size, letterboxes

As nodes they are optimised, verified, explained and profiled like the rest. What resamples nothing is left out, and of
a picture only the part that the crop needs is computed. (x * scale - mean) / std is one factor and one term a channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.dims import Shapes
from tvmopt.errors import InputError
from tvmopt.importer import pixels
from tvmopt.importer.inline import rename_free
from tvmopt.importer.own import DOMAIN, define
from tvmopt.importer.pictures import OLDEST_OPSET, SCALE
from tvmopt.importer.protos import copy_model, describe_type, dtype_name, opset_versions, to_tensor
from tvmopt.importer.resampling import Taps, taps
from tvmopt.preprocessing.geometry import Geometry
from tvmopt.preprocessing.picture import ANY, LARGEST, PREFIX, Picture, Size, parse

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
OLDEST_IR = 8
"""Functions in a model belong to this version of ONNX's files."""
NODES = "preprocess"
"""What the names of the nodes begin with."""
GEOMETRY = "/geometry/y"
"""What the name of the tensor ends with that says where a picture lies."""


def staged(
    model: onnx.ModelProto, stages: Mapping[str, str], shapes: Shapes | None = None, places: bool = False
) -> onnx.ModelProto:
    """A copy of a model that takes pictures.

    Args:
        stages: text of a stage (:mod:`tvmopt.preprocessing.picture`) by the name of an input; "" is the only input that
            could be a picture.
        shapes: of inputs, as they are with the stages.
        places: keep what :func:`geometry_of` finds, for boxes in the pixels of the pictures.

    Raises:
        InputError: a stage does not fit the model, or the size of its pictures is not known.
    """
    copy = copy_model(model)
    copy.ir_version = max(copy.ir_version, OLDEST_IR)
    weights = {t.name for t in copy.graph.initializer}
    for name, text in stages.items():
        value = _input([v for v in copy.graph.input if v.name not in weights], name, text)
        _Stage(copy, value, text, (shapes or {}).get(value.name)).write(places)
    return copy


def geometry_of(model: onnx.ModelProto) -> str:
    """The tensor that says where the only picture of a staged model lies (:mod:`tvmopt.preprocessing.geometry`).

    "" where there is none, or several.
    """
    names = [t.name for t in model.graph.initializer] + [name for node in model.graph.node for name in node.output]
    found = [name for name in names if name.startswith(f"{NODES}/") and name.rstrip("_").endswith(GEOMETRY)]
    return found[0] if len(found) == 1 else ""


def _input(inputs: Sequence[onnx.ValueInfoProto], name: str, text: str) -> onnx.ValueInfoProto:
    """The input of that name, or the only one of four dimensions."""
    where = f"--preprocess {name + '=' if name else ''}{text}"
    told = ", ".join(f"'{v.name}' {describe_type(v.type)}" for v in inputs)
    if name:
        found = [v for v in inputs if v.name == name]
        if not found:
            raise InputError(f"the model has no input '{name}'.", where=where, fix=f"its inputs are {told}")
    else:
        found = [v for v in inputs if len(v.type.tensor_type.shape.dim) == 4]
        if len(found) != 1:
            many = "several inputs that could be" if found else "no input of four dimensions, which would be"
            fix = f"name the input: --preprocess NAME={PREFIX}...; there are {told}"
            raise InputError(f"the model has {many} pictures.", where=where, fix=fix)
    return found[0]


@dataclass(frozen=True)
class _Taken:
    """What the model takes: the axis of the channels, their number, height and width (0: open), the element type."""

    axis: int
    channels: int
    size: Size
    elem: int


class _Stage:
    """Writes one stage into a model."""

    def __init__(self, model: onnx.ModelProto, value: onnx.ValueInfoProto, text: str, shape: Any) -> None:
        self.model, self.value, self.shape = model, value, shape
        self.where = f"--preprocess {value.name}={text}"
        self.picture: Picture = parse(text)
        self.nodes: list[onnx.NodeProto] = []
        graph = model.graph
        self.names = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
        self.names |= {name for node in graph.node for name in (*node.input, *node.output)}
        self.node_names = {node.name for node in graph.node}

    def refused(self, what: str, fix: str) -> InputError:
        return InputError(what, where=self.where, fix=fix)

    # -- what there is -----------------------------------------------------------------------------------------

    def taken(self) -> _Taken:
        """What the model takes at this input."""
        kind = self.value.type.tensor_type
        told = f"'{self.value.name}' is {describe_type(self.value.type)}"
        if len(kind.shape.dim) != 4:
            raise self.refused(f"the input {told}: pictures have four dimensions.", "export the model with a batch")
        if kind.elem_type not in FLOATS | {TensorProto.UINT8}:
            raise self.refused(f"the input {told}.", "pixels go into float or uint8 inputs only")
        dims = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
        wanted = (1, 3)
        axis = 1 if dims[1] in wanted else 3 if dims[3] in wanted else 1 if not dims[1] else 0
        if not axis:
            raise self.refused(f"the input {told}: it has neither one nor three channels.", "name another input")
        height, width = dims[2:] if axis == 1 else dims[1:3]
        return _Taken(axis, dims[axis] or (1 if self.picture.pixels == "grey" else 3), (height, width), kind.elem_type)

    def given(self, taken: _Taken) -> Size | None:
        """The size of the pictures that come; None: it is open."""
        given, fixed = self.picture.given, []
        first = 1 if self.picture.layout == "NHWC" else 2
        if self.shape is not None and not isinstance(self.shape, str) and len(self.shape) == 4:
            fixed = [int(d) if str(d).strip().isdigit() else 0 for d in self.shape[first : first + 2]]
        if given == ANY or (given is None and fixed and not all(fixed)):
            return None
        if given is None and fixed:
            given = fixed[0], fixed[1]
        if given is None and not self.resizes and all(taken.size):
            given = taken.size
        if given is None:
            shape = "1x480x640x3" if first == 1 else "1x3x480x640"
            fix = f"say it: from=any, from=480x640 (HEIGHTxWIDTH), or --shape {self.value.name}:{shape}"
            raise self.refused("the size of the pictures is not known.", fix)
        return given

    @property
    def resizes(self) -> bool:
        """Whether the model reads pictures of another size."""
        return any(one is not None for one in (self.picture.resize, self.picture.crop, self.picture.letterbox))

    def check_open(self, taken: _Taken) -> None:
        """What the stage makes of a picture of any size is what the model takes."""
        picture = self.picture
        size, least = picture.size, picture.resize if isinstance(picture.resize, int) else 0
        opset = opset_versions(self.model).get("", 1)
        if opset < OLDEST_OPSET:
            fix = f"export it with opset {OLDEST_OPSET} or later, or give pictures of one size: from=480x640"
            raise self.refused(f"the model is of opset {opset}, and pictures of any size are scaled from 11 on.", fix)
        if picture.resize is not None and size is None:
            what = f"resize={picture.resize} gives each picture another size."
            raise self.refused(what, f"crop={picture.resize} or letterbox={picture.resize} makes them equal")
        if picture.crop and not picture.pad and (picture.resize is None or (least and least < max(picture.crop))):
            what = f"a picture may be smaller than the crop of {_told(picture.crop)}."
            fix = f"resize to at least {max(picture.crop)} in front of it, or pad=zero puts zeros around it"
            raise self.refused(what, fix)
        if size is None and any(taken.size):
            what = f"pictures of any size come, and the model takes {_told(taken.size)}."
            fix = f"letterbox={_told(taken.size)} keeps their ratio, resize={_told(taken.size)} does not"
            raise self.refused(what, fix)
        sides = picture.resize if isinstance(picture.resize, tuple) else size
        self.check(taken, sides if sides and not least else (LARGEST, LARGEST), size or taken.size)

    def check(self, taken: _Taken, resized: Size, result: Size) -> None:
        """What the stage makes is what the model takes."""
        picture = self.picture
        if picture.crop and not picture.pad and any(c > s for c, s in zip(picture.crop, resized, strict=True)):
            what = f"the crop of {_told(picture.crop)} is larger than the picture of {_told(resized)} in front of it."
            raise self.refused(what, f"resize to at least {max(picture.crop)}, or pad=zero puts zeros around it")
        if any(t not in (0, r) for t, r in zip(taken.size, result, strict=True)):
            what = f"the stage makes pictures of {_told(result)}, and the model takes {_told(taken.size)}."
            fix = f"crop={_told(taken.size)}, resize={_told(taken.size)}, or a model of other sizes"
            raise self.refused(what, fix)
        if taken.channels == 1 and picture.pixels != "grey":
            fix = "pixels=grey: give grey pictures, or a model of three channels"
            raise self.refused("the model takes grey pictures, and colours come.", fix)
        for key, values in (("mean", picture.mean), ("std", picture.std)):
            if len(values) not in (0, 1, taken.channels):
                what = f"{key} has {len(values)} numbers, and the model {taken.channels} channel."
                raise self.refused(what, f"one number: {key}=0.5")
        if taken.elem == TensorProto.UINT8 and picture.named & {"scale", "mean", "std"}:
            what = "the model takes bytes, which are not scaled."
            raise self.refused(what, "leave scale, mean and std out")

    # -- what is written ---------------------------------------------------------------------------------------

    def write(self, places: bool = False) -> None:
        """The nodes in front of the others, and the new input in the place of the old one."""
        name, graph, picture = self.value.name, self.model.graph, self.picture
        if any(output.name == name for output in graph.output):
            raise self.refused(f"'{name}' is an output, too.", "export the model without that output")
        taken = self.taken()
        given = self.given(taken)
        sides: Sequence[int | str] = given or self.open_sides(taken)
        x = name
        if picture.layout == "NCHW":
            x = self.add("Transpose", "channels_last", [x], perm=[0, 2, 3, 1])
        if given is None or picture.letterbox:
            self.check_open(taken)
            x = self.scaled(x, taken)
        else:
            resized = picture.resized(given)
            result = picture.crop or resized
            self.check(taken, resized, result)
            if places and self.resizes:
                self.keep_place(given, resized, result)
            x = self.resampled(x, taken, given, resized, result)
        x = self.normalized(x, taken)
        rest = list(graph.node)
        batch = onnx.TensorShapeProto.Dimension()
        batch.CopyFrom(self.value.type.tensor_type.shape.dim[0])
        del graph.node[:]
        channels = 1 if picture.pixels == "grey" else 3
        shape = self.value.type.tensor_type.shape
        del shape.dim[:]
        shape.dim.append(batch)
        for side in [*sides, channels] if picture.layout == "NHWC" else [channels, *sides]:
            shape.dim.add(**{"dim_param" if isinstance(side, str) else "dim_value": side})
        self.value.type.tensor_type.elem_type = TensorProto.UINT8
        behind = onnx.GraphProto(node=rest)
        rename_free(behind, {name: x})
        graph.node.extend([*self.nodes, *behind.node])
        for kept in [v for v in graph.value_info if v.name == name]:
            graph.value_info.remove(kept)

    def open_sides(self, taken: _Taken) -> list[str]:
        """The names of height and width: the model's own where its picture has this size."""
        shape = self.value.type.tensor_type.shape.dim
        if not self.resizes:
            first = 2 if taken.axis == 1 else 1
            return [
                shape[at].dim_param or self.fresh(side, self.names)
                for at, side in ((first, "height"), (first + 1, "width"))
            ]
        used = {
            d.dim_param
            for v in (*self.model.graph.input, *self.model.graph.output, *self.model.graph.value_info)
            for d in v.type.tensor_type.shape.dim
        }
        return [
            f"{self.value.name}_{side}" + "_" * (f"{self.value.name}_{side}" in used) for side in ("height", "width")
        ]

    def scaled(self, x: str, taken: _Taken) -> str:
        """Pictures of any size, and the channels in the model's order."""
        picture, size = self.picture, self.picture.size
        if size is not None:
            geometry = Geometry(picture, self.add, self.constant, x).write(size)
            sides = [*size, picture.resize] if isinstance(picture.resize, int) else size
            told = self.constant("scaled/size", np.array([*size, min(sides)], np.int64))
            fill = self.constant("scaled/fill", np.array([picture.fill if picture.letterbox else 0], np.int64))
            x = self.add(SCALE[picture.filter], "scaled", [x, geometry, told, fill], domain=DOMAIN)
        many = 1 if picture.pixels == "grey" else 3
        channels = self.channels(taken)
        if channels == list(range(many)):
            return x
        return self.add(
            "Gather", "channels", [x, self.constant("channels/order", np.array(channels, np.int64))], axis=3
        )

    def keep_place(self, given: Size, resized: Size, result: Size) -> None:
        """The geometry of pictures of one size."""
        begin = [self.picture.begin(s, r) if self.picture.crop else 0 for s, r in zip(resized, result, strict=True)]
        rows = np.array([given, given, resized, begin], np.int64)
        self.add("Identity", "geometry", [self.constant("geometry", rows)])

    def channels(self, taken: _Taken) -> list[int]:
        """Which of the channels that come are the model's."""
        grey = self.picture.pixels == "grey"
        channels = [0] * taken.channels if grey else [0, 1, 2]
        return channels if grey or self.picture.pixels == self.picture.model else channels[::-1]

    def resampled(self, x: str, taken: _Taken, given: Size, resized: Size, result: Size) -> str:
        """Resized, cropped, and the channels in the model's order."""
        picture = self.picture
        many = 1 if picture.pixels == "grey" else 3
        channels = self.channels(taken)
        down, across = (
            taps(picture.filter, old, size, picture.begin(size, crop), crop)
            for old, size, crop in zip(given, resized, result, strict=True)
        )
        straight = channels == list(range(many)) and across.copies(given[1])
        if picture.filter != "nearest" and rows_first(given, resized):
            x = x if down.copies(given[0]) else self.rows(x, down)
            return x if straight else self.columns(x, across, range(result[0]), channels)
        needed = down.reach
        if not straight or needed != range(given[0]):
            x = self.columns(x, across, needed, channels)
            down = down.behind(needed.start)
        return x if down.copies(len(needed)) else self.rows(x, down)

    def rows(self, x: str, down: Taps) -> str:
        """A pass along columns: other rows."""
        return self.add(pixels.ROWS, "rows", [x, *self.tables("rows", down)], domain=DOMAIN)

    def columns(self, x: str, across: Taps, rows: range, channels: Sequence[int]) -> str:
        """A pass along rows, of some rows: other columns, channels in another order."""
        more = [self.constant("columns/rows", np.arange(rows.start, rows.stop, dtype=np.int64))]
        more.append(self.constant("columns/channels", np.array(channels, np.int64)))
        return self.add(pixels.COLUMNS, "columns", [x, *self.tables("columns", across), *more], domain=DOMAIN)

    def tables(self, name: str, axis: Taps) -> list[str]:
        places = self.constant(f"{name}/places", axis.places.astype(np.int64))
        return [places, self.constant(f"{name}/weights", axis.weights)]

    def normalized(self, x: str, taken: _Taken) -> str:
        """In the type, scale and layout of the model."""
        picture = self.picture
        if taken.elem != TensorProto.UINT8:
            x = self.add("Cast", "cast", [x], to=TensorProto.FLOAT)
            mean = np.array(picture.mean or (0.0,))
            std = np.array(picture.std or (1.0,))
            factor, term = (
                np.broadcast_to(v, np.broadcast_shapes(mean.shape, std.shape))
                for v in (picture.scale / std, -mean / std)
            )
            x = self.add("Mul", "scale", [x, self.constant("scale/factor", factor.astype(np.float32))])
            if mean.any():
                x = self.add("Add", "shift", [x, self.constant("shift/term", term.astype(np.float32))])
            if taken.elem != TensorProto.FLOAT:
                x = self.add("Cast", f"to_{dtype_name(taken.elem)}", [x], to=taken.elem)
        return self.add("Transpose", "channels_first", [x], perm=[0, 3, 1, 2]) if taken.axis == 1 else x

    # -- names -------------------------------------------------------------------------------------------------

    def fresh(self, name: str, taken: set[str]) -> str:
        """A name that nothing has."""
        whole = f"{NODES}/{self.value.name}/{name}"
        while whole in taken:
            whole += "_"
        taken.add(whole)
        return whole

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        name = self.fresh(name, self.names)
        self.model.graph.initializer.append(to_tensor(np.ascontiguousarray(array), name))
        return name

    def add(self, op: str, name: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        """A node; the name of its result."""
        result = self.fresh(f"{name}/y", self.names)
        called = self.fresh(name, self.node_names)
        self.nodes.append(helper.make_node(op, list(inputs), [result], name=called, domain=domain, **attributes))
        if domain:
            define(self.model, op)
        return result


def rows_first(given: Size, resized: Size) -> bool:
    """Whether rows are resampled before columns, as Pillow does from version 13 on; older ones begin with columns."""
    less = given[0] - resized[0]
    return less > 0 and less > 2 * (given[1] - resized[1])


def _told(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
