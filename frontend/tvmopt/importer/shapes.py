"""Binding what a model leaves open: dimensions by `--shape`, whole inputs by value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.dims import Dim, Range, Shapes, Size, identifier, lowest, parse, symbols_of
from tvmopt.errors import InputError, ModelError, TvmoptError, collect
from tvmopt.importer.protos import STRING, describe_type, dtype_name, to_tensor
from tvmopt.importer.symbols import Symbols
from tvmopt.runtime.sizes import given_sizes

Wanted = int | str
"""What a caller gives for one dimension: a size, or a range as text: ``"1..512"``, ``"1..512@128"``, ``"?"``."""

ANONYMOUS = re.compile(r"\s*|\?+|-1|None|unk__\d+", re.IGNORECASE)
"""Names of dimensions that are none: exporters write them for every size they do not know, and no two need be equal."""


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller feeds: those that no initialiser gives."""
    initial = {t.name for t in graph.initializer}
    return [v for v in graph.input if v.name not in initial]


def unknown_name(name: str, known: Iterable[str], what: str) -> InputError:
    """The error for an input name that the model lacks."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    names = ", ".join(f"'{k}'" for k in known[:20]) or "none"
    return InputError(
        f"The model has no input '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""),
        where=f"{what} {name}",
        fix=f"the inputs are {names}",
    )


def bind_shapes(graph: onnx.GraphProto, shapes: Shapes) -> Symbols:
    """Write `shapes` into the inputs of `graph`, in place; what stays open gets a name.

    A key is an input's name, or the name of a symbolic dimension with one size (``{"batch": 1}``). A symbolic
    dimension bound in one input is bound in all; "?" and the like are names of none (:data:`ANONYMOUS`): each of these
    becomes a symbol of its own, ``x_0`` for the first dimension of an input ``x``.

    Returns:
        The open sizes and the ranges that were given for them.

    Raises:
        InputError: a name that the model lacks, a wrong rank, a size that contradicts the model.
        ModelError: inputs whose number of dimensions is open.
    """
    inputs = {v.name: v for v in real_inputs(graph)}
    names = _name_dimensions(inputs.values())
    binder = _Binder(names)
    problems: list[TvmoptError] = []
    for name, wanted in given_sizes(shapes).items():
        sizes = wanted.split("x") if isinstance(wanted, str) else wanted
        if name in inputs:
            problems += binder.bind(inputs[name], sizes)
        elif (symbol := names.get(name, name)) in names.values() and len(sizes) == 1:
            problems += binder.bind_size(symbol, sizes[0], _flag(name, sizes))
        else:
            problems.append(unknown_name(name, inputs, "--shape"))
    if problems:
        raise collect(problems)
    _require_rank(list(inputs.values()))
    return binder.write(inputs.values())


def _name_dimensions(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    """Give each open dimension a name that is an identifier, in place; the new name of each old one."""
    names: dict[str, str] = {}
    taken: set[str] = set()

    def fresh(text: str) -> str:
        name, n = identifier(text), 1
        while name in taken:
            n += 1
            name = f"{identifier(text)}_{n}"
        taken.add(name)
        return name

    for value in inputs:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and not ANONYMOUS.fullmatch(dim.dim_param) and dim.dim_param not in names:
                names[dim.dim_param] = fresh(dim.dim_param) if not _expression(dim.dim_param) else dim.dim_param
    for value in inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
            elif not dim.HasField("dim_value") or dim.dim_value < 0:
                dim.dim_param = fresh(f"{value.name}_{axis}")
                names[dim.dim_param] = dim.dim_param
    return names


def _expression(text: str) -> bool:
    """Whether an exporter wrote arithmetic on other dimensions: ``past_length + 1``."""
    try:
        size = parse(text)
    except ValueError:
        return False
    return isinstance(size, Dim) and not size.is_symbol


class _Binder:
    """Binds dimensions: by the texts that stand in the inputs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.originals = {new: old for old, new in names.items()}
        self.sizes: dict[str, int] = {}
        self.ranges: dict[str, Range] = {}

    def bind(self, value: onnx.ValueInfoProto, wanted: Sequence[Wanted]) -> list[InputError]:
        """Bind one input's dimensions; the problems found."""
        where = _flag(value.name, wanted)
        declared = describe_type(value.type)
        if not value.type.HasField("tensor_type"):
            return [InputError(f"Input '{value.name}' is a {declared}, not a tensor.", where=where)]
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            tensor.shape.SetInParent()
            names = [identifier(f"{value.name}_{axis}") for axis in range(len(wanted))]
            tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_param=name) for name in names)
        if len(wanted) != len(tensor.shape.dim):
            rank = len(tensor.shape.dim)
            text = f"Input '{value.name}' is {declared}: it has {rank} dimensions, not {len(wanted)}."
            return [InputError(text, where=where, fix="give one size a dimension")]
        problems = []
        for axis, (dim, size) in enumerate(zip(tensor.shape.dim, wanted, strict=True)):
            if not dim.HasField("dim_value"):
                problems += self.bind_size(dim.dim_param, size, where)
            elif str(dim.dim_value) != str(size) and str(size).strip() != "?":
                text = f"Input '{value.name}' is {declared}: dimension {axis} is {dim.dim_value}, not {size}."
                problems.append(InputError(text, where=where, fix="export the model with that size"))
        return problems

    def bind_size(self, name: str, wanted: Wanted, where: str) -> list[InputError]:
        """Bind the dimension of that name to a size or a range."""
        told = self.originals.get(name, name)
        if isinstance(wanted, str):
            try:
                found = Range.of(wanted)
            except ValueError as error:
                return [InputError(f"{error}.", where=where, fix="--shape NAME:1..8x1..512@128")]
            if found is None:
                return []
        elif not isinstance(wanted, int | np.integer) or isinstance(wanted, bool) or wanted < 0:
            return [InputError(f"Sizes of '{told}' must be whole numbers, 0 or more.", where=where)]
        else:
            found = Range(int(wanted), int(wanted), int(wanted))
        if found.at_most:
            found = replace(found, min=lowest(name))
        if found.min != found.max:
            if found.min < lowest(name):
                fix = "begin the range at 1; for a size of 0 compile the model for it alone"
                return [InputError(f"The range of '{told}' begins at {found.min}.", where=where, fix=fix)]
            return self._same(self.ranges.setdefault(name, found), found, told, where)
        return self._same(self.sizes.setdefault(name, found.min), found.min, told, where)

    def _same(self, before: Any, now: Any, name: str, where: str) -> list[InputError]:
        if before == now:
            return []
        text = f"Dimension '{name}' is bound to {before} and to {now}."
        return [InputError(text, where=where, fix="the model says that both are the same size")]

    def write(self, inputs: Iterable[onnx.ValueInfoProto]) -> Symbols:
        """Write sizes into the inputs; the symbols that are left."""
        dims = [dim for v in inputs for dim in v.type.tensor_type.shape.dim if dim.dim_param]
        bare = {d.dim_param for d in dims if not _expression(d.dim_param)}
        names: dict[str, None] = {}
        for dim in dims:
            text = dim.dim_param
            if text in self.sizes:
                dim.dim_value = self.sizes[text]
                continue
            size: Size = parse(text)
            if not symbols_of([size]) <= bare | self.sizes.keys():
                size = Dim.symbol(identifier(text))  # of sizes that no input has by themselves
                self.ranges |= {str(size): self.ranges[text]} if text in self.ranges else {}
            size = size.at(self.sizes) if isinstance(size, Dim) else size
            if isinstance(size, Dim):
                dim.dim_param = str(size)
                names |= dict.fromkeys(sorted(size.symbols()))
            else:
                dim.dim_value = size
        return Symbols(tuple(names), {n: r for n, r in self.ranges.items() if n in names})


def _flag(name: str, shape: Sequence[Wanted]) -> str:
    return f"--shape {name}:{'x'.join(map(str, shape))}"


def _require_rank(inputs: list[onnx.ValueInfoProto]) -> None:
    unknown = [v for v in inputs if v.type.HasField("tensor_type") and not v.type.tensor_type.HasField("shape")]
    if unknown:
        problems = [
            ModelError(
                f"The number of dimensions of input '{value.name}' is open.",
                where=f"input '{value.name}'",
                fix=f"say how many there are: --shape {value.name}:?x?",
            )
            for value in unknown
        ]
        raise collect(problems)


def bind_values(graph: onnx.GraphProto, values: Mapping[str, npt.ArrayLike]) -> None:
    """Turn inputs into initialisers, in place.

    Raises:
        InputError: a name that the model lacks, an array of another dtype or shape than declared, or numbers that the
            declared dtype does not hold.
    """
    graph.initializer.extend(to_tensor(array, name) for name, array in bound_arrays(graph, values).items())
    kept = [v for v in graph.input if v.name not in values]
    del graph.input[:]
    graph.input.extend(kept)


def bound_arrays(graph: onnx.GraphProto, values: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
    """Values for inputs as arrays of the types and shapes that the graph declares.

    Raises:
        InputError: see :func:`bind_values`.
    """
    inputs = {v.name: v for v in real_inputs(graph)}
    problems: list[TvmoptError] = []
    arrays = {}
    for name, given in values.items():
        if name not in inputs:
            problems.append(unknown_name(name, inputs, "value"))
            continue
        array = arrays[name] = _as_declared(inputs[name], given)
        problem = _value_problem(inputs[name], array)
        if problem:
            declared = describe_type(inputs[name].type)
            found = f"{array.dtype}{list(array.shape)}"
            text = f"The value of input '{name}' is {found}, but the input is {declared}: {problem}."
            problems.append(InputError(text, where=f"value {name}", fix="convert the array"))
    if problems:
        raise collect(problems)
    return arrays


def _as_declared(value: onnx.ValueInfoProto, given: npt.ArrayLike) -> npt.NDArray[Any]:
    """Arrays as they are; numbers and lists of them in the input's own type, if that holds them exactly."""
    array: npt.NDArray[Any] = np.asarray(given)
    elem = value.type.tensor_type.elem_type
    if isinstance(given, np.ndarray | np.generic) or elem in (0, STRING) or array.dtype.kind not in "biuf":
        return array
    with np.errstate(all="ignore"):
        declared = array.astype(onnx.helper.tensor_dtype_to_np_dtype(elem))
    exact = (array.dtype.kind == "f" and declared.dtype.kind not in "biu") or (declared == array).all()
    return declared if exact else array


def _value_problem(value: onnx.ValueInfoProto, array: npt.NDArray[Any]) -> str:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return "it is not a tensor"
    declared = dtype_name(tensor.elem_type)
    if tensor.elem_type == STRING:
        return "" if array.dtype.kind in "OSU" else "it holds strings"
    if array.dtype.name != declared:
        return f"its dtype is {declared}"
    if not tensor.HasField("shape"):
        return ""
    dims = tensor.shape.dim
    if len(dims) != array.ndim:
        return f"it has {len(dims)} dimensions"
    for axis, (dim, size) in enumerate(zip(dims, array.shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size:
            return f"its dimension {axis} is {dim.dim_value}"
    return ""
