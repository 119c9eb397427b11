"""Einsum is matrix products of pairs; the other forms stay right."""

import numpy as np
import pytest
from onnx import helper

from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.importer import import_model


@pytest.mark.parametrize(
    "equation, shapes, products",
    [
        ("bhid,bhjd->bhij", [(2, 3, 7, 8), (2, 3, 9, 8)], 1),
        ("b g h i j, b g h j d -> b g i h d", [(1, 2, 3, 5, 7), (1, 2, 3, 7, 4)], 1),
        ("ik,kj->ji", [(3, 4), (4, 5)], 1),
        ("abc,cbd->da", [(2, 3, 4), (4, 3, 5)], 1),
        ("i,i->", [(7,), (7,)], 1),
        ("i,j->ij", [(3,), (4,)], 0),
        ("bi,bj->jbi", [(2, 3), (2, 5)], 0),
        ("ij,k->ik", [(3, 4), (5,)], 0),  # j and, of the next, k are summed before the product
        ("ijl,jk->ik", [(3, 4, 6), (4, 5)], 1),
        ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 6)], 2),
        ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)], 1),
        ("a,b,c->cba", [(2,), (3,), (4,)], 0),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (2, 1, 4, 5)], 1),
        ("...i,ij->...j", [(2, 3, 4), (4, 5)], 1),
        ("...i,...i->...", [(2, 3, 4), (2, 3, 4)], 1),
        ("ij,jk", [(3, 4), (4, 5)], 1),
        ("ba,cb", [(3, 4), (5, 3)], 1),  # the result's letters in the alphabet's order
        ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 5)], 0),  # broadcast: TVM's
        ("ii,ij->ij", [(3, 3), (3, 4)], 0),  # a diagonal: TVM's
    ],
)
def test_einsum(equation, shapes, products):
    names = [f"x{i}" for i in range(len(shapes))]
    made = model(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        [value(n, s) for n, s in zip(names, shapes, strict=True)],
        [value("y", None)],
    )
    imported = import_model(made)
    assert str(imported.module.script()).count("R.matmul(") == products
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype("float32") for n, s in zip(names, shapes, strict=True)}
    np.testing.assert_allclose(run_relax(imported, feeds)[0], run_ort(made, feeds)[0], rtol=1e-5, atol=1e-5)
