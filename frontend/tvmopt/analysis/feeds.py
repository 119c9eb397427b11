"""Inputs of a model: the arrays that a user gave, checked, and seeded ones for the rest."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.samples import trial_inputs
from tvmopt.errors import InputError, collect, reason
from tvmopt.files import open_plain
from tvmopt.importer.protos import static_shape, tensor_spec

_NUMPY = {str(np.dtype(code)) for code in "?bBhHiIqQefdFD"}


def arrays_of(inputs: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, by name.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with open_plain(inputs) as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise ValueError("one array, and no name for it")
            return dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"cannot read the inputs: {reason(error)}", where=inputs, fix="give an .npz of named arrays"
        ) from None


def completed(
    model: onnx.ModelProto, given: Mapping[str, np.ndarray[Any, Any]], seed: int
) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs given, and seeded ones for those that are not.

    Raises:
        InputError: inputs that the model lacks, or of another shape or dtype; an open shape that nothing binds.
    """
    stored = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    specs = {v.name: v for v in model.graph.input if v.name not in stored}
    unknown = sorted(set(given) - set(specs))
    if unknown:
        raise InputError(
            f"the model has no input {unknown[0]!r}.", where="-i", fix=f"its inputs are {', '.join(specs)}"
        )
    misfits = [problem for n, array in given.items() if (problem := _misfit(array, specs[n]))]
    if misfits:
        raise collect(misfits)
    missing = [v for n, v in specs.items() if n not in given]
    open_ = [v.name for v in missing if static_shape(v.type) is None]
    if open_:
        raise InputError(
            f"the shape of input {open_[0]!r} is open.",
            where="--shape",
            fix=f"--shape {open_[0]}:1x3x224x224",
        )
    return {
        **trial_inputs([tensor_spec(v) for v in missing], seed, integer_bounds(model)),
        **given,
    }


def _misfit(array: np.ndarray[Any, Any], value: onnx.ValueInfoProto) -> InputError | None:
    """What is wrong with an array for this input; of types that NumPy lacks only the shape is looked at."""
    spec, kind = tensor_spec(value), value.type.tensor_type
    where = f"input {value.name}: {spec.dtype}[{','.join('?' if d < 0 else str(d) for d in spec.shape)}]"
    if spec.dtype in _NUMPY and array.dtype.newbyteorder("=") != np.dtype(spec.dtype):
        return InputError(f"the dtype is {array.dtype}.", where=where, fix=f"x.astype({spec.dtype!r})")
    fits = len(spec.shape) == array.ndim and all(d in (-1, n) for d, n in zip(spec.shape, array.shape, strict=True))
    if kind.HasField("shape") and not fits:
        return InputError(f"the shape is {array.shape}.", where=where, fix="give an array of the input's shape")
    return None
