"""One reshape of a chain, none of an identity."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import CancelReshapes

op, nn = relax.op, relax.op.nn

CHAINS = {
    "two reshapes": lambda e, x: e(op.reshape(e(op.reshape(x, (14, 9))), (7, 18))),
    "expand and squeeze": lambda e, x: e(op.squeeze(e(op.expand_dims(x, [1, 2])), [1])),
    "flatten": lambda e, x: e(op.reshape(e(op.flatten(x)), (9, 14))),
    "a transpose of a unit axis": lambda e, x: e(op.permute_dims(e(op.expand_dims(x, [1])), [0, 2, 1, 3])),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    mod = build({"x": (2, 7, 9)}, lambda bb, x: nn.relu(CHAINS[name](bb.emit, x)))
    check_rewrite(CancelReshapes, mod, {"reshape": 1, "nn.relu": 1})


def test_there_and_back():
    def body(bb, x):
        return nn.relu(bb.emit(op.reshape(bb.emit(op.reshape(x, (126,))), (2, 7, 9))))

    check_rewrite(CancelReshapes, build({"x": (2, 7, 9)}, body), {"nn.relu": 1})


def test_a_shared_middle_stays_for_its_other_user():
    def body(bb, x):
        a = bb.emit(op.reshape(x, (126,)))
        return nn.relu(bb.emit(op.reshape(a, (14, 9)))), op.exp(a)

    check_rewrite(CancelReshapes, build({"x": (2, 7, 9)}, body), {"reshape": 2, "nn.relu": 1, "exp": 1})


def test_a_transpose_that_moves_data_stays():
    def body(bb, x):
        return op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1])), (126,))

    check_rewrite(CancelReshapes, build({"x": (2, 7, 9)}, body))


def test_an_operator_between_stays():
    def body(bb, x):
        return op.reshape(bb.emit(nn.relu(bb.emit(op.reshape(x, (126,))))), (2, 7, 9))

    check_rewrite(CancelReshapes, build({"x": (2, 7, 9)}, body))
