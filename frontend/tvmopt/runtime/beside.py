"""What a decoder looks at besides its own text - an encoder's output, or the caches of keys and values made of it - for
:class:`tvmopt.runtime.decoder.Decoder`.

It stays the same from step to step: it is checked and put where the code reads it once, and no step copies it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tvmopt.dims import Dim, Range
from tvmopt.errors import InputError, collect
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.tensors import Array, TensorInfo, aligned_empty, as_array, is_direct, to_ffi

MASK = "encoder_attention_mask"
"""What exporters call the mask of an encoder's output; where it is not given, all of it counts."""


class Takes(Protocol):
    """What is needed of a :class:`tvmopt.runtime.model.Model`."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...
    @property
    def symbols(self) -> dict[str, Range]: ...
    def inputs_at(self, sizes: Mapping[str, int] | None = None) -> tuple[TensorInfo, ...]: ...
    def bind(self, shapes: Any) -> dict[str, int]: ...


class Computes(Protocol):
    """What is needed of the model that computes what a decoder looks at."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...
    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...
    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]: ...


def begun(beginning: Computes, step: Collection[str], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a step looks at: caches that are computed here, unless they are given, and what else it reads.

    Args:
        step: the names of its inputs. given: by name, inputs of both.

    Raises:
        InputError: an input of the beginning is missing or does not fit.
    """
    if all(info.name in given for info in beginning.outputs):
        return dict(given)
    infos = {info.name: info for info in beginning.inputs}
    given = _with_mask(infos, given)
    missing = [info for info in infos.values() if info.name not in given and info.name != MASK]
    if missing:
        raise _not_given(missing, where, "pass what its encoder gave")
    others = {name: value for name, value in given.items() if name in step or name not in infos}
    return others | beginning.run({name: given[name] for name in infos})


def beside(model: Takes, own: Collection[str], given: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs that stay the same, as arrays that the code can read where they lie.

    Args:
        own: the inputs that a decoder fills by itself. given: the others, by name.

    Raises:
        InputError: one is missing, unknown, or has the wrong type or shape; all problems of a kind at once.
    """
    infos = {info.name: info for info in model.inputs if info.name not in own}
    given = _with_mask(infos, given)
    _check_names(model, infos, given)
    found = {name: as_array(value, infos[name]) for name, value in given.items()}
    if problems := [one for one in found.values() if isinstance(one, InputError)]:
        raise collect(problems)
    arrays = {name: _direct(array) for name, array in found.items() if isinstance(array, np.ndarray)}
    _check_sizes(model, arrays)
    return arrays


def tensors(arrays: Mapping[str, Array], infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """TVM's tensors of them."""
    return {name: to_ffi(array, infos[name].dtype) for name, array in arrays.items()}


def sizes_of(arrays: Mapping[str, Array], infos: Mapping[str, TensorInfo]) -> dict[str, int]:
    """The open sizes that they have."""
    return {
        str(size): array.shape[axis]
        for name, array in arrays.items()
        for axis, size in enumerate(infos[name].shape)
        if isinstance(size, Dim) and size.is_symbol
    }


def _with_mask(infos: Mapping[str, TensorInfo], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and a mask of ones where there is none and its length is known."""
    if MASK not in infos or MASK in given or not (length := _length(infos, given)):
        return dict(given)
    return {**given, MASK: np.ones((*infos[MASK].shape[:-1], length), infos[MASK].numpy_dtype)}


def _length(infos: Mapping[str, TensorInfo], given: Mapping[str, Any]) -> int:
    """How long the mask is: as an input that shares its size; 0 where none is given."""
    wanted = infos[MASK].shape[-1]
    if not isinstance(wanted, Dim):
        return int(wanted)
    for name, value in given.items():
        shape = infos[name].shape if name in infos else ()
        if wanted in shape and len(np.shape(value)) == len(shape):
            return int(np.shape(value)[shape.index(wanted)])
    return 0


def _check_names(model: Takes, infos: Mapping[str, TensorInfo], given: Mapping[str, Any]) -> None:
    missing, unknown = [i for n, i in infos.items() if n not in given], [n for n in given if n not in infos]
    missing = [info for info in missing if info.name != MASK] or missing
    if missing:
        bind = ", or bind it when the model is compiled (--value NAME=NUMBER)"
        raise _not_given(missing, model.manifest.model, "pass what stays the same from step to step", bind)
    if unknown:
        takes = f"it takes {', '.join(infos)}" if infos else "leave it out: this decoder looks at its own text alone"
        raise InputError(f"the decoder has no input {unknown[0]!r}.", where=model.manifest.model, fix=takes)


def _not_given(missing: Sequence[TensorInfo], where: str, what: str, how: str = "") -> InputError:
    return InputError(
        f"a decoder cannot know what to pass as {'; '.join(map(str, missing))}.",
        where=where,
        fix=f"{what}: decoder({_call([info.name for info in missing])}){how}",
    )


def _call(names: list[str]) -> str:
    """Arguments of a call with these names; some are no names in Python."""
    first, more = names[0], ", ..." if len(names) > 1 else ""
    return f"{first}=...{more}" if first.isidentifier() else f'**{{"{first}": ...{more}}}'


def _direct(array: Array) -> Array:
    """An array that the code can read where it lies: the same, or a copy."""
    if is_direct(array):
        return array
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy


def _check_sizes(model: Takes, arrays: Mapping[str, Array]) -> None:
    """That the sizes are in range and agree, a step being one token behind none."""
    infos = {info.name: info for info in model.inputs}
    found = sizes_of(arrays, infos)
    least = {name: known.min for name, known in model.symbols.items()}
    shapes = [arrays[i.name].shape if i.name in arrays else i.shape for i in model.inputs_at(least | found)]
    model.bind(shapes)
