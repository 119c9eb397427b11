"""Binding what a model leaves open: dimensions by `--shape`, whole inputs by value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.errors import InputError, ModelError, TvmoptError, collect
from tvmopt.importer.protos import STRING, describe_type, dtype_name, to_tensor

GUESSES = (("channel", 3), ("height", 224), ("width", 224), ("seq", 128), ("len", 128), ("time", 128))
"""Sizes to propose for a dimension whose name contains the word."""


ANONYMOUS = re.compile(r"\s*|\?+|-1|None|unk__\d+", re.IGNORECASE)
"""Names of dimensions that are none: exporters write them for every size they do not know, and no two need be equal."""


def forget_anonymous(graph: onnx.GraphProto) -> None:
    """Take the names off open dimensions of inputs that only look like names, in place."""
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and ANONYMOUS.fullmatch(dim.dim_param):
                dim.ClearField("dim_param")


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


def bind_shapes(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write `shapes` into the inputs of `graph`, in place.

    A key is an input's name, or the name of a symbolic dimension with one size (``{"batch": [1]}``).
    A symbolic dimension bound in one input is bound in all; "?" and the like are names of none (:data:`ANONYMOUS`).

    Raises:
        InputError: a name that the model lacks, a wrong rank, a size that contradicts the model.
        ModelError: dimensions that are still open; all of them, with the flags that would bind them.
    """
    forget_anonymous(graph)
    inputs = {v.name: v for v in real_inputs(graph)}
    symbols: dict[str, int] = {}
    problems: list[TvmoptError] = []
    params = {d.dim_param for v in inputs.values() for d in v.type.tensor_type.shape.dim if d.dim_param}
    for name, wanted in shapes.items():
        if name in inputs:
            problems += _bind(inputs[name], wanted, symbols)
        elif name in params and len(wanted) == 1:
            problems += _bind_symbol(symbols, name, wanted[0], f"--shape {name}:{wanted[0]}")
        else:
            problems.append(unknown_name(name, inputs, "--shape"))
    if problems:
        raise collect(problems)
    for value in inputs.values():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    _require_static(list(inputs.values()))


def _flag(name: str, shape: Sequence[int]) -> str:
    return f"--shape {name}:{'x'.join(map(str, shape))}"


def _bind(value: onnx.ValueInfoProto, wanted: Sequence[int], symbols: dict[str, int]) -> list[InputError]:
    """Bind one input's dimensions; the problems found."""
    where = _flag(value.name, wanted)
    declared = describe_type(value.type)
    if not value.type.HasField("tensor_type"):
        return [InputError(f"Input '{value.name}' is a {declared}, not a tensor.", where=where)]
    if any(not isinstance(d, int | np.integer) or isinstance(d, bool) or d < 0 for d in wanted):
        return [InputError(f"Sizes of '{value.name}' must be whole numbers, 0 or more.", where=where)]
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.SetInParent()
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=int(d)) for d in wanted)
        return []
    if len(wanted) != len(tensor.shape.dim):
        rank = len(tensor.shape.dim)
        text = f"Input '{value.name}' is {declared}: it has {rank} dimensions, not {len(wanted)}."
        return [InputError(text, where=where, fix="give one size a dimension")]
    problems = []
    for axis, (dim, size) in enumerate(zip(tensor.shape.dim, wanted, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            if dim.dim_value != size:
                text = f"Input '{value.name}' is {declared}: dimension {axis} is {dim.dim_value}, not {size}."
                problems.append(InputError(text, where=where, fix="export the model with that size"))
        elif dim.dim_param:
            problems += _bind_symbol(symbols, dim.dim_param, size, where)
        else:
            dim.dim_value = int(size)
    return problems


def _bind_symbol(symbols: dict[str, int], name: str, size: int, where: str) -> list[InputError]:
    if symbols.setdefault(name, int(size)) == size:
        return []
    text = f"Dimension '{name}' is bound to {symbols[name]} and to {size}."
    return [InputError(text, where=where, fix="the model says that both are the same size")]


def _require_static(inputs: list[onnx.ValueInfoProto]) -> None:
    problems = []
    flags = []
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            continue  # the check lists it
        tensor = value.type.tensor_type
        unbound = not tensor.HasField("shape")
        sizes = []
        for axis, dim in enumerate(tensor.shape.dim):
            known = dim.HasField("dim_value") and dim.dim_value >= 0
            unbound |= not known
            sizes.append(dim.dim_value if known else _guess(dim.dim_param, axis, len(tensor.shape.dim)))
        if unbound:
            flags.append(_flag(value.name, sizes) if sizes else f"--shape {value.name}:1")
            problems.append(ModelError(f"Input '{value.name}' has open dimensions: {describe_type(value.type)}."))
    if problems:
        first = problems[0]
        fix = f"bind them, for example: {' '.join(flags)}"
        raise ModelError(first.what, where=", ".join(f"input '{v.name}'" for v in inputs), fix=fix, others=problems[1:])


def _guess(param: str, axis: int, rank: int) -> int:
    """A size to propose: by the dimension's name, else by the shapes that images and token sequences have."""
    if axis == 0:
        return 1
    named = next((size for word, size in GUESSES if word in param.lower()), 0)
    return named or ((1, 3, 224, 224)[axis] if rank == 4 else 128 if axis == 1 else 1)


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
