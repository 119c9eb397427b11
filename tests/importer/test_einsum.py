"""Einsum of two operands is a matrix product; the other forms stay right."""

import numpy as np
import pytest
from onnx import helper
from onnx_check import model, run_ort, run_relax, value

from tvmopt.importer import import_model


@pytest.mark.parametrize(
    "equation, a, b, products",
    [
        ("bhid,bhjd->bhij", (2, 3, 7, 8), (2, 3, 9, 8), 1),
        ("b g h i j, b g h j d -> b g i h d", (1, 2, 3, 5, 7), (1, 2, 3, 7, 4), 1),
        ("ik,kj->ji", (3, 4), (4, 5), 1),
        ("abc,cbd->da", (2, 3, 4), (4, 3, 5), 1),
        ("i,i->", (7,), (7,), 1),
        ("i,j->ij", (3,), (4,), 0),
        ("ij,k->ik", (3, 4), (5,), 0),
    ],
)
def test_einsum(equation, a, b, products):
    made = model(
        [helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)],
        [value("a", a), value("b", b)],
        [value("y", None)],
    )
    imported = import_model(made)
    assert str(imported.module.script()).count("R.matmul(") == products
    rng = np.random.default_rng(0)
    feeds = {"a": rng.standard_normal(a).astype("float32"), "b": rng.standard_normal(b).astype("float32")}
    np.testing.assert_allclose(run_relax(imported, feeds)[0], run_ort(made, feeds)[0], rtol=1e-5, atol=1e-5)
