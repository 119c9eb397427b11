"""Choose channels-last for every 2-d convolution of the graph: images NHWC, weights OHWI."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    RESULT,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    ints,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    with_attrs,
)
from tvmopt.passes.propagate_transposes import ELEMENTWISE, RESHAPES
from tvmopt.report import DecisionLog

PASSED = ELEMENTWISE | {*RESHAPES}
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


@rewrite_pass("tvmopt.ConvertLayout")
class ConvertLayout(Rewrite):
    """Compute every NCHW convolution in NHWC, between two transposes that PropagateTransposes then cancels.

        Before                               After
        y = R.nn.conv2d(x, W)                t = R.permute_dims(x, axes=[0, 2, 3, 1])
                                             c = R.nn.conv2d(t, W', data_layout="NHWC", kernel_layout="OHWI")
                                             y = R.permute_dims(c, axes=[0, 3, 1, 2])

    A convolutional network is left with one transpose at its input, and one at an output that is still an
    image. Transposed convolutions with constant weights are convolutions by now (LowerConvTranspose); TVM
    legalises the others in NCHW only, so they stay.

    TVM's own ConvertLayout is not used. It crashes the process on ``add(tensor, prim_value)``, fails on
    stacked sums and dropout tuples, and has no rule for clip, leakyrelu, pad, where, reshape and matmul,
    around each of which it leaves two transposes; PropagateTransposes covers them all.

    Applies when   the convolution is NCHW. Weights that are no constants are transposed at run time.
    Declines when  1. it stands alone: between it and the graph's inputs and results are only elementwise operators and
                   reshapes, so both transposes would be left; and a family says that it is faster as it lies.
    Gain           a register tile of 14 pixels x 32 channels loads its weights as two vectors and stores its
                   results as whole lines: 258 to 266 of 267 GFLOP/s a core (AVX-512), activations unpacked.
    Order          after BatchNorm is folded and 1-d convolutions are 2-d; before PropagateTransposes.
    """

    rounds = 1

    def __init__(self, log: DecisionLog | None = None, stays: Callable[[Expr], bool] | None = None) -> None:
        super().__init__(log)
        self.stays = stays or (lambda call: False)

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite an NCHW convolution."""
        name = op_name(value)
        if name != "nn.conv2d" or str(value.attrs.data_layout) != "NCHW":
            return None
        if str(value.attrs.out_layout or "NCHW") != "NCHW" or rank(value) != 4:
            return None
        data, weight = value.args
        if _constant(graph, weight) and alone(graph, var, value) and self.stays(value):
            self.declined(var, "1: it stands alone, and is faster as it lies")
            return None
        axes = tuple(str(value.attrs.kernel_layout).find(c) for c in "OHWI")
        weight = _turned(graph, weight, axes)
        nhwc = with_attrs(
            value,
            [_channels_last(graph, data), weight],
            data_layout="NHWC",
            kernel_layout="OHWI",
            out_layout="NHWC",
        )
        self.applied(var, name)
        return relax.op.permute_dims(graph.emit(nhwc, name_of(var)), TO_NCHW)


def _turned(graph: Graph, weight: Expr, axes: tuple[int, ...]) -> Expr:
    """A weight in OHWI."""
    array = graph.array(weight)
    if array is None:
        return relax.op.permute_dims(weight, axes)
    return graph.remade(weight, axes, lambda: const(np.transpose(array, axes)))


def alone(graph: Graph, var: Var, convolution: Expr) -> bool:
    """Whether nothing beside the convolution could have its data in channels-last: only elementwise operators and
    reshapes are above and below it."""
    below, above, todo = {var}, [convolution.args[0]], [var]
    while todo:
        for user in graph.users(todo.pop()):
            if user == RESULT or user in below:
                continue
            value = graph.value(user)
            if not (value.same_as(convolution) or isinstance(value, relax.Tuple)):  # names of the results
                if op_name(value) not in PASSED:
                    return False
                above += _tensors(value)
            below.add(user)
            todo.append(user)
    return _from_inputs(graph, above, below)


def _from_inputs(graph: Graph, exprs: list[Expr], known: set[Expr]) -> bool:
    """Whether only such operators are between some expressions and inputs, constants or what is known to be so."""
    seen, todo = set(known), [*exprs]
    while todo:
        expr = todo.pop()
        value = graph.value(expr)
        if expr in seen or not isinstance(value, relax.Call):
            continue
        if op_name(value) not in PASSED:
            return False
        seen.add(expr)
        todo += _tensors(value)
    return True


def _constant(graph: Graph, weight: Expr) -> bool:
    """Whether the weight is a constant, or the reshape of one (ConvertConv1d), which is folded later."""
    reshaped = graph.call(weight, "reshape")
    return graph.is_const(weight if reshaped is None else reshaped.args[0])


def _tensors(call: Expr) -> list[Expr]:
    """The operands that have axes."""
    return [a for a in call.args if isinstance(a.ty, relax.TensorType) and rank(a) > 0]


def _channels_last(graph: Graph, image: Expr) -> Expr:
    """The image in NHWC; a border around it (a zero point, which FusePad leaves) comes behind the transpose."""
    pad = graph.call(image, "nn.pad")
    if pad is None or not graph.single(image):
        return relax.op.permute_dims(image, TO_NHWC)
    width = ints(pad.attrs.pad_width)
    pairs = [width[2 * i : 2 * i + 2] for i in TO_NHWC]
    return with_attrs(pad, [relax.op.permute_dims(pad.args[0], TO_NHWC)], pad_width=[w for p in pairs for w in p])
