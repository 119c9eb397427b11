"""Products of packed weights whose number of rows is open: one kernel against float64 at every number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt import api
from tvmopt.operators.packed_product import Packing, matrix
from tvmopt.runtime.model import Model


@pytest.mark.parametrize(
    ("bits", "k", "n", "group", "zeros", "batch"),
    [
        (4, 96, 80, 32, False, False),
        (4, 64, 33, 16, True, True),
        (8, 40, 64, 16, True, False),
        (2, 64, 70, 32, False, True),
    ],
)
def test_every_number_of_rows(bits: int, k: int, n: int, group: int, zeros: bool, batch: bool) -> None:
    generator = np.random.default_rng(bits)
    packing = Packing(k, n, bits, group)
    codes = generator.integers(0, 256, (n, packing.groups, group * bits // 8)).astype(np.uint8)
    scales = generator.uniform(0.01, 0.1, (n, packing.groups)).astype(np.float32)
    weights = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales.ravel(), "s")]
    points = None
    if zeros:
        points = generator.integers(0, 2**bits, (n, packing.groups))
        per = 8 // bits
        padded = np.zeros((n, -(-packing.groups // per) * per), np.uint8)
        padded[:, : packing.groups] = points
        shifts = np.arange(per) * bits
        packed = (padded.reshape(n, -1, per) << shifts).sum(-1).astype(np.uint8)
        weights.append(numpy_helper.from_array(packed.ravel(), "z"))
    node = helper.make_node(
        "MatMulNBits", ["x", *(w.name for w in weights)], ["y"], domain="com.microsoft",
        K=k, N=n, bits=bits, block_size=group,
    )  # fmt: skip
    shape = ["batch", "rows", k] if batch else ["rows", k]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, [*shape[:-1], n])], weights
    )
    sizes = {"rows": ("1..40",), **({"batch": ("1..3",)} if batch else {})}
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = api.compile(helper.make_model(graph, opset_imports=opsets, ir_version=10), verify=False, shape=sizes)
    kernels = {kernel.family for kernel in made.report.kernels}
    assert "packed" in kernels
    assert made.artifact.manifest.weight_bytes < 4 * k * n  # not unpacked
    model = Model(made.artifact)
    exact = matrix(packing, codes, scales, None if points is None else points.astype(np.float32)).astype(np.float64)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33):
        for samples in (1, 3) if batch else (1,):
            x = generator.standard_normal((samples, rows, k) if batch else (rows, k)).astype(np.float32)
            wanted = x.astype(np.float64) @ exact
            np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max() * k**0.5)
