"""Maximum and minimum over any axes that start from infinity - what the row programs leave over.

TVM starts a maximum of floats from the lowest finite number, so the maximum of a row of -inf (a fully
masked row of attention scores) is -3.4e38, and a softmax written out by hand turns into NaN behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tvmopt.targets import Machine


def _extreme(highest: bool) -> Callable[[relax.BlockBuilder, relax.Call, Machine], Any]:
    kind = "max" if highest else "min"

    def fold(data: Any, axes: list[int], keepdims: bool) -> Any:
        shape = list(data.shape)
        reduced = {a: te.reduce_axis((0, shape[a]), name=f"k{a}") for a in axes}
        combine = te.comm_reducer(
            (lambda a, b: tirx.Max(a, b)) if highest else (lambda a, b: tirx.Min(a, b)),
            lambda dtype: tirx.infinity(dtype) * tirx.const(-1 if highest else 1, dtype),
            name=kind,
        )
        out = [1 if i in reduced else s for i, s in enumerate(shape) if keepdims or i not in reduced]

        def one(*index: Any) -> Any:
            places = iter(index)
            where = []
            for i in range(len(shape)):
                if i in reduced:
                    where.append(reduced[i])
                    if keepdims:
                        next(places)
                else:
                    where.append(next(places))
            return combine(data(*where), axis=list(reduced.values()))

        return te.compute(out, one, name=kind)

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        x = call.args[0]
        if str(x.ty.dtype) not in ("float32", "float64", "float16") or x.ty.shape is None:
            return None
        rank = len(x.ty.shape)
        axes = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
        if not list(axes):
            return None
        return bb.call_te(fold, x, sorted(axes), bool(call.attrs.keepdims), primfunc_name_hint=kind)

    return lowering


LOWERS = {"relax.max": _extreme(True), "relax.min": _extreme(False)}
