"""Transposes travel only where they may, and only if it pays."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand, run
from tvmopt.importer.sizes import variable
from tvmopt.passes import CancelReshapes, PropagateTransposes
from tvmopt.passes.permute import compose, groups, identity, inverse, moves_data, reshape_of_permuted
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
NCHW = [0, 3, 1, 2]


@pytest.mark.parametrize("keep", [True, False])
def test_mean_over_the_image(keep):
    def body(bb, x):
        return op.mean(bb.emit(op.permute_dims(x, NCHW)), [2, 3], keepdims=keep)

    expected = {"mean": 1, "permute_dims": 1} if keep else {"mean": 1}
    check_rewrite(PropagateTransposes, build({"x": (1, 7, 9, 8)}, body), expected)


def test_inverse_transposes_cancel():
    def body(bb, x):
        return nn.relu(bb.emit(op.permute_dims(bb.emit(op.permute_dims(x, NCHW)), [0, 2, 3, 1])))

    check_rewrite(PropagateTransposes, build({"x": (2, 3, 4, 5)}, body), {"nn.relu": 1})


def test_two_transposes_become_one():
    def body(bb, x):
        return op.permute_dims(bb.emit(op.permute_dims(x, [1, 0, 2])), [0, 2, 1])

    check_rewrite(PropagateTransposes, build({"x": (7, 8, 9)}, body), {"permute_dims": 1})


def test_a_constant_operand_is_transposed_now():
    def body(bb, x):
        return op.add(bb.emit(op.permute_dims(x, NCHW)), c(rand(1, 8, 7, 9)))

    check_rewrite(PropagateTransposes, build({"x": (1, 7, 9, 8)}, body), {"add": 1, "permute_dims": 1})


def test_where_with_a_broadcast_mask():
    def body(bb, x, m):
        t = bb.emit(op.permute_dims(x, NCHW))
        u = bb.emit(op.where(bb.emit(op.permute_dims(m, NCHW)), t, c(np.float32(0))))
        return op.permute_dims(u, [0, 2, 3, 1])

    mod = build({"x": (1, 7, 9, 8), "m": ((1, 7, 9, 1), "bool")}, body)
    check_rewrite(PropagateTransposes, mod, {"where": 1})


def test_argmax_and_softmax_over_channels():
    def body(bb, x):
        t = bb.emit(nn.softmax(bb.emit(op.permute_dims(x, NCHW)), axis=1))
        return op.argmax(t, axis=1, keepdims=True)

    mod = build({"x": (1, 5, 6, 9)}, body)
    check_rewrite(PropagateTransposes, mod, {"nn.softmax": 1, "argmax": 1, "permute_dims": 1})


def test_an_untransposed_operand_stops_it():
    def body(bb, x, y):
        return op.add(bb.emit(op.permute_dims(x, NCHW)), y)

    log = DecisionLog()
    mod = build({"x": (1, 7, 9, 8), "y": (1, 8, 7, 9)}, body)
    check_rewrite(PropagateTransposes, mod)
    PropagateTransposes(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_an_untransposed_operand_is_worth_it_when_one_cancels_below():
    def body(bb, x, y):
        t = bb.emit(op.add(bb.emit(op.permute_dims(x, NCHW)), y))
        return op.permute_dims(bb.emit(nn.relu(t)), [0, 2, 3, 1])

    mod = build({"x": (1, 7, 9, 8), "y": (1, 8, 7, 9)}, body)
    check_rewrite(PropagateTransposes, mod, {"permute_dims": 1, "add": 1, "nn.relu": 1})


def test_softmax_stays_innermost():
    mod = build({"x": (2, 7, 9)}, lambda bb, x: nn.softmax(bb.emit(op.permute_dims(x, [0, 2, 1])), axis=-1))
    check_rewrite(PropagateTransposes, mod)


def test_layer_norm_stays_innermost():
    def body(bb, x):
        return nn.layer_norm(bb.emit(op.permute_dims(x, [0, 2, 1])), c(rand(7)), c(rand(7)), axes=[-1])

    check_rewrite(PropagateTransposes, build({"x": (2, 7, 9)}, body))


def test_a_flatten_that_mixes_axes_stays():
    mod = build({"x": (1, 7, 7, 8)}, lambda bb, x: op.reshape(bb.emit(op.permute_dims(x, NCHW)), (1, 8 * 49)))
    check_rewrite(PropagateTransposes, mod)


@pytest.mark.parametrize("unit", [2, 0])
def test_an_axis_of_one_beside_an_open_length(unit):
    """What a 1-d convolution of channels first becomes; a transpose that only moves the 1 is for CancelReshapes."""
    n = variable("n")

    def body(bb, x):
        row = [2, 8, n]
        wide = bb.emit(op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1])), [*row[:unit], 1, *row[unit:]]))
        back = [0, 2, 3, 1] if unit else [0, 1, 3, 2]
        return nn.relu(bb.emit(op.permute_dims(wide, back)))

    mod = build({"x": (2, n, 8)}, body)
    both = lambda log: lambda m: CancelReshapes(log)(PropagateTransposes(log)(m))  # noqa: E731
    made = check_rewrite(both, mod, {"nn.relu": 1, "reshape": 2 if unit else 1}, numbers=False)
    for length in (1, 2, 8, 9, 33):
        x = rand(2, length, 8)
        np.testing.assert_array_equal(run(made, [x])[0], run(mod, [x])[0])


def test_a_slice_that_lies_inside_an_open_axis():
    """Of four frames of n TVM says min(4, n): the rewrite ended in a TypeError."""
    n = variable("n")

    def frames(bb, x):
        rows = bb.emit(op.permute_dims(x, [0, 2, 1]))
        return op.permute_dims(bb.emit(op.strided_slice(rows, [1], [0], [4], [1], assume_inbound=True)), [0, 2, 1])

    mod = build({"x": (2, 3, n)}, frames)
    made = check_rewrite(PropagateTransposes, mod, {"strided_slice": 1}, numbers=False)
    for length in (4, 7, 8, 33):
        x = rand(2, 3, length)
        np.testing.assert_array_equal(run(made, [x])[0], x[..., :4])


def test_an_open_length_that_a_reshape_merges_stays():
    n = variable("n")
    flat = lambda bb, x: op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1])), (1, 8 * n))  # noqa: E731
    check_rewrite(PropagateTransposes, build({"x": (1, n, 8)}, flat), numbers=False)


@pytest.mark.parametrize("batch", [1, 3, None])
def test_a_transpose_between_reshapes_that_undo_each_other(batch):
    """Keys, as torch's exporter writes attention: heads and batch are one axis for a while."""
    b, s = (variable("b") if batch is None else batch), (variable("s") if batch is None else 5)

    def body(bb, x):
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1, 3])), (b * 12, s, 7)))
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(t, [0, 2, 1])), (b, 12, 7, s)))
        return op.permute_dims(t, [0, 3, 1, 2])  # as it was

    made = PropagateTransposes(DecisionLog())(build({"x": (b, s, 12, 7)}, body))
    assert "permute_dims" not in made.script()
    if batch is None:
        return
    x = rand(b, s, 12, 7)
    np.testing.assert_array_equal(run(made, [x])[0], x)


def test_a_transpose_between_reshapes_of_other_sizes_stays_one_behind_a_reshape():
    def body(bb, x):
        t = bb.emit(op.permute_dims(bb.emit(op.reshape(x, (6, 5, 4))), [1, 0, 2]))
        return op.reshape(t, (5, 3, 2, 4))  # 6 was 2 times 3

    check_rewrite(PropagateTransposes, build({"x": (2, 3, 5, 4)}, body), {"reshape": 1, "permute_dims": 1})


def test_permutations_and_reshapes_by_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(300):
        dims = [int(n) for n in rng.choice([1, 2, 3, 4, 6], size=rng.integers(1, 6))]
        perm = tuple(int(p) for p in rng.permutation(len(dims)))
        x = np.arange(np.prod(dims)).reshape(dims)
        t = x.transpose(perm)
        assert moves_data(perm, dims) == (list(t.ravel()) != list(x.ravel())) or x.size == 1
        assert identity(compose(perm, inverse(perm)))
        sizes = [int(n) for n in t.shape]
        cut = int(rng.integers(0, len(sizes) + 1))
        target = [*sizes[:cut], 1, *sizes[cut:]]
        if len(sizes) > 1 and rng.random() < 0.7:
            i = int(rng.integers(0, len(sizes) - 1))
            target = [*sizes[:i], sizes[i] * sizes[i + 1], *sizes[i + 2 :]]
        assert groups(sizes, target) is not None
        swap = reshape_of_permuted(dims, perm, target)
        if swap is not None:
            q, middle, r = swap
            z = x if q is None else x.transpose(q)
            np.testing.assert_array_equal(z.reshape(middle).transpose(r), t.reshape(target))
