"""The shortest way through a call: NumPy arrays whose memory the kernels read, arrays over the memory they wrote.

A call of `Model` costs some Python beside the kernels: checks, views, names. For a model of a few microseconds that is
most of the time, so models that need nothing else (no open size, no GPU, no cache in place, no type that NumPy lacks)
have this function, which knows the model's tensors when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmopt.runtime.tensors import EXTENDED, Array, TensorInfo

Call = Callable[[Callable[..., Any], Sequence[Any]], list[Array] | None]


def plain_call(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], weights: Sequence[Any], ffi: Any
) -> Call | None:
    """The function for a model on a CPU whose sizes are known; None where one of its tensors is more than an array.

    Args:
        weights: TVM's tensors, which its code takes behind the inputs. ffi: the module `tvm_ffi`.

    Returns:
        `call(main, values)`: the outputs of the code `main`, in order; None, before anything ran, where one of the
        values is no writable, contiguous, aligned array of its input's shape and dtype.
    """
    if any(i.dtype in EXTENDED or 0 in i.shape for i in (*inputs, *outputs)):
        return None
    checks = tuple((i.shape, i.numpy_dtype) for i in inputs)
    view, element, back, kind = ffi.from_dlpack, ffi.get_global_func("ffi.ArrayGetItem"), np.from_dlpack, np.ndarray
    count, behind = len(outputs), tuple(weights)

    def call(main: Callable[..., Any], values: Sequence[Any]) -> list[Array] | None:
        tensors = []
        for place, value in enumerate(values):
            shape, dtype = checks[place]
            same = type(value) is kind and (value.dtype is dtype or value.dtype == dtype) and value.shape == shape
            if not same or not value.flags.carray:
                return None
            tensors.append(view(value))
        results = main(*tensors, *behind)
        if count == 1:
            return [back(element(results, 0))]
        return [back(element(results, place)) for place in range(count)]

    return call
