"""A model with what stands before it as nodes of its own graph: its input becomes a picture of bytes.

    x uint8 [n, height, width, c] -> ResampleColumns -> ResampleRows -> Cast -> Mul -> Add -> Transpose -> the model

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
from tvmopt.importer.protos import copy_model, describe_type, dtype_name, to_tensor
from tvmopt.preprocessing.picture import PREFIX, Picture, Size, parse
from tvmopt.preprocessing.resampling import Taps, taps

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
OLDEST_IR = 8
"""Functions in a model belong to this version of ONNX's files."""
NODES = "preprocess"
"""What the names of the nodes begin with."""


def staged(model: onnx.ModelProto, stages: Mapping[str, str], shapes: Shapes | None = None) -> onnx.ModelProto:
    """A copy of a model that takes pictures.

    Args:
        stages: text of a stage (:mod:`tvmopt.preprocessing.picture`) by the name of an input; "" is the only input that
            could be a picture.
        shapes: of inputs, as they are with the stages.

    Raises:
        InputError: a stage does not fit the model, or the size of its pictures is not known.
    """
    copy = copy_model(model)
    copy.ir_version = max(copy.ir_version, OLDEST_IR)
    weights = {t.name for t in copy.graph.initializer}
    for name, text in stages.items():
        value = _input([v for v in copy.graph.input if v.name not in weights], name, text)
        _Stage(copy, value, text, (shapes or {}).get(value.name)).write()
    return copy


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

    def given(self, taken: _Taken) -> Size:
        """The size of the pictures that come."""
        given, fixed = self.picture.given, []
        first = 1 if self.picture.layout == "NHWC" else 2
        if self.shape is not None and not isinstance(self.shape, str) and len(self.shape) == 4:
            fixed = [int(d) if str(d).strip().isdigit() else 0 for d in self.shape[first : first + 2]]
        if given is None and fixed and all(fixed):
            given = fixed[0], fixed[1]
        if given is None and self.picture.resize is None and self.picture.crop is None and all(taken.size):
            given = taken.size
        if given is None:
            open_ = "is open: tables are made for one size" if fixed else "is not known"
            shape = "1x480x640x3" if first == 1 else "1x3x480x640"
            fix = f"say it: from=480x640 (HEIGHTxWIDTH), or --shape {self.value.name}:{shape}"
            raise self.refused(f"the size of the pictures {open_}.", fix)
        return given

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

    def write(self) -> None:
        """The nodes in front of the others, and the new input in the place of the old one."""
        name, graph, picture = self.value.name, self.model.graph, self.picture
        if any(output.name == name for output in graph.output):
            raise self.refused(f"'{name}' is an output, too.", "export the model without that output")
        taken = self.taken()
        given = self.given(taken)
        resized = picture.resized(given)
        result = picture.crop or resized
        self.check(taken, resized, result)
        x = name
        if picture.layout == "NCHW":
            x = self.add("Transpose", "channels_last", [x], perm=[0, 2, 3, 1])
        x = self.resampled(x, taken, given, resized, result)
        x = self.normalized(x, taken)
        rest = list(graph.node)
        batch = onnx.TensorShapeProto.Dimension()
        batch.CopyFrom(self.value.type.tensor_type.shape.dim[0])
        del graph.node[:]
        channels = 1 if picture.pixels == "grey" else 3
        sizes = [*given, channels] if picture.layout == "NHWC" else [channels, *given]
        shape = self.value.type.tensor_type.shape
        del shape.dim[:]
        shape.dim.append(batch)
        shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=d) for d in sizes)
        self.value.type.tensor_type.elem_type = TensorProto.UINT8
        behind = onnx.GraphProto(node=rest)
        rename_free(behind, {name: x})
        graph.node.extend([*self.nodes, *behind.node])
        for kept in [v for v in graph.value_info if v.name == name]:
            graph.value_info.remove(kept)

    def resampled(self, x: str, taken: _Taken, given: Size, resized: Size, result: Size) -> str:
        """Resized, cropped, and the channels in the model's order."""
        picture = self.picture
        many = 1 if picture.pixels == "grey" else 3
        channels = [0] * taken.channels if many == 1 else [0, 1, 2]
        if many == 3 and picture.pixels != picture.model:
            channels = channels[::-1]
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
