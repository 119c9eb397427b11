"""ScatterElements on a GPU: TVM's kernel starts its own threads, and stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, pipelined

COMBINE = {"update": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [*(("float32", reduction) for reduction in COMBINE), *((d, "add") for d in ("float64", "float16", "int64")),
     ("float16", "max"), ("bfloat16", "update")],
)  # fmt: skip
@pytest.mark.parametrize(("data", "indices", "axis"), [((1,), (1,), 0), ((9,), (3,), 0), ((4, 300), (4, 20), 1)])
def test_scatter_elements(
    data: tuple[int, ...], indices: tuple[int, ...], axis: int, dtype: str, reduction: str
) -> None:
    x, values = array(data, dtype, 4), array(indices, dtype, 4, 1)
    rng = np.random.default_rng(2)
    at = np.argsort(rng.random((*indices[:axis], data[axis])), -1)[..., : indices[-1]].astype("int64")
    at -= (at % 2) * data[axis]  # half of them counted from the end

    def build(bb: relax.BlockBuilder, *given: relax.Expr) -> relax.Expr:
        return relax.op.scatter_elements(*given, axis, reduction)

    out, _, used = pipelined(build, [x, at, values], "fp32")
    assert used == ["dlight.Fallback"]
    combine = COMBINE[reduction]
    old = np.take_along_axis(x, at % data[axis], axis)
    exact = x.copy()
    np.put_along_axis(exact, at % data[axis], values if combine is None else combine(old, values), axis)
    np.testing.assert_array_equal(out, exact)
