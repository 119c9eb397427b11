"""Random graphs with open dimensions: the kind "open".

A graph grows as any other does, but some of its sizes are `Size`: a number to build with, a second number, and a name.
ONNX infers every node at both numbers, so a node that fits the first alone is rejected, and an axis whose two results
differ depends on an open size. What holds such an axis is never a constant: weights of that shape become inputs, and
shapes with such numbers are computed from a tensor that has them (Shape, Gather, Concat), as exporters write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.build import I64, LIMIT, SIZES, Builder, Reject, Value, numpy_type
from fuzz.inputs import NUMBERS
from fuzz.rules import GROUPS, Rule, control, found, opening, rare
from fuzz.sized import Size, is_open, other

NAMES = ("batch", "n", "seq", "height", "past_length", "Dyn:0", "s1", "min", "batch size")
FIRST = (10, 11, 12, 13, 19, 20, 23)
"""Sizes that graphs with open dimensions are built with: none of :data:`fuzz.build.SIZES`, so constants tell them."""
MORE = (3, 4, 6)
"""By how much a second set of sizes is larger."""
RULES: list[tuple[float, Rule]] = [
    *((w, r) for group in GROUPS if group not in (control, rare) for w, r in group.RULES), *opening.RULES
]  # fmt: skip
BEHIND: list[tuple[float, Rule]] = [*RULES, *((8 * w, r) for w, r in found.RULES)]
"""What follows a selection: in graphs with sizes that values decide."""


class OpenBuilder(Builder):
    """Grows one graph with open sizes.

    Attributes:
        sizes: the open ones, one a symbol.
        often: how likely it is that a size of a new input is one of them.
        derived: sizes that follow from open ones, or that values decide, by their numbers: no constant may have one.
    """

    def __init__(self, rng: np.random.Generator, kind: int = 0) -> None:
        super().__init__(rng, kind)
        self._known = False
        count = self.choice([1, 1, 1, 2, 2, 3])
        values, names = rng.permutation(FIRST)[:count], rng.permutation(NAMES)[:count]
        self.sizes = [
            Size(int(v), int(v) + self.choice(MORE), str(n)) for v, n in zip(values, names, strict=True)
        ]  # fmt: skip
        self.often = self.choice([0.2, 0.4, 0.7])
        self._others: dict[str, onnx.TensorProto] = {}  # at the second set of sizes
        self._computed: dict[str, onnx.TensorProto] = {}  # shapes that nodes compute, at the first set
        self.derived = {int(s): s for s in self.sizes}

    # -- sizes --------------------------------------------------------------------------------------------

    def size(self, options: Sequence[int]) -> int:
        return self.choice(self.sizes) if self.chance(self.often) else super().size(options)

    def shape(self, ranks: Iterable[int] = (1, 2, 2, 3, 3, 4, 4, 5), limit: int = LIMIT) -> tuple[int, ...]:
        dims: list[int] = list(super().shape(ranks, limit))
        for axis in range(len(dims)):
            if dims[axis] and self.chance(self.often) and prod(dims) // dims[axis] * 24 <= limit:
                dims[axis] = self.choice(self.sizes)
        return tuple(dims)

    def _opened(self, shape: Iterable[int]) -> tuple[int, ...]:
        """A shape whose sizes have lost their names, out of NumPy: again with them."""
        return tuple(d if isinstance(d, Size) else self.derived.get(int(d), int(d)) for d in shape)

    # -- values -------------------------------------------------------------------------------------------

    def input(self, dtype: int, shape: Sequence[int], note: str = "") -> Value:
        shape = self._opened(shape)
        if any(isinstance(d, Size) and not d.text for d in shape):
            raise Reject("an input of a size that has no name")
        value = super().input(dtype, shape, self._named(note))
        texts = [d.text if isinstance(d, Size) else int(d) for d in shape]
        info = helper.make_tensor_value_info(value.name, dtype, texts)
        info.doc_string = self._named(note)
        self.inputs[value.name] = info
        opened = Value(value.name, dtype, shape)
        self.values[-1] = self.made[value.name] = opened
        return opened

    def _named(self, note: str) -> str:
        """A note whose bounds are open sizes, with their names: ``range 0 11`` is ``range 0 <n>``."""
        words = note.split()
        if words and words[0] in ("range", "unique"):
            for i in (-2, -1):
                known = self.derived.get(abs(int(words[i])))
                if known is not None and known.text in {s.text for s in self.sizes}:
                    words[i] = f"{'-' if words[i].startswith('-') else ''}<{known.text.replace(' ', '_')}>"
        return " ".join(words)

    def fresh(self, dtype: int, shape: Sequence[int], constant: float = 0.3, note: str = "") -> Value:
        return super().fresh(dtype, shape, 0.0 if is_open(self._opened(shape)) else constant, note)

    def weight(self, dtype: int, shape: Sequence[int], fan: int = 1, constant: float = 0.8) -> Value:
        return super().weight(dtype, shape, fan, 0.0 if is_open(self._opened(shape)) else constant)

    def indices(self, shape: Sequence[int], low: int, high: int, unique: int | None = None) -> Value:
        dtype = int(self.choice([I64, I64, I64, TensorProto.INT32]))
        if high in self.derived or is_open(self._opened(shape)):
            return self.input(
                dtype, shape, f"range {low} {high}" if unique is None else f"unique {unique} {low} {high}"
            )
        return super().indices(shape, low, high, unique)

    def constant(self, array: Any, dtype: int | None = None, offer: bool = False) -> Value:
        data = np.asarray(array) if dtype is None else np.asarray(array).astype(numpy_type(dtype))
        shape = self._opened(data.shape)
        kind = int(helper.np_dtype_to_tensor_dtype(data.dtype))
        if is_open(shape):
            note = f"range {data.min()} {int(data.max()) + 1}" if data.dtype.kind in "iu" else ""
            return self.input(kind, shape, note)
        if (
            data.dtype == np.int64
            and data.ndim <= 1
            and data.size <= 8
            and any(int(v) in self.derived for v in data.flat)
        ):
            return self._shape_value(data)
        return super().constant(array, dtype, offer)

    def _shape_value(self, data: np.ndarray[Any, Any]) -> Value:
        """Numbers some of which are open sizes: one-element tensors from Shape, joined."""
        parts: list[str] = []
        for number in map(int, np.atleast_1d(data)):
            size = self.derived.get(number)
            parts.append(self._size_of(size) if size is not None else super().constant(np.array([number])).name)
        name = self._name("v")
        if len(parts) == 1 and data.ndim:
            self.nodes.append(helper.make_node("Identity", parts, [name]))
        elif data.ndim:
            self.nodes.append(helper.make_node("Concat", parts, [name], axis=0))
        else:
            axes = super().constant(np.array([0])).name
            self.nodes.append(helper.make_node("Squeeze", [parts[0], axes], [name]))
        self._computed[name] = numpy_helper.from_array(data, name)
        shown = np.array(other(self.derived.get(int(v), int(v)) for v in data.flat), np.int64).reshape(data.shape)
        self._others[name] = numpy_helper.from_array(shown, name)
        value = Value(name, I64, data.shape)
        self.made[name] = value
        return value

    def _size_of(self, size: Size) -> str:
        """The name of a tensor of one element: this size, read off a value that has it."""
        places = [
            (v, i) for v in self.values for i, d in enumerate(v.shape)
            if isinstance(d, Size) and (int(d), d.other) == (int(size), size.other)
        ]  # fmt: skip
        if not places:
            raise Reject("no tensor has this size")
        value, axis = self.choice(places)
        shape, one = self._name("v"), self._name("v")
        index = super().constant(np.array([axis], np.int64)).name
        self.nodes.append(helper.make_node("Shape", [value.name], [shape]))
        self.nodes.append(helper.make_node("Gather", [shape, index], [one], axis=0))
        for made, numbers in ((shape, value.shape), (one, (size,))):
            self.made[made] = Value(made, I64, (len(numbers),))
            self._computed[made] = numpy_helper.from_array(np.array(numbers, np.int64), made)
            self._others[made] = numpy_helper.from_array(np.array(other(numbers), np.int64), made)
        return one

    # -- nodes --------------------------------------------------------------------------------------------

    def _types(self, proto: onnx.NodeProto) -> dict[str, tuple[int, tuple[int, ...]]]:
        known = {n: self.made[n] for n in proto.input if n}
        first = self._infer(proto, {n: v.shape for n, v in known.items()}, {**self.constants, **self._computed})
        second = self._infer(proto, {n: other(v.shape) for n, v in known.items()}, {**self.constants, **self._others})
        results = {}
        for name, (kind, shape) in first.items():
            shown = second[name][1]
            if len(shown) != len(shape):
                raise Reject(f"{proto.op_type}: the rank depends on an open size")
            results[name] = (kind, tuple(self._size(a, b) for a, b in zip(shape, shown, strict=True)))
        if proto.op_type == "Shape":  # later nodes read it as data, at both sets of sizes
            source = known[proto.input[0]].shape
            self._computed[proto.output[0]] = numpy_helper.from_array(np.array(source, np.int64), proto.output[0])
            self._others[proto.output[0]] = numpy_helper.from_array(np.array(other(source), np.int64), proto.output[0])
        return results

    def _size(self, a: int, b: int) -> int:
        """The size that is `a` at first and `b` at the second set of sizes."""
        if a == b:
            return a
        text = next((s.text for s in self.sizes if (int(s), s.other) == (a, b)), "")
        plain = [s for s in self.sizes if s.text.isidentifier() and s.text != "min" and b - s.other == a - s]
        if not text and plain and a > plain[0]:
            text = f"{plain[0].text} + {a - plain[0]}"
        made = Size(a, b, text)
        if a not in SIZES and a > 9:
            self.derived.setdefault(a, made)
        return made

    # -- the model ----------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for value in model.graph.output:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, self.made[value.name].shape, strict=True):
                if isinstance(size, Size):
                    dim.Clear()
                    if size.text in {s.text for s in self.sizes}:
                        dim.dim_param = size.text
        used = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
        numbers = {s.text: int(s) for s in self.sizes if s.text in used}
        model.metadata_props.add(key=NUMBERS, value=json.dumps(numbers))
        return model
