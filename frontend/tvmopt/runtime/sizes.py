"""The open sizes of one call: bound from the shapes of the inputs and checked before any kernel runs - for `Model`.

Kernels trust these checks: a slice of a table reads where the sizes point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from tvmopt.dims import FOUND, Dim, Range, Shapes, Size, at, holds, near, replaced, symbols_of, told
from tvmopt.errors import InputError
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.tensors import TensorInfo

Shape = tuple[int, ...]


class OpenSizes:
    """What a compiled model's manifest says of its open sizes.

    Attributes:
        ranges: by symbol; empty for a static model.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.ranges: dict[str, Range] = manifest.symbols
        self._model, self._inputs, self._conditions = manifest.model, manifest.inputs, manifest.conditions
        self._first: dict[str, tuple[int, int]] = {}  # where a symbol is read: input, axis
        for index, info in enumerate(manifest.inputs):
            for axis, size in enumerate(info.shape):
                if isinstance(size, Dim) and size.is_symbol:
                    self._first.setdefault(str(size), (index, axis))
        self._others = [
            (index, axis, size)
            for index, info in enumerate(manifest.inputs)
            for axis, size in enumerate(info.shape)
            if isinstance(size, Dim) and self._first.get(str(size)) != (index, axis)
        ]
        self._places = [(name, *place, self.ranges[name]) for name, place in self._first.items()]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def named(self) -> dict[str, int]:
        """The sizes that the model is fastest at."""
        return {name: known.opt for name, known in self.ranges.items()}

    @property
    def largest(self) -> dict[str, int]:
        return {name: known.max for name, known in self.ranges.items()}

    def bind(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """The sizes in these shapes, one an input, of the right rank and right where they are not open.

        Raises:
            InputError: the first size that is out of range, contradicts another input or breaks a condition.
        """
        sizes = {}
        for name, index, axis, known in self._places:
            size = sizes[name] = shapes[index][axis]
            if not known.min <= size <= known.max:
                raise self._beyond(name, size, index, axis)
        for index, axis, expected in self._others:
            if shapes[index][axis] != expected.at(sizes):
                raise self._disagree(index, axis, expected, shapes[index][axis], sizes)
        for condition in self._conditions:
            if not holds(condition, sizes):
                raise self._broken(condition, sizes)
        return sizes

    def completed(self, shapes: Mapping[str, Shape], wanted: Shapes | None = None) -> dict[str, int]:
        """Sizes for a call of which only inputs of some `shapes` are given: theirs and those that are `wanted`, by the
        name of a size or of an input; else the named ones.

        Raises:
            InputError: what is wanted is no size or input; it is no number, or another one than is compiled or given.
        """
        inputs, found = {info.name: info.shape for info in self._inputs}, self._read(shapes)
        for name, given in (wanted or {}).items():
            sizes = (given,) if isinstance(given, str) else tuple(given)
            own = (Dim.symbol(name),) if name in self.ranges else inputs.get(name)
            if own is None:
                raise self._refused(f"the compiled model has no open size or input {name!r}")
            if len(sizes) != len(own):
                raise self._refused(f"{name!r} has {len(own)} sizes, and {len(sizes)} are asked for")
            for size, number in zip(own, sizes, strict=True):
                if number == "?":
                    continue
                if isinstance(number, str):
                    raise self._refused(f"a run has one size where {name!r} is to be {number}")
                if isinstance(size, int) and size != number:
                    raise self._refused(f"a size of {name!r} was compiled as {size}, and is to be {number}")
                if (other := found.setdefault(str(size), number)) != number:
                    raise self._refused(f"{str(size)!r} is {other} elsewhere in this call, and is to be {number}")
        return self.named | {name: size for name, size in found.items() if name in self.ranges}

    def _read(self, shapes: Mapping[str, Shape]) -> dict[str, int]:
        """The sizes in the shapes of some inputs."""
        found: dict[str, int] = {}
        for info in self._inputs:
            for size, given in zip(info.shape, shapes.get(info.name, ()), strict=False):
                if isinstance(size, Dim) and size.is_symbol:
                    found.setdefault(str(size), given)
        return found

    # -- what is said ----------------------------------------------------------------------------------------------

    def _beyond(self, name: str, size: int, index: int, axis: int) -> InputError:
        known, info = self.ranges[name], self._inputs[index]
        fix = f"compile the model with --shape {name}:{known.min}..{size}@{known.opt}"
        if size < known.min:  # which the model itself may ask for, as long as the size is open
            fix = f"compile the model with --shape {name}:{size}, for that size alone"
        if size < 1:
            fix = f"pass {known.min} or more"
        return InputError(
            f"'{name}' is {size} in the input {info.name!r} (axis {axis}), and the model was compiled for "
            f"{known.min} to {known.max}.",
            where=f"{self._model}, input {info}",
            fix=fix,
        )

    def _disagree(self, index: int, axis: int, expected: Size, found: int, sizes: Mapping[str, int]) -> InputError:
        info = self._inputs[index]
        names = sorted(symbols_of([expected]))
        each = ", ".join(f"'{n}' is {sizes[n]} in {self._inputs[self._first[n][0]].name!r}" for n in names)
        wanted = replaced(expected, sizes)
        return InputError(
            f"the input {info.name!r} has {found} elements on axis {axis}, and {expected} is {wanted}: {each}.",
            where=f"{self._model}, input {info}",
            fix=f"pass inputs that agree in {', '.join(map(repr, names))}",
        )

    def _refused(self, what: str) -> InputError:
        ranges = ", ".join(f"{name} from {known.min} to {known.max}" for name, known in self.ranges.items())
        inputs = "the inputs are " + "; ".join(map(str, self._inputs))
        fix = f"{inputs}{', ' + ranges if ranges else ''}; others need the model compiled with them"
        return InputError(f"{what}.", where=f"{self._model}, shape", fix=fix)

    def _broken(self, condition: str, sizes: Mapping[str, int]) -> InputError:
        fit = near(sizes, self.ranges, self._conditions)
        better = told({n: v for n, v in fit.items() if v != sizes[n]})
        return InputError(
            f"the model needs sizes for which {condition}, and here {told(sizes)}.",
            where=self._model,
            fix=f"pass {better}" if better else "pass sizes for which that holds",
        )


def decided(infos: Sequence[TensorInfo], results: Sequence[Any]) -> dict[str, int]:
    """The sizes that values have decided, as the shapes of results tell them."""
    found: dict[str, int] = {}
    for info, result in zip(infos, results, strict=True):
        for size, number in zip(info.shape, result.shape, strict=False):
            if isinstance(size, Dim) and size.is_symbol and str(size).startswith(FOUND):
                found.setdefault(str(size), int(number))
    return found


def info_at(info: TensorInfo, sizes: Mapping[str, int]) -> TensorInfo:
    """A tensor's description at these sizes."""
    return TensorInfo(info.name, at(info.shape, sizes), info.dtype)


def given_sizes(shapes: Any) -> dict[str, Sequence[int | str] | str]:
    """What a caller gives as shapes, one number put into a list.

    >>> given_sizes({"batch": 8, "x": (1, "3..5"), "y": "1x3"})
    {'batch': [8], 'x': [1, '3..5'], 'y': '1x3'}

    Raises:
        InputError: it is no dictionary of shapes.
    """
    fix = 'give a dictionary: {"x": (1, 3, 224, 224)}, {"batch": "1..8@4"}'
    if not isinstance(shapes, Mapping):
        raise InputError(f"shapes are given by name, not as {type(shapes).__name__}.", where="shape", fix=fix)
    found: dict[str, Sequence[int | str] | str] = {}
    for name, wanted in shapes.items():
        sizes = wanted if isinstance(wanted, str) else [wanted] if isinstance(wanted, Integral) else wanted
        if not isinstance(sizes, Sequence) or not all(isinstance(d, Integral | str) for d in sizes):
            what = f"{wanted!r} is no shape: sizes are whole numbers, or ranges as text."
            raise InputError(what, where=f"shape of {name}", fix=fix)
        found[name] = sizes if isinstance(sizes, str) else [d if isinstance(d, str) else int(d) for d in sizes]
    return found
