"""A GEMM that is split at once becomes one GEMM a part."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import SplitMatmul
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def split_gemm(bb, x, width, sections, axis=2, bias=True):
    """The parts of a GEMM's result."""
    y = bb.emit(op.matmul(x, c(rand(int(x.ty.shape[-1]), width))))
    y = bb.emit(op.add(y, c(rand(1 if bias == "one" else width)))) if bias else y
    parts = bb.emit(op.split(y, sections, axis=axis))
    return y, tuple(bb.emit(parts[i]) for i in range(len(parts.ty.fields)))


@pytest.mark.parametrize("rows", [32, 33, 47])
@pytest.mark.parametrize("sections, bias", [(3, True), ([6, 18], True), (2, False), (4, "one")])
def test_parts(rows, sections, bias):
    mod = build({"x": (1, rows, 9)}, lambda bb, x: split_gemm(bb, x, 24, sections, bias=bias)[1])
    parts = len(sections) + 1 if isinstance(sections, list) else sections
    check_rewrite(SplitMatmul, mod, {"matmul": parts, **({"add": parts} if bias else {})})


def test_epilogues_follow_their_part():
    def body(bb, x):
        gate, up = split_gemm(bb, x, 16, 2)[1]
        return op.multiply(bb.emit(nn.silu(gate)), up)

    expected = {"matmul": 2, "add": 2, "nn.silu": 1, "multiply": 1}
    check_rewrite(SplitMatmul, build({"x": (2, 31, 8)}, body), expected)


@pytest.mark.parametrize("rows, shared, reason", [(31, False, "2"), (40, True, "1")])
def test_refusals(rows, shared, reason):
    def body(bb, x):
        y, parts = split_gemm(bb, x, 12, 3)
        return (*parts, nn.relu(y)) if shared else parts

    log, mod = DecisionLog(), build({"x": (1, rows, 8)}, body)
    check_rewrite(SplitMatmul, mod)
    SplitMatmul(log)(mod)
    assert [d.reason[0] for d in log] == [reason]


def test_a_split_of_rows_stays():
    check_rewrite(SplitMatmul, build({"x": (1, 40, 8)}, lambda bb, x: split_gemm(bb, x, 12, 2, axis=1)[1]))


def test_a_weight_that_is_an_input_stays():
    def body(bb, x, w):
        parts = bb.emit(op.split(bb.emit(op.matmul(x, w)), 2, axis=1))
        return bb.emit(parts[0]), bb.emit(parts[1])

    check_rewrite(SplitMatmul, build({"x": (40, 8), "w": (8, 12)}, body))
