"""Products of packed weights whose number of rows is open: one kernel against float64 at every number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt import api
from tvmopt.operators.packed_product import Packing, matrix
from tvmopt.runtime.model import Model
from tvmopt.schedules.cpu.packed.many_rows import BLOCK
from tvmopt.targets import Machine


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
    model, exact, weight_bytes = compiled(packing, zeros, generator, "cpu", "1..40", batch)
    assert weight_bytes < 4 * k * n  # not unpacked
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33):
        for samples in (1, 3) if batch else (1,):
            x = generator.standard_normal((samples, rows, k) if batch else (rows, k)).astype(np.float32)
            wanted = x.astype(np.float64) @ exact
            np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max() * k**0.5)


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3"])
@pytest.mark.parametrize(
    ("bits", "k", "n", "group", "zeros"),
    [
        (4, 600, 130, 32, False),  # three pieces of a column, the last one shorter, and a panel that begins early
        (4, 300, 65, 256, True),
        (4, 512, 64, 128, False),
        (8, 270, 33, 16, True),
        (2, 257, 70, 64, True),
    ],
)
def test_many_rows_of_a_column_in_pieces(bits: int, k: int, n: int, group: int, zeros: bool, target: str) -> None:
    """Rows around a register tile and around a block of them; zeros as scales; infinite numbers stay in their row."""
    generator = np.random.default_rng(k)
    packing = Packing(k, n, bits, group)
    model, exact, _ = compiled(packing, zeros, generator, target, "1..500")
    for rows in (8, 9, 10, 11, 12, 13, 31, 32, 127, 128, 129, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7):
        x = generator.standard_normal((rows, k)).astype(np.float32)
        wanted = x.astype(np.float64) @ exact
        np.testing.assert_allclose(model(x), wanted, rtol=0, atol=1e-6 * np.abs(wanted).max() * k**0.5)
        assert not model(x)[:, 1].any()  # the column whose scales are zeros
    x[3, 5], x[rows - 1, k - 1], x[8] = np.inf, np.nan, 1e37
    with np.errstate(all="ignore"):
        wanted, got = x.astype(np.float64) @ exact, model(x)
    np.testing.assert_array_equal(np.isnan(got[3]), np.isnan(wanted[3]))
    np.testing.assert_array_equal(np.isposinf(got[3]), np.isposinf(wanted[3]))
    assert np.isnan(got[-1]).all()
    assert np.isfinite(np.delete(got, [3, 8, rows - 1], axis=0)).all()
    fine = np.abs(wanted[8]) < 1e38
    np.testing.assert_allclose(got[8][fine], wanted[8][fine], rtol=1e-4, atol=1e33)


@pytest.mark.parametrize("level", [0, 4])
def test_few_columns_on_many_cores(level: int) -> None:
    """Threads share the rows, too: numbers of rows that fill some of the parts, all of them, or one in part."""
    generator, packing = np.random.default_rng(level), Packing(300, 40, 4, 32)
    model, exact, _ = compiled(packing, False, generator, "cpu", "1..500", level=level, threads=7)
    x = generator.standard_normal((500, 300)).astype(np.float32)
    wanted = x.astype(np.float64) @ exact
    allowed = (2e-6 if level == 0 else 2e-2) * np.abs(wanted).max()
    every = model(x)
    np.testing.assert_allclose(every, wanted, rtol=0, atol=allowed)
    for rows in (1, 2, 8, 9, 12, 13, 83, 84, 85, 193, 499):
        np.testing.assert_allclose(model(x[:rows]), every[:rows], rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("rows", "most"), [(1, 1.6), (8, 1.2), (128, 1.05), (400, 1.05)])
def test_what_a_call_executes_is_counted(rows: int, most: float) -> None:
    """Multiply-adds, and what decodes: each weight once above 8 rows and up to 192."""
    packing = Packing(256, 64, 4, 32)
    kernels = compiled(packing, False, np.random.default_rng(0), "cpu", f"1..500@{rows}")[0].manifest.report["kernels"]
    (flops,) = (kernel["flops"] for kernel in kernels if kernel["family"] == "packed")
    assert 1 <= flops / (2 * rows * 256 * 64) <= most


def compiled(
    packing: Packing,
    zeros: bool,
    generator: Any,
    target: str | Machine,
    rows: str,
    batch: bool = False,
    level: int = 0,
    threads: int | None = None,
) -> tuple[Model, Any, int]:
    """A product of `rows` rows, its matrix in float64, and the bytes of its weights; the scales of column 1 are 0."""
    k, n, bits, group = packing.k, packing.n, packing.bits, packing.group
    codes = generator.integers(0, 256, (n, packing.groups, group * bits // 8)).astype(np.uint8)
    scales = generator.uniform(0.01, 0.1, (n, packing.groups)).astype(np.float32)
    scales[1] = 0
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
        K=k, N=n, bits=bits, block_size=group, accuracy_level=level,
    )  # fmt: skip
    shape = ["batch", "rows", k] if batch else ["rows", k]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, [*shape[:-1], n])], weights
    )
    sizes = {"rows": (rows,), **({"batch": ("1..3",)} if batch else {})}
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    made = api.compile(proto, verify=False, shape=sizes, target=target, threads=threads)
    assert "packed" in {kernel.family for kernel in made.report.kernels}
    exact = matrix(packing, codes, scales, None if points is None else points.astype(np.float32)).astype(np.float64)
    return Model(made.artifact), exact, made.artifact.manifest.weight_bytes
