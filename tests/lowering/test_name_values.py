"""Functions inside functions: the numbers stay, and so does the time to compile them."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from scipy import special
from tvm import relax, tirx
from tvm.ir import Range
from tvm.s_tir.stmt import SBlock, SBlockRealize

import tvmopt
from tests.schedules.harness import machines, run
from tvmopt.lowering.name_values import name_values


def mish(bb, x):
    """Spelt out as PyTorch exports it: every intermediate used twice or more."""
    e = bb.emit(relax.op.exp(bb.emit(relax.op.negative(bb.emit(relax.op.abs(x))))))
    log = bb.emit(relax.op.log(bb.emit(relax.op.add(e, relax.const(1.0)))))
    zero = bb.emit(relax.op.equal(e, relax.const(0.0)))
    tail = bb.emit(relax.op.where(zero, e, log))
    soft = bb.emit(relax.op.add(bb.emit(relax.op.maximum(x, relax.const(0.0))), tail))
    return bb.emit(relax.op.multiply(x, bb.emit(relax.op.tanh(soft))))


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("n", [1, 7, 16, 17, 33, 1000])
def test_three_mishes_in_a_row(machine, n):
    x = (np.random.default_rng(n).standard_normal((3, n)) * 3).astype("float32")
    # 2**30 terms before: it never came back
    (y,), how = run(lambda bb, x: mish(bb, mish(bb, mish(bb, x))), [x], machine)
    want = x.astype("float64")
    for _ in range(3):
        want = want * np.tanh(np.logaddexp(0, want))
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)
    assert len(how) == 1


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("rows", [9, 16, 27])
def test_behind_a_gemm_with_a_vectorized_epilogue(machine, rows):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, 32)).astype("float32"), rng.standard_normal((32, 64)).astype("float32")
    (y,), how = run(lambda bb, x: relax.op.nn.gelu(bb.emit(relax.op.matmul(x, relax.const(w)))), [x], machine)
    z = x.astype("float64") @ w
    np.testing.assert_allclose(y, z * 0.5 * (1 + special.erf(z / np.sqrt(2))), rtol=1e-4, atol=1e-4)
    assert [(s.family, s.note) for s in how.values()] == [("gemm", "")]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("channels", [1, 4, 16])
def test_a_branch_that_is_not_taken_is_not_evaluated(machine, channels):
    """A concatenation reads its second part at negative places where the first one is wanted."""

    def body(bb, x, y):
        late = bb.emit(relax.op.permute_dims(bb.emit(relax.op.sigmoid(y)), [1, 0]))
        return relax.op.concat([x, late], 0)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((channels, 9), np.float32), rng.standard_normal((9, 16), np.float32)
    (found,), _ = run(body, [x, y], machine)
    np.testing.assert_allclose(found, np.concatenate([x, special.expit(y).T]), rtol=1e-5)


def test_what_a_branch_computes_stays_behind_its_condition():
    x, y = tirx.decl_buffer((16,), "float32", "x"), tirx.decl_buffer((20,), "float32", "y")
    at = tirx.Var("at", "int32")
    value = tirx.if_then_else(at < 4, 1.0, tirx.exp(tirx.BufferLoad(x, [at - 4])))
    axis = tirx.IterVar(Range(0, 20), at, 0)
    block = SBlock([axis], [], [], "b", tirx.BufferStore(y, value, [at]))
    loop = tirx.Var("i", "int32")
    inner = tirx.For(loop, 0, 20, tirx.ForKind.SERIAL, SBlockRealize([loop], True, block))
    root = SBlockRealize([], True, SBlock([], [], [], "root", inner))
    text = name_values(tirx.PrimFunc([x, y], root)).script()
    (line,) = (line.strip() for line in text.splitlines() if line.strip().startswith("value0 = T.if_then_else"))
    assert "T.exp(x[at - 4])" in line and line.startswith("value0 = T.if_then_else(not at < 4,")


def test_a_choice_between_two_equal_booleans():
    """TVM's passes made a byte of it, and could not store that as a boolean."""

    def build(bb, choose, x):
        turned = bb.emit(relax.op.logical_not(x))
        return bb.emit(relax.op.where(choose, turned, turned))

    x, choose = np.arange(17) % 3 == 0, np.arange(17) % 2 == 0
    (y,), _ = run(build, [choose, x])
    assert np.array_equal(y, ~x)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("n", [1, 7, 16, 17, 33])
def test_every_bfloat16_comes_out_of_an_expand_as_it_went_in(machine, n):
    """TVM: dtype mismatch on BufferStore, uint16 and bfloat16x16."""
    x = np.arange(1 << 16, dtype="uint16").reshape(-1, 1).view(ml_dtypes.bfloat16)
    (y,), _ = run(lambda bb, x: relax.op.broadcast_to(x, (1 << 16, n)), [x], machine)
    np.testing.assert_array_equal(y.view("uint16"), np.broadcast_to(x.view("uint16"), (1 << 16, n)))


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("made", ["exp", "softmax"])
def test_a_bfloat16_that_is_computed_goes_to_all_lanes(machine, made):
    """TVM: dtype mismatch on BufferStore, or, of a tensor inside the kernel, LLVM's invalid bitcast."""
    x = np.linspace(-3, 3, 12, dtype="float32").astype(ml_dtypes.bfloat16).reshape(3, 4, 1)
    wide = x.astype("float32")
    step, exact = {
        "exp": (relax.op.exp, np.exp(wide)),
        "softmax": (lambda x: relax.op.nn.softmax(x, 1), special.softmax(wide, 1)),
    }[made]
    (y,), _ = run(lambda bb, x: relax.op.broadcast_to(bb.emit(step(x)), (3, 4, 33)), [x], machine)
    np.testing.assert_allclose(y.astype("float32"), np.broadcast_to(exact, y.shape), rtol=2**-7)


@pytest.mark.parametrize("op", ["Tanh", "Erf"])
def test_functions_of_functions_of_float64(op: str) -> None:
    """Each lane of such a function reads its whole argument: six in a row took minutes, eight had no end."""
    kind, names = TensorProto.DOUBLE, [*"xabcdefgh"]
    nodes = [helper.make_node(op, [a], [b]) for a, b in pairwise(names)]
    ends = [[helper.make_tensor_value_info(n, kind, [33, 2])] for n in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", *ends)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = np.random.default_rng(0).standard_normal((33, 2))
    found = tvmopt.compile(file, records=False).model.run({"x": x})["h"]
    want = x
    for _ in nodes:
        want = np.tanh(want) if op == "Tanh" else special.erf(want)
    np.testing.assert_allclose(found, want, rtol=1e-6)
