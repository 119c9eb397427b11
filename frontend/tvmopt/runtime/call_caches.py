"""A decoder's caches in a call that keeps ONNX's meaning - for :meth:`tvmopt.runtime.model.Model.run`.

The code writes the rows of new tokens behind those of the past, into buffers. A call gets fresh ones, of exactly the
length of the result: the caller's past is copied into them, stored as the code wants it, and they are the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvmopt.dims import at
from tvmopt.operators import stored
from tvmopt.runtime.roles import Roles
from tvmopt.runtime.tensors import Array, TensorInfo, aligned_empty

LENGTH_AXIS = 2
"""The axis of a cache that grows."""


class CallCaches:
    """The caches of a model; false where it has none that are buffers.

    Attributes:
        pairs: the place of an input -> that of the output.
        results: the outputs as the code returns them.
        kind: how the buffers store their numbers. dtype: the name of their elements' type.
    """

    def __init__(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], roles: Roles) -> None:
        starts, ends = [i.name for i in inputs], [o.name for o in outputs]
        caches = roles.caches if roles.in_place else ()
        self.pairs = {starts.index(c.past): ends.index(c.present) for c in caches}
        self.kind, self.dtype = roles.kept, stored.CARRIERS[roles.kept]
        self.results = tuple(self._as_stored(o) if i in self.pairs.values() else o for i, o in enumerate(outputs))

    def __bool__(self) -> bool:
        return bool(self.pairs)

    @property
    def first(self) -> int:
        """The place of the first of them among the inputs."""
        return next(iter(self.pairs))

    def _as_stored(self, info: TensorInfo) -> TensorInfo:
        shape = (*info.shape[:-1], stored.elements(info.shape[-1], self.kind))
        return replace(info, shape=shape, dtype=self.dtype)

    def types(self, inputs: Sequence[TensorInfo]) -> tuple[str, ...]:
        """The names of the types of what the code takes."""
        return tuple(self.dtype if place in self.pairs else info.dtype for place, info in enumerate(inputs))

    def fill(self, arrays: list[Array], sizes: Mapping[str, int]) -> None:
        """Put buffers that begin with the past in place of it; `sizes`: the open ones of the call."""
        for place, output in self.pairs.items():
            past, info = arrays[place], self.results[output]
            whole = aligned_empty(at(info.shape, sizes), info.numpy_dtype)
            whole[:, :, : past.shape[LENGTH_AXIS]] = stored.store(past, self.kind)
            arrays[place] = whole

    def read(self, arrays: list[Array]) -> None:
        """Put numbers of float32 in place of what the code returned."""
        if self.kind != stored.FLOAT:
            for place in self.pairs.values():
                arrays[place] = stored.load(arrays[place], self.kind)
