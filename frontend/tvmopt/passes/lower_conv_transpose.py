"""Transposed convolution as one ordinary convolution and an interleave (the sub-pixel form).

    Before                                             After  (stride s, kernel k, J = ceil(k / s))
    y = R.nn.conv2d_transpose(x, w, strides=[s, s])    z = R.nn.conv2d(x, v, padding=J-1)     # s*s*O channels
                                                       y = interleave(z)[p : p + OH]          # depth to space

An output row Y' = q*s + r of the unpadded result meets only the kernel rows ky = r + s*j:

    y'[q*s + r] = sum_j x[q - j] * w[r + s*j]          so, reversed,  v_r[t] = w[r + s*(J-1-t)],  zero beyond k

Applies when   the weight is a constant, dilation 1; one to three spatial axes, of known or open size.
Declines when  1. the weight is not a constant   2. a dilation is not 1   3. the rank is unknown, the layout not NCHW
               4. a volume's size is open, and voxels overlap or the result is cut: TVM takes minutes to compile that
Open sizes     of pictures: the interleave is one operator of ours (tvmopt.interleave), on channels last.
Gain           the multiplications of the definition, at the speed of the convolution family; scattering into
               the output (TVM's own form zero-stuffs the input) costs s*s times as many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.lowering.common import is_open, sizes
from tvmopt.operators.interleave import interleave
from tvmopt.report import DecisionLog

STAGE = "tvmopt.LowerConvTranspose"
_OPS = ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose")
_LAYOUTS = ("NCW", "IOW", "NCHW", "IOHW", "NCDHW", "IODHW")


@tvm.transform.module_pass(opt_level=0, name=STAGE)
class LowerConvTranspose:
    """See the module's docstring."""

    def __init__(self, log: DecisionLog) -> None:
        self.log = log

    def transform_module(self, module: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """The pass."""
        rewriter = _Rewriter(module, self.log)
        for gvar, func in module.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, module: tvm.IRModule, log: DecisionLog) -> None:
        super().__init__(module)
        self.log, self.node = log, ""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.node = binding.var.name
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") not in _OPS:
            return call
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
        kernel, taps, _ = phase_kernel(weight, strides, groups)
        before = [t - 1 for t in taps]
        # Rows of the result from the last pixel on.
        last = [k + e for k, e in zip(weight.shape[2:], extra, strict=True)]
        after = [-(-k // s) - 1 for s, k in zip(strides, last, strict=True)]  # further steps that cover them
        beyond = [(q + 1) * s - k for s, k, q in zip(strides, last, after, strict=True)]  # rows that nothing reaches
        conv = relax.op.nn.conv2d if len(size) == 2 else relax.op.nn.conv3d
        z = emit(conv(x, relax.const(kernel, str(kernel.dtype)), padding=[*before, *after], groups=groups))
        out_g, axes = weight.shape[1], range(len(size))
        grid = [n + q for n, q in zip(size, after, strict=True)]
        if is_open(size) and len(size) == 2:
            cut = [b + p + q for b, p, q in zip(beyond, pads[:2], pads[2:], strict=True)]
            whole = [n * s - c for n, s, c in zip(grid, strides, cut, strict=True)]
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
    return np.ascontiguousarray(phases.reshape(-1, in_g, *taps)), taps, in_g
