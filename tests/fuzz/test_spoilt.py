"""The judge on ONNX's node tests without a compile: exact outputs are right, spoilt ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from fuzz.cases import cases, in_type
from fuzz.inputs import feeds_of
from tvmopt.analysis.judge import Judge, Truth

Array = np.ndarray[Any, Any]
PARTS = 6


def outputs(model: Any, truth: Truth) -> dict[str, Array]:
    """What the oracle has, in the types that the model declares."""
    kinds = {o.name: helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type) for o in model.graph.output}
    exact = {n: truth.exact[n] for n in truth.names}
    return {n: a.astype(kinds[n]) if a.dtype.kind == "f" else a for n, a in exact.items()}


def spoilt(right: Array, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """An output with 3 % too much, with one number that is far off, or with one integer that is a step off."""
    if not right.size:
        return
    at = int(rng.integers(right.size))
    if right.dtype == np.float32 and np.isfinite(right).all() and np.abs(right).max() > 0:
        one = right.copy()
        one.reshape(-1)[at] += 0.3 * np.abs(right).max()
        yield "element", one
        if np.count_nonzero(right) >= 64:
            yield "share", right * np.float32(1.03)
    elif right.dtype.kind in "iub":
        one = right.copy()
        one.reshape(-1)[at] = one.reshape(-1)[at] ^ 1
        yield "step", one


@pytest.mark.parametrize("part", range(PARTS))
def test_spoilt_outputs_are_refused(part: int) -> None:
    tried = 0
    for number, test in list(enumerate(cases()))[part :: 5 * PARTS]:
        model = in_type(test, TensorProto.FLOAT, "outside")
        what = f"{number} {model.graph.node[0].op_type}"
        try:
            feeds = feeds_of(model, "normal", number)
            judge = Judge(model)
            truth = judge.truth(feeds)
            right = outputs(model, truth)
        except Exception:  # tests of sequences, strings, and of inputs that random numbers do not fit
            continue
        assert judge(truth, right).ok, what
        for name, array in right.items():
            for how, wrong in spoilt(array, np.random.default_rng(number)):
                tried += 1
                assert not judge(truth, {**right, name: wrong}).ok, f"{what}: {how} of {name}"
    assert tried > 10
