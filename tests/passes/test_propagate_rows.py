"""The reshape behind a convolution of one row goes below what follows it."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.passes import PropagateRows

op, nn, c = relax.op, relax.op.nn, relax.const
ROW = {"x": (1, 3, 1, 9)}


def convolution(bb, x, **layout):
    return bb.emit(nn.conv2d(x, c(rand(7, 3, 1, 3)), padding=(0, 1), **layout))


def last_reshape(mod):
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    return str(bindings[-1].value.op) if bindings else ""


@pytest.mark.parametrize("bias", [(1, 7, 1), (7, 1), (9,), (1, 7, 9), ()])
def test_bias_and_relu(bias):
    def body(bb, x):
        row = bb.emit(op.reshape(convolution(bb, x), (1, 7, 9)))
        return nn.relu(bb.emit(op.add(row, c(rand(*bias)))))

    after = check_rewrite(PropagateRows, build(ROW, body), {"nn.conv2d": 1, "add": 1, "nn.relu": 1, "reshape": 1})
    assert "reshape" in last_reshape(after)


def unchanged(body, inputs=ROW):
    mod = build(inputs, body)
    assert ops(PropagateRows()(mod)) == ops(mod) and "reshape" not in last_reshape(PropagateRows()(mod))


def test_an_operand_that_is_no_constant_stays():
    inputs = {**ROW, "z": (1, 7, 9)}
    unchanged(lambda bb, x, z: op.add(bb.emit(op.reshape(convolution(bb, x), (1, 7, 9))), z), inputs)


def test_a_reshape_that_regroups_stays():
    unchanged(lambda bb, x: nn.relu(bb.emit(op.reshape(convolution(bb, x), (1, 9, 7)))))


def test_a_result_with_other_readers_stays():
    def body(bb, x):
        row = bb.emit(op.reshape(convolution(bb, x), (1, 7, 9)))
        return op.add(bb.emit(nn.relu(row)), row)

    mod = build(ROW, body)
    assert ops(PropagateRows()(mod))["reshape"] == 1


def test_channels_last_is_left_to_the_transposes():
    layout = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

    def body(bb, x):
        y = bb.emit(nn.conv2d(x, c(rand(7, 1, 3, 3)), padding=(0, 1), **layout))
        return nn.relu(bb.emit(op.reshape(y, (1, 9, 7))))

    unchanged(body, {"x": (1, 1, 9, 3)})
