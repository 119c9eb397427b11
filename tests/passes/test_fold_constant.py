"""Constant trees become constants, with the numbers that TVM's own evaluator gives."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand, run
from tvmopt.operators.checks import OP
from tvmopt.passes import FoldConstant
from tvmopt.passes.fold_constant import EVALUATE
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
A, B = rand(3, 1, 8), np.abs(rand(3, 7, 8, seed=1)) + 0.5
FLAGS = A > 0


def emit(bb, *calls):
    """Emit nested calls from the inside out; gives the last."""
    for call in calls:
        last = bb.emit(call)
    return last


CASES = {
    "permute_dims": lambda bb: op.permute_dims(c(B), [2, 0, 1]),
    "permute_dims reversed": lambda bb: op.permute_dims(c(B)),
    "reshape": lambda bb: op.reshape(c(B), (21, 8)),
    "squeeze": lambda bb: op.squeeze(c(A), [1]),
    "expand_dims": lambda bb: op.expand_dims(c(A), [0, 2]),
    "broadcast_to": lambda bb: op.broadcast_to(c(A), (2, 3, 7, 8)),
    "concat": lambda bb: op.concat([c(B), c(A)], axis=1),
    "stack": lambda bb: op.stack([c(B), c(B)], axis=1),
    "strided_slice": lambda bb: op.strided_slice(c(B), [1, 2], [1, -3], [2**63 - 1, 8], [2, 1]),
    "take": lambda bb: op.take(c(B), c(np.array([2, -1, 0])), axis=1, mode="wrap"),
    "tile": lambda bb: op.tile(c(A), (1, 3, 2)),
    "repeat": lambda bb: op.repeat(c(A), 3, axis=2),
    "pad": lambda bb: nn.pad(c(B), [0, 1, 2, 0, 0, 0], pad_value=3.0),
    "astype": lambda bb: op.astype(c(B), "int32"),
    "full": lambda bb: op.full((3, 4), c(np.float32(2))),
    "where": lambda bb: op.where(c(FLAGS), c(B), c(A)),
    "divide": lambda bb: op.divide(c(A), c(B)),
    "divide integers": lambda bb: op.divide(c(np.array([-7, 7, 9])), c(np.array([2, -2, 3]))),
    "power": lambda bb: op.power(c(B), c(np.float32(1.7))),
    "erf": lambda bb: op.erf(c(B)),
    "sigmoid": lambda bb: op.sigmoid(c(A)),
    "rsqrt": lambda bb: op.rsqrt(c(B)),
    "mean": lambda bb: op.mean(c(B), [-1], keepdims=True),
    "sum of all": lambda bb: op.sum(c(B)),
    "less": lambda bb: op.less(c(A), c(B)),
    "a tree": lambda bb: op.add(bb.emit(op.sqrt(bb.emit(op.add(c(B), c(np.float32(1)))))), c(A)),
    "tril, which NumPy's table lacks": lambda bb: op.tril(c(B)),
}


@pytest.mark.parametrize("name", CASES)
def test_folds_with_the_right_numbers(name):
    before = build({}, lambda bb: CASES[name](bb))
    after = FoldConstant(DecisionLog())(before)
    assert not ops(after), after.script()
    (folded,), (reference,) = run(after, []), run(before, [])
    assert folded.dtype == reference.dtype
    np.testing.assert_allclose(folded, reference, rtol=2e-6, atol=1e-7)


def test_split_folds_part_by_part():
    def body(bb, x):
        parts = bb.emit(op.split(c(B), [2, 3], axis=1))
        return tuple(op.add(x, bb.emit(parts[i])) for i in range(3))

    with pytest.raises(Exception, match="broadcast"):
        build({"x": (3, 9, 8)}, body)
    after = check_rewrite(FoldConstant, build({"x": (3, 1, 8)}, body), {"add": 3})
    assert ops(after)["split"] == 0


def test_the_shape_of_an_input_is_known():
    def body(bb, x):
        return op.add(bb.emit(op.shape_to_tensor(bb.emit(op.shape_of(x)))), c(np.array([1, 1, 1]), "int64"))

    mod = build({"x": (7, 8, 9)}, body)
    after = FoldConstant(DecisionLog())(mod)
    assert not ops(after)["shape_to_tensor"] and not ops(after)["add"]


def test_the_element_type_stays():
    half = c(B.astype("float16"))
    mod = build({"x": ((3, 7, 8), "float16")}, lambda bb, x: op.add(x, bb.emit(op.exp(half))))
    check_rewrite(FoldConstant, mod, {"add": 1}, tol=1e-2)


def test_what_depends_on_an_input_stays():
    check_rewrite(FoldConstant, build({"x": (3, 7, 8)}, lambda bb, x: op.add(bb.emit(op.exp(x)), c(A))))


def test_a_terabyte_is_declined():
    log = DecisionLog()
    mod = build({}, lambda bb: op.broadcast_to(c(A), (1 << 20, 1 << 10, 3, 1, 8)))
    FoldConstant(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_what_layers_share_stays_one_constant():
    """The same transpose of one weight is one weight; of another with equal numbers, another."""
    weights = [c(rand(9, 12)) for _ in range(2)]

    def body(bb, x):
        turned = [bb.emit(op.permute_dims(weights[i], [1, 0])) for i in (0, 0, 1)]
        return tuple(bb.emit(op.matmul(x, one)) for one in turned)

    main = FoldConstant()(build({"x": (2, 12)}, body))["main"]
    weights = [b.value.args[1].value for b in main.body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    first, same, other = (int(weight.data_ptr()) for weight in weights)
    assert first == same != other


def test_an_index_out_of_range_is_left_to_run_time():
    log = DecisionLog()
    mod = build({}, lambda bb: op.take(c(rand(1 << 17)), c(np.arange(1 << 17) + 1), axis=0))
    FoldConstant(log)(mod)
    assert [d.reason[0] for d in log] == ["2"]


def test_every_evaluator_names_an_operator():
    import tvm

    assert {f"relax.{name}" for name in EVALUATE if name != OP} <= set(tvm.ir.Op.list_op_names())
