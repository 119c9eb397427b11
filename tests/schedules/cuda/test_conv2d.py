"""Implicit-GEMM convolution on (emulated) tensor cores against PyTorch-free float64 sums."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, close, families, run
from tests.schedules.harness import convolution


@pytest.mark.parametrize(
    ("n", "h", "w", "c", "o", "kh", "kw", "stride", "pad", "dilation", "dtype", "expected"),
    [
        (1, 9, 9, 8, 16, 3, 3, 1, 1, 1, "float16", ["conv2d"]),
        (2, 8, 7, 16, 24, 3, 3, 2, 1, 1, "float16", ["conv2d"]),
        (1, 17, 15, 3, 32, 7, 7, 2, 3, 1, "float16", ["conv2d", "pad"]),
        (1, 9, 9, 12, 9, 3, 3, 1, 2, 2, "bfloat16", ["conv2d"]),
        (2, 7, 7, 64, 33, 1, 1, 2, 0, 1, "float16", ["conv2d"]),
        (1, 7, 7, 512, 64, 3, 3, 1, 1, 1, "float16", ["conv2d", "split_sum"]),
        (1, 7, 7, 7, 16, 3, 5, 1, 1, 1, "float32", ["conv2d", "pad"]),
        (1, 5, 5, 64, 8, 1, 1, 1, 0, 1, "float16", ["gemm"]),
    ],
)
def test_convolution(
    n: int, h: int, w: int, c: int, o: int, kh: int, kw: int, stride: int, pad: int, dilation: int,
    dtype: str, expected: list[str],
) -> None:  # fmt: skip
    x, k = array((n, h, w, c), dtype), array((o, kh, kw, c), dtype, (kh * kw * c) ** -0.5, 1)
    bias = array((o,), "float32", 1, 2)
    wanted = convolution(x, k, stride, pad, (dilation, dilation))
    y = array(wanted.shape, dtype, 1, 3)

    def build(bb: relax.BlockBuilder, x0: relax.Expr, y0: relax.Expr) -> relax.Expr:
        z = relax.op.nn.conv2d(
            x0, relax.const(k, dtype), strides=(stride, stride), padding=(pad,) * 4, dilation=(dilation,) * 2,
            data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC", out_dtype="float32",
        )  # fmt: skip
        z = bb.emit(relax.op.add(bb.emit(z), relax.const(bias)))
        z = bb.emit(relax.op.add(z, bb.emit(relax.op.astype(y0, "float32"))))
        return relax.op.astype(bb.emit(relax.op.nn.relu(z)), dtype)

    out, how = run(build, [x, y])
    close(out, np.maximum(wanted + bias.astype("float64") + y.astype("float64"), 0))
    ours = [f for f in families(how) if f in ("conv2d", "gemm", "split_sum")]
    assert ours == [f for f in expected if f != "pad"]
    assert len(how) == len(expected)


@pytest.mark.parametrize(
    ("groups", "c", "o", "kernel", "dtype"),
    [(4, 32, 48, 1, "float16"), (3, 27, 15, 3, "float16"), (2, 12, 6, 3, "float32"),
     (4, 136, 24, 1, "bfloat16")],
)  # fmt: skip
def test_groups(groups: int, c: int, o: int, kernel: int, dtype: str) -> None:
    pad = kernel // 2
    x = array((2, 7, 9, c), dtype)
    k = array((o, kernel, kernel, c // groups), dtype, (kernel * kernel * c // groups) ** -0.5, 1)
    wanted = np.concatenate(
        [
            convolution(part, weight, 1, pad)
            for part, weight in zip(np.split(x, groups, 3), np.split(k, groups, 0), strict=True)
        ],
        axis=3,
    )

    def build(bb: relax.BlockBuilder, x0: relax.Expr) -> relax.Expr:
        z = relax.op.nn.conv2d(
            x0, relax.const(k, dtype), padding=(pad,) * 4, groups=groups, data_layout="NHWC",
            kernel_layout="OHWI", out_layout="NHWC", out_dtype="float32",
        )  # fmt: skip
        return relax.op.astype(bb.emit(relax.op.nn.relu(bb.emit(z))), dtype)

    out, how = run(build, [x])
    close(out, np.maximum(wanted, 0))
    assert families(how) == ["conv2d"]
