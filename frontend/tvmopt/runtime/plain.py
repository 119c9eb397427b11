"""The shortest way through a call: NumPy arrays whose memory the kernels read, arrays over the memory they wrote.

A call of `Model` costs some Python beside the kernels: checks, views, names. For a model of a few microseconds that is
most of the time, so models that need nothing else (no GPU, no cache in place, no type that NumPy lacks) have this
function, which knows the model's tensors when it is made, and of open sizes those that a call had before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmopt.dims import is_open
from tvmopt.runtime.tensors import EXTENDED, Array, TensorInfo

Shape = tuple[int, ...]
Call = Callable[[Callable[..., Any], Sequence[Any]], list[Array] | None]

MOST = 4096
"""Sets of shapes that are remembered."""


class Fitting:
    """Shapes of the inputs, in order, that a model was found to take: the static ones, or those of earlier calls.

    A call of other sizes has them checked in full, which takes as long as a small model.
    """

    def __init__(self, inputs: Sequence[TensorInfo]) -> None:
        shapes = tuple(i.shape for i in inputs)
        self.known: set[tuple[Shape, ...]] = set()
        if not any(map(is_open, shapes)):
            self.add(shapes)

    def add(self, shapes: tuple[Shape, ...]) -> None:
        """Remember shapes that fit; not of arrays without elements, whose memory no kernel may be shown."""
        if any(0 in shape for shape in shapes):
            return
        if len(self.known) >= MOST:
            self.known.clear()
        self.known.add(shapes)


def plain_call(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], weights: Sequence[Any], fitting: Fitting, ffi: Any
) -> Call | None:
    """The function for a model on a CPU; None where one of its tensors is more than an array.

    Args:
        weights: TVM's tensors, which its code takes behind the inputs. ffi: the module `tvm_ffi`.

    Returns:
        `call(main, values)`: the outputs of the code `main`, in order; None, before anything ran, where one of the
        values is no writable, contiguous, aligned array of its input's dtype, or their shapes are not known to fit.
    """
    if any(i.dtype in EXTENDED for i in (*inputs, *outputs)):
        return None
    dtypes, known = tuple(i.numpy_dtype for i in inputs), fitting.known
    view, element, back, kind = ffi.from_dlpack, ffi.get_global_func("ffi.ArrayGetItem"), np.from_dlpack, np.ndarray
    count, behind = len(outputs), tuple(weights)

    def call(main: Callable[..., Any], values: Sequence[Any]) -> list[Array] | None:
        tensors, shapes = [], []
        for place, value in enumerate(values):
            dtype = dtypes[place]
            same = type(value) is kind and (value.dtype is dtype or value.dtype == dtype)
            if not same or not value.flags.carray:
                return None
            shapes.append(value.shape)
            tensors.append(view(value))
        if (*shapes,) not in known:
            return None
        results = main(*tensors, *behind)
        if count == 1:
            return [back(element(results, 0))]
        return [back(element(results, place)) for place in range(count)]

    return call
