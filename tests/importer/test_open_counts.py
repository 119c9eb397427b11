"""Operators whose counts, diagonals and depths follow from open sizes: what onnxruntime says, at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import tvmopt
from tvmopt.dims import Dim
from tvmopt.importer import fractions
from tvmopt.importer.symbols import Symbols
from tvmopt.runtime.model import Model

Feeds = dict[str, np.ndarray]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f")


HALF = """g (float[b,n] x) => (float[b,n] z) <int64 i = {1}, float two = {2.0}> {
    s = Shape(x)  count = Gather(s, i)  f = Cast<to = 1>(count)  q = Div(f, two)  z = Mul(x, q) }"""
STEPS = """g (float[b,n] x) => (float[n] z) <int64 i = {1}, int64 o = {0}, float last = {1.0}> {
    s = Shape(x)  n0 = Gather(s, i)  n1 = Sub(n0, i)  f = Cast<to = 1>(n1)  q = Div(last, f)
    a = Range(o, n0, i)  af = Cast<to = 1>(a)  z = Mul(af, q) }"""
MASK = """g (float[n,m] x) => (float[n,m] z) <int64 o = {1}> {
    s = Shape<start = 1, end = 2>(x)  cols = Squeeze(s)  p = Shape<start = 0, end = 1>(x)  rows = Squeeze(p)
    d = Sub(cols, rows)  k = Add(d, o)  z = Trilu<upper = UPPER>(x, k) }"""
BESIDE = "g (float[n,m] x) => (float[n,m] z) <int64 k = {DIAGONAL}> { z = Trilu<upper = UPPER>(x, k) }"
DOWN = """g (float[n,4] x) => (float[n,4] z) <int64 o = {1}, int64 by = {STEP}, int64[2] v = {-1,1}> {
    s = Shape<start = 0, end = 1>(x)  q = Squeeze(s)  k = Sub(q, o)  a = Range(k, by, by)
    f = Cast<to = 1>(a)  c = Reshape(f, v)  t = ReduceSum(c)  z = Mul(x, t) }"""
DEPTH = """g (int64[b] i, float[n,4] x) => (float[b,n] z) <float[2] v = {-1.0, 3.0}> {
    s = Shape<start = 0, end = 1>(x)  q = Squeeze(s)  z = OneHot(i, q, v) }"""
EYE = "g (float[n,m] x) => (float[n,m] z) { z = EyeLike<k = DIAGONAL>(x) }"
ROWS = "g (float[b,3,h] x, float[o,3,3] v) => (float[b,o,h] y) { y = Conv<pads = [1, 1]>(x, v) }"
CHOSEN = """g (float[b,4] x) => (float[b,1] z) <int64 i = {2}, int64[2] s = {-1,1}> {
    c = ai.onnx.ml.ArrayFeatureExtractor(x, i)  z = Reshape(c, s) }"""
SOFTMAX = """g (uint8[b,10] x) => (uint8[b,10] z)
    <float s = {0.1}, uint8 o = {128}, float s2 = {0.00390625}, uint8 o2 = {0}> {
    z = com.microsoft.QLinearSoftmax<axis = -1, opset = 17>(x, s, o, s2, o2) }"""

PART = """g (float[1,2,h,5] x) => (float[1,2,m,5] z)
    <int64 i = {2}, int64[1] o = {0}, int64[2] lead = {1, 2}, int64[1] last = {5}, float by = {FACTOR}> {
    s = Shape(x)  q = Gather(s, i)  f = Cast<to = 1>(q)  p = OPERATOR(f, by)  r = ROUND  n = Cast<to = 7>(r)
    u = Unsqueeze(n, o)  to = Concat<axis = 0>(lead, u, last)
    z = Resize<mode = "nearest">(x, , , to) }"""
PADDED = """g (float[b,n] x) => (float[b,m] z)
    <int64 i = {1}, int64[1] o = {0}, int64[3] no = {0, 0, 0}, float by = {32.0}> {
    s = Shape(x)  q = Gather(s, i)  f = Cast<to = 1>(q)  p = Div(f, by)  r = Ceil(p)  w = Mul(r, by)
    e = Sub(w, f)  n = Cast<to = 7>(e)  u = Unsqueeze(n, o)  to = Concat<axis = 0>(no, u)  z = Pad(x, to) }"""
SHARE = """g (float[b,n] x) => (float[b,m] z)
    <int64 i = {1}, int64[1] o = {0}, int64[1] c = {1}, float by = {0.3}, int64 least = {1}> {
    s = Shape(x)  q = Gather(s, i)  f = Cast<to = 1>(q)  p = Mul(f, by)  k = Floor(p)  h = Cast<to = 7>(k)
    l = Max(h, least)  u = Unsqueeze(l, o)  z = Slice(x, o, u, c) }"""


def part(operator: str, factor: str, rounded: str) -> str:
    return PART.replace("OPERATOR", operator).replace("FACTOR", factor).replace("ROUND", rounded)


def picture(high: int) -> Feeds:
    return {"x": normal(1, 2, high, 5)}


def wide(high: int, across: int) -> Feeds:
    return {"x": normal(high, across)}


CASES: dict[str, tuple[str, Callable[[int], Feeds]]] = {
    "half a size": (HALF, lambda n: wide(2, n)),
    "linspace": (STEPS, lambda n: wide(2, n + 1)),
    "mask beside a cache": (MASK.replace("UPPER", "1"), lambda n: wide(n, n + 5)),
    "what a mask leaves": (MASK.replace("UPPER", "0"), lambda n: wide(n + 2, n)),
    "beyond a diagonal": (BESIDE.replace("DIAGONAL", "2").replace("UPPER", "1"), lambda n: wide(n, n + 1)),
    "up to a diagonal": (BESIDE.replace("DIAGONAL", "-3").replace("UPPER", "0"), lambda n: wide(n + 1, n)),
    "downwards": (DOWN.replace("STEP", "-1"), lambda n: wide(n, 4)),
    "downwards by three": (DOWN.replace("STEP", "-3"), lambda n: wide(n + 3, 4)),
    "depth": (DEPTH, lambda n: {"i": np.array([0, n - 1, -1, n, -n - 1]), "x": normal(n, 4)}),
    "eye": (EYE.replace("DIAGONAL", "0"), lambda n: wide(n, 2 * n)),
    "eye below": (EYE.replace("DIAGONAL", "-1"), lambda n: wide(n, 3)),
    "weights of open rows": (ROWS, lambda n: {"x": normal(2, 3, 7), "v": normal(n, 3, 3)}),
    "one feature": (CHOSEN, lambda n: wide(n, 4)),
    "half as much again": (part("Mul", "1.5", "Identity(p)"), lambda n: picture(n)),
    "seven tenths, rounded up": (part("Mul", "0.7", "Ceil(p)"), lambda n: picture(n)),
    "a third": (part("Div", "3.0", "Floor(p)"), lambda n: picture(n + 2)),
    "by 1.1": (part("Div", "1.1", "Floor(p)"), lambda n: picture(n + 1)),
    "padded to 32": (PADDED, lambda n: wide(2, n)),
    "three tenths": (SHARE, lambda n: wide(2, n)),
    "quantised softmax": (SOFTMAX, lambda n: {"x": np.random.default_rng(n).integers(0, 255, (n, 10)).astype("u1")}),
}
RANGES = {"weights of open rows": {"o": "1..40@4"}}


@pytest.mark.parametrize("what", CASES)
def test_as_onnxruntime_has_it(what: str) -> None:
    import onnxruntime

    text, feeds_of = CASES[what]
    head = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 2, "com.microsoft" : 1]>\n'
    made: Any = parser.parse_model(head + text)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = Model(tvmopt.compile(made, shape=RANGES.get(what), records=False, cache=False, threads=1).artifact)
    for n in (1, 2, 3, 7, 8, 17, 33):
        feeds = feeds_of(n)
        (want,), (got,) = session.run(None, feeds), found.run(feeds).values()
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=1e-5)


def test_a_product_with_a_part_that_floats_round() -> None:
    """27 / 49 * 49 is less than 27 in float32, and is rounded down to 26: no size is said of it."""
    symbols, rows, number = Symbols(("n",)), np.array(Dim.symbol("n"), object), np.array(49.0, np.float32)
    divide, times = (helper.make_node(kind, ["a", "b"], ["c"]) for kind in ("Div", "Mul"))
    share = fractions.evaluate(divide, [rows, number], TensorProto.FLOAT, symbols)
    assert share is not None and share[()] == fractions.Part(Dim.symbol("n"), 49)
    assert fractions.evaluate(times, [share, number], TensorProto.FLOAT, symbols) is None
    twice = fractions.evaluate(times, [share, np.array(2.0, np.float32)], TensorProto.FLOAT, symbols)
    assert twice is not None and str(twice[()].above) == "2*n"
