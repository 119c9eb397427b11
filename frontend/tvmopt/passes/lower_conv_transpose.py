"""Transposed convolution as one ordinary convolution and an interleave (the sub-pixel form).

    Before                                             After  (stride s, kernel k, J = ceil(k / s))
    y = R.nn.conv2d_transpose(x, w, strides=[s, s])    z = R.nn.conv2d(x, v, padding=J-1)     # s*s*O channels
                                                       y = interleave(z)[p : p + OH]          # depth to space

An output row Y' = q*s + r of the unpadded result meets only the kernel rows ky = r + s*j:

    y'[q*s + r] = sum_j x[q - j] * w[r + s*j]          so, reversed,  v_r[t] = w[r + s*(J-1-t)],  zero beyond k

Where s does not divide k, some phases have fewer taps than J: z is then joined from a convolution a phase, if there are
so many channels that this is faster (0.55 of the time for 64 channels of 3x3 by 2, 0.8 for 16, 1.5 for 8, one thread),
or if a zero weight must not make NaN of an infinity, as integers are computed from the result.

Applies when   the weight is a constant, dilation 1; one to three spatial axes, of known or open size.
Declines when  1. the weight is not a constant   2. a dilation is not 1   3. the rank is unknown, the layout not NCHW
               4. a volume's size is open, and voxels overlap or the result is cut: TVM takes minutes to compile that
               5. it stands alone (see ConvertLayout), and a family computes it faster as it lies
Volumes        whose frames are results of one frame each, by the same tap, are a batch of pictures: those one frame
               deep that stay so, and kernels of one frame that move by one.
Open sizes     of pictures: the interleave is one operator of ours (tvmopt.interleave), on channels last.
Gain           the multiplications of the definition, at the speed of the convolution family; scattering into
               the output (TVM's own form zero-stuffs the input) costs s*s times as many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.sym import Analyzer

from tvmopt.lowering.common import is_empty, is_open, sizes
from tvmopt.lowering.extremes import Extremes
from tvmopt.operators.interleave import interleave
from tvmopt.passes.convert_layout import alone
from tvmopt.passes.graph import Graph, graph_of
from tvmopt.report import DecisionLog

STAGE = "tvmopt.LowerConvTranspose"
_OPS = ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose")
WIDE = 16
"""Channels of the result from which on a convolution a phase is faster than one with zero weights."""
_LAYOUTS = ("NCW", "IOW", "NCHW", "IOHW", "NCDHW", "IODHW")


@tvm.transform.module_pass(opt_level=0, name=STAGE)
class LowerConvTranspose:
    """See the module's docstring.

    Args:
        apart: a convolution a phase is faster on this machine where there are many channels.
        stays: whether a family computes a call faster as it lies, where nothing beside it is in channels-last.
    """

    def __init__(
        self, log: DecisionLog, apart: bool = True, stays: Callable[[relax.Expr], bool] = lambda call: False
    ) -> None:
        self.log, self.apart, self.stays = log, apart, stays

    def transform_module(self, module: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """The pass."""
        rewriter = _Rewriter(module, self.log, self.apart, self.stays)
        for gvar, func in module.functions_items():
            if isinstance(func, relax.Function):
                rewriter.extremes, rewriter.graph = Extremes(func), cache(lambda func=func: graph_of(func))
                rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(
        self, module: tvm.IRModule, log: DecisionLog, apart: bool, stays: Callable[[relax.Expr], bool]
    ) -> None:
        super().__init__(module)
        self.log, self.apart, self.stays, self.result = log, apart, stays, None
        self.extremes: Extremes
        self.graph: Callable[[], Graph]

    @property
    def node(self) -> str:
        return str(self.result.name) if self.result is not None else ""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.result = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        given, call = call, self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") not in _OPS:
            return call
        tap = _tap_of_frames(call)
        return self._lowered(call, given) if tap is None else self._frames(call, given, tap)

    def _frames(self, call: relax.Call, given: relax.Call, tap: int) -> relax.Expr:
        """A transposed convolution of volumes as one of their frames."""
        emit, a = self.builder_.emit, call.attrs
        (n, channels, depth, *image), out = sizes(call.args[0]) or (), sizes(call) or ()
        x, weight = call.args[0], call.args[1].value.numpy()[:, :, tap]
        if depth == 1:
            x = emit(relax.op.reshape(x, (n, channels, *image)))
        else:  # by way of channels last, as ConvertConv3d: so PropagateTransposes brings them together
            x = emit(relax.op.permute_dims(x, [0, 2, 3, 4, 1]))
            x = emit(relax.op.reshape(x, (n * depth, *image, channels)))
            x = emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        pads = [int(v) for v in a.padding]
        y = relax.op.nn.conv2d_transpose(
            x, relax.const(weight, str(weight.dtype)),
            strides=list(a.strides)[1:], padding=[*pads[1:3], *pads[4:]], output_padding=list(a.output_padding)[1:],
            dilation=list(a.dilation)[1:], groups=int(a.groups), out_dtype=a.out_dtype or None,
        )  # fmt: skip
        y = emit(self._lowered(self.builder_.normalize(y), given))
        if depth == 1:
            return relax.op.reshape(y, out)
        y = emit(relax.op.permute_dims(y, [0, 2, 3, 1]))
        y = emit(relax.op.reshape(y, (out[0], *out[2:], out[1])))
        return relax.op.permute_dims(y, [0, 4, 1, 2, 3])

    def _lowered(self, call: relax.Call, given: relax.Call) -> relax.Expr:
        """The transposed convolution `call`, which `given` was, or is a part of."""
        x, w = call.args
        xs, a = sizes(x), call.attrs
        if not isinstance(w, tvm.ir.GenericConst):  # Decline 1
            self.log.declined(STAGE, self.node, "1: the weight is not a constant")
            return call
        if any(int(d) != 1 for d in a.dilation):  # Decline 2
            self.log.declined(STAGE, self.node, "2: dilated")
            return call
        if xs is None or not all(v in _LAYOUTS for v in (a.data_layout, a.kernel_layout)):  # Decline 3
            self.log.declined(STAGE, self.node, "3: the rank is unknown or the layout is not NCHW")
            return call
        if is_open(xs) and len(xs) == 5 and _overlaps(w.value.numpy().shape[2:], a):  # Decline 4
            self.log.declined(STAGE, self.node, "4: a volume of open size, and voxels overlap")
            return call
        if len(xs) == 4 and self.stays(call) and alone(self.graph(), self.result, given):  # Decline 5
            self.log.declined(STAGE, self.node, "5: it stands alone, and is faster as it lies")
            return call
        self.log.applied(STAGE, self.node)
        flat = len(xs) == 3  # one spatial dimension: as two, the first of extent 1
        weight = w.value.numpy()
        strides, pads, extra = ([int(v) for v in values] for values in (a.strides, a.padding, a.output_padding))
        if flat:
            x = self.builder_.emit(relax.op.expand_dims(x, 2))
            weight = weight[:, :, None, :]
            strides, pads, extra = [1, *strides], [0, pads[0], 0, pads[1]], [0, *extra]
        out = self._lower(x, weight, strides, pads, extra, int(a.groups))
        return relax.op.squeeze(out, [2]) if flat else out

    def _lower(
        self,
        x: relax.Expr,
        weight: np.ndarray,
        strides: list[int],
        pads: list[int],
        extra: list[int],
        groups: int,
    ) -> relax.Expr:
        emit = self.builder_.emit
        batch, _, *size = sizes(x) or ()
        # Rows of the result from the last pixel on.
        last = [k + e for k, e in zip(weight.shape[2:], extra, strict=True)]
        after = [-(-k // s) - 1 for s, k in zip(strides, last, strict=True)]  # further steps that cover them
        beyond = [(q + 1) * s - k for s, k, q in zip(strides, last, after, strict=True)]  # rows that nothing reaches
        z = self._phases(x, weight, strides, after, groups)
        out_g, axes = weight.shape[1], range(len(size))
        grid = [n + q for n, q in zip(size, after, strict=True)]
        if is_open(size) and len(size) == 2:
            cut = [b + p + q for b, p, q in zip(beyond, pads[:2], pads[2:], strict=True)]
            whole = [Analyzer().simplify(n * s - c) for n, s, c in zip(grid, strides, cut, strict=True)]
            z = emit(relax.op.permute_dims(z, [0, 2, 3, 1]))  # ConvertLayout's convolution has its inverse
            y = emit(interleave(z, strides, pads[: len(size)], whole, groups))
            return relax.op.permute_dims(y, [0, 3, 1, 2])
        z = emit(relax.op.reshape(z, (batch, groups, *strides, out_g, *grid)))
        phases = [place for a in axes for place in (3 + len(size) + a, 2 + a)]  # each grid axis, then its phase
        z = emit(relax.op.permute_dims(z, [0, 1, 2 + len(size), *phases]))
        whole = [g * s for g, s in zip(grid, strides, strict=True)]
        z = emit(relax.op.reshape(z, (batch, groups * out_g, *whole)))
        if not any((*pads, *beyond)):
            return z
        end = [w - b - p for w, b, p in zip(whole, beyond, pads[len(size) :], strict=True)]
        return relax.op.strided_slice(z, axes=[2 + a for a in axes], begin=pads[: len(size)], end=end)

    def _phases(
        self, x: relax.Expr, weight: np.ndarray, strides: list[int], after: list[int], groups: int
    ) -> relax.Expr:
        """All phases side by side as channels: (group, phase, channel of the group)."""
        emit, spatial = self.builder_.emit, weight.shape[2:]
        conv = relax.op.nn.conv2d if len(spatial) == 2 else relax.op.nn.conv3d

        def convolved(kernel: np.ndarray) -> relax.Expr:
            before = [t - 1 for t in kernel.shape[2:]]
            return emit(conv(x, relax.const(kernel, str(kernel.dtype)), padding=[*before, *after], groups=groups))

        taps = list(zip(spatial, strides, strict=True))
        fast = (
            self.apart and groups == 1 and weight.shape[1] >= WIDE and len(spatial) == 2 and not is_open(sizes(x) or ())
        )
        fast &= any(k % s for k, s in taps) and all(k >= s for k, s in taps)
        exact = any(k % s for k, s in taps) and self.extremes.hides(self.result)
        if not fast and not exact:
            return convolved(phase_kernel(weight, strides, groups)[0])
        parts: list[relax.Expr] = []
        for phase in np.ndindex(*strides):
            steps: Any = tuple(slice(r, None, s) for r, s in zip(phase, strides, strict=True))
            own = weight[(slice(None), slice(None), *steps)]
            if own.size:
                parts.append(convolved(phase_kernel(own, [1] * len(strides), groups)[0]))
            else:  # no tap reaches it
                parts.append(emit(relax.op.zeros_like(parts[0])))
        if groups == 1:
            return emit(relax.op.concat(parts, 1))
        batch, _, *grid = sizes(parts[0]) or ()
        rows = [emit(relax.op.reshape(z, (batch, groups, weight.shape[1], *grid))) for z in parts]
        return emit(relax.op.reshape(emit(relax.op.concat(rows, 2)), (batch, -1, *grid)))


def _tap_of_frames(call: relax.Call) -> int | None:
    """The tap along depth that makes each frame of the result out of one frame; None where there is no such tap."""
    (x, w), a = call.args, call.attrs
    xs, out = sizes(x), sizes(call)
    if xs is None or out is None or len(xs) != 5 or is_empty((*xs, *out)) or not isinstance(w, tvm.ir.GenericConst):
        return None
    if (a.data_layout, a.kernel_layout) != ("NCDHW", "IODHW"):
        return None
    taps, before, after = int(w.ty.shape.values[2]), int(a.padding[0]), int(a.padding[3])
    if taps == 1 and int(a.strides[0]) == 1 and not (before or after or int(a.output_padding[0])):
        return 0
    tap, rest = divmod(before, int(a.dilation[0]))
    return tap if xs[2] == out[2] == 1 and not rest and tap < taps else None


def _overlaps(kernel: tuple[int, ...], attrs: Any) -> bool:
    """Whether an element of the result gets products of several pixels, or some of the result is cut off."""
    reach = [k + int(e) for k, e in zip(kernel, attrs.output_padding, strict=True)]
    return any(k > int(s) for k, s in zip(reach, attrs.strides, strict=True)) or any(map(int, attrs.padding))


def phase_kernel(weight: np.ndarray, strides: list[int], groups: int) -> tuple[np.ndarray, list[int], int]:
    """v[g*s*s*Og, C/g, Jh, Jw] of the module's docstring, (Jh, Jw), and C/g, from w[C, Og, kh, kw]; likewise with
    another number of spatial axes."""
    channels, out_g, *kernel = weight.shape
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    in_g, axes = channels // groups, range(len(kernel))
    padded = np.zeros((channels, out_g, *(t * s for t, s in zip(taps, strides, strict=True))), weight.dtype)
    padded[(slice(None), slice(None), *(slice(k) for k in kernel))] = weight
    # [g, Cg, Og, J, s an axis] -> [g, s an axis, Og, Cg, J an axis], taps reversed
    pairs = [extent for pair in zip(taps, strides, strict=True) for extent in pair]
    phases = np.flip(padded.reshape(groups, in_g, out_g, *pairs), tuple(3 + 2 * a for a in axes))
    phases = phases.transpose(0, *(4 + 2 * a for a in axes), 2, 1, *(3 + 2 * a for a in axes))
    planes = groups * int(np.prod(strides)) * out_g
    return np.ascontiguousarray(phases.reshape(planes, in_g, *taps)), taps, in_g
