"""Attention of ai.onnx at open lengths: each form has onnxruntime's numbers at every length of past and new tokens."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, run_ort, runner, value
from tvmopt.errors import UnsupportedOp
from tvmopt.importer import import_model, prepare
from tvmopt.importer.relax import to_relax

HEADS, KV_HEADS, DEPTH = 4, 2, 8
SIZES = [(0, 1), (0, 7), (1, 1), (15, 2), (16, 17), (33, 1)]
"""Lengths of past and new tokens."""

RANGES = {"b": "..2", "s": "..32", "past": "..64"}


def attention(mask: str = "", past: bool = True, flat: bool = True, **attrs):
    """One node, its sizes open; `mask`: "flags", "numbers" or none."""
    depth = {n: HEADS if n == "q" else KV_HEADS for n in "qkv"}
    inputs = [value(n, ("b", "s", c * DEPTH) if flat else ("b", c, "s", DEPTH)) for n, c in depth.items()]
    names = ["q", "k", "v", "m" if mask else "", *(["pk", "pv"] if past else [])]
    if mask:
        kind = TensorProto.BOOL if mask == "flags" else TensorProto.FLOAT
        inputs.append(value("m", ("b", 1, "s", "past + s" if past else "s"), kind))
    if past:
        inputs += [value(n, ("b", KV_HEADS, "past", DEPTH)) for n in ("pk", "pv")]
    if flat:
        attrs |= {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    outputs = ["y", "tk", "tv"] if past else ["y"]
    node = helper.make_node("Attention", names, outputs, name="attention", **attrs)
    return model([node], inputs, [value(o, None) for o in outputs], opset=24)


def drawn(imported, past: int, new: int):
    """Values of the inputs at these lengths; flags hide some keys, but never the one that stands where its query is."""
    rng, sizes, made = np.random.default_rng(past + new), {"b": 2, "s": new, "past": past}, {}
    for spec in imported.inputs:
        shape = [d if isinstance(d, int) else d.at(sizes) for d in spec.shape]
        made[spec.name] = rng.standard_normal(shape).astype("float32")
        if spec.name == "m" and str(spec.dtype) == "bool":
            made["m"] = made["m"] > -0.5
            made["m"] |= np.arange(shape[3]) == np.arange(new)[:, None] + shape[3] - new
    return made


@pytest.mark.parametrize(
    "form",
    [
        {"is_causal": 1}, {"mask": "flags", "is_causal": 1}, {"past": False, "is_causal": 1},
        {"mask": "numbers", "flat": False, "scale": 0.5}, {"flat": False, "is_causal": 1, "softcap": 2.0},
        {"is_causal": 1, "softcap": -1.5},
    ],
    ids=str,
)  # fmt: skip
def test_every_length_has_the_numbers_of_onnxruntime(form):
    made, past = attention(**form), form.get("past", True)
    imported = to_relax(prepare(made, RANGES if past else {n: RANGES[n] for n in "bs"}))
    run = runner(imported)
    for before, new in SIZES if past else [(0, n) for _, n in SIZES]:
        inputs = drawn(imported, before, new)
        for ours, theirs in zip(run(inputs), run_ort(made, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_a_query_without_keys_gives_zeros():
    imported = to_relax(prepare(attention(mask="flags", is_causal=1), RANGES))
    inputs = drawn(imported, 5, 3)
    inputs["m"][1, 0, 1] = False
    run = runner(imported)
    y = run(inputs)[0]
    assert (y[1, 1] == 0).all() and (y[1, 0] != 0).any() and np.isfinite(y).all()
    inputs["v"][1] = inputs["pv"][1] = np.nan  # NaN of a value that is seen is no row of zeros
    assert np.isnan(run(inputs)[0][1, 0]).all()


def test_an_open_batch_beside_a_known_one():
    """Queries have as many as the keys: other calls would read keys that are not there."""
    inputs = [value("q", ("b", 9, 4, 8)), value("k", (2, 3, 6, 8)), value("v", (2, 3, 6, 8))]
    made = model([helper.make_node("Attention", ["q", "k", "v"], ["y"])], inputs, [value("y", None)], opset=24)
    assert next(i.shape for i in import_model(made).inputs) == (2, 9, 4, 8)


def test_heads_that_an_open_number_of_queries_share():
    """Their groups would be of an open size, which TVM's code generator cannot emit."""
    inputs = [value("q", (2, "h", 4, 8)), value("k", (2, 3, 6, 8)), value("v", (2, 3, 6, 8))]
    made = model([helper.make_node("Attention", ["q", "k", "v"], ["y"])], inputs, [value("y", None)], opset=24)
    with pytest.raises(UnsupportedOp, match="how many heads share"):
        import_model(made)
