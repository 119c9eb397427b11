"""Quantised products on CPUs: equal to integer arithmetic bit for bit, at the edges of vectors and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.harness import MACHINES, machines, module_of
from tvmopt import pipeline
from tvmopt.targets import Machine

HOST = Machine.load("cpu")
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC", "out_dtype": "int32"}
Array = np.ndarray[Any, Any]
TARGETS = {"host": HOST, **{name: Machine.load(MACHINES[name]) for name in machines()}}


def run(body: Callable[..., Any], inputs: list[Array], family: str, machine: Machine = HOST) -> Array:
    machine = machine.with_cores(2)
    low = pipeline.lower(module_of(body, inputs), machine)
    found = {k.family.removeprefix("amx_") for k in low.kernels}  # a host may have tiles
    assert set(family.split(" or ")) & found
    vm = relax.VirtualMachine(pipeline.build(low, machine), tvm.cpu())
    out: Array = vm["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()
    return out


def numbers(rng: np.random.Generator, *dims: int, kind: str) -> Array:
    """Random bytes, every eighth of them an extreme one."""
    low, high = (0, 255) if kind == "uint8" else (-128, 127)
    x = rng.integers(low, high + 1, dims)
    x[rng.random(dims) < 0.125] = rng.choice([low, high])
    return x.astype(kind)


def test_products_of_extremes_do_not_saturate() -> None:
    """255 * -128 and 255 * 127 throughout, as long as int32 allows."""
    for value in (-128, 127):
        x, w = np.full((2, 65_792), 255, "uint8"), np.full((65_792, 17), value, "int8")
        for machine in TARGETS.values():
            out = run(lambda bb, a, w=w: relax.op.matmul(a, relax.const(w), out_dtype="int32"), [x], "gemm", machine)
            assert (out == 255 * value * 65_792).all()


@pytest.mark.parametrize("target", TARGETS)
def test_gemm(target: str) -> None:
    rng = np.random.default_rng(1)
    for m, k, n in (
        (1, 1, 1),
        (7, 8, 9),
        (8, 4, 16),
        (9, 15, 17),
        (15, 33, 31),
        (33, 64, 32),
        (2, 17, 100),
        (1, 768, 7),
    ):
        x, w = numbers(rng, m, k, kind="uint8"), numbers(rng, k, n, kind="int8")
        out = run(
            lambda bb, a, w=w: relax.op.matmul(a, relax.const(w), out_dtype="int32"), [x], "gemm", TARGETS[target]
        )
        assert (out == x.astype("int64") @ w.astype("int64")).all(), (m, k, n)


BATCHES = {  # of two activations: shapes that broadcast, edges of words, vectors and panels
    "ones": ((1, 1), (1, 1)),
    "one matrix each": ((7, 8), (8, 9)),
    "no whole word": ((3, 9, 15), (3, 15, 17)),
    "part of a panel": ((2, 8, 64), (2, 64, 33)),
    "tokens by tokens": ((2, 3, 50, 64), (2, 3, 64, 50)),
    "tokens by features": ((2, 3, 31, 197), (2, 3, 197, 64)),
    "groups share": ((2, 4, 16, 32), (2, 1, 32, 16)),
    "one row": ((4, 1, 100), (4, 100, 31)),
    "the longest exact sum": ((1, 2, 65_792), (1, 65_792, 3)),
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("target", TARGETS)
def test_batches(target: str, case: str) -> None:
    rng = np.random.default_rng(len(case))
    left, right = BATCHES[case]
    x, w = numbers(rng, *left, kind="uint8"), numbers(rng, *right, kind="int8")
    out = run(lambda bb, a, b: relax.op.matmul(a, b, out_dtype="int32"), [x, w], "batch_gemm", TARGETS[target])
    assert (out == x.astype("int64") @ w.astype("int64")).all()


def test_batches_of_extremes_with_what_follows() -> None:
    """Sums of rows and of columns behind the product, in its kernel; 197 columns are full panels and a part of one."""
    op = relax.op
    for value in (-128, 127):
        x, w = np.full((2, 9, 197), 255, "uint8"), np.full((2, 197, 197), value, "int8")

        def body(bb: Any, a: Any, b: Any) -> Any:
            rows = bb.emit(op.sum(bb.emit(op.astype(a, "int32")), -1, True))
            columns = bb.emit(op.sum(bb.emit(op.astype(b, "int32")), -2, True))
            return op.add(bb.emit(op.add(bb.emit(op.matmul(a, b, out_dtype="int32")), rows)), columns)

        out = run(body, [x, w], "batch_gemm")
        assert (out == 197 * (255 * value + 255 + value)).all()


def convolution(x: Array, w: Array, stride: int, pad: int, zero: int, groups: int, dilation: int = 1) -> Array:
    """NHWC by OHWI in int64; the border is `zero`."""
    x = np.pad(x.astype("int64"), ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=zero)
    out_c, kh, kw, each = w.shape
    rows, columns = ((d - dilation * (k - 1) - 1) // stride + 1 for d, k in ((x.shape[1], kh), (x.shape[2], kw)))
    y = np.zeros((x.shape[0], rows, columns, out_c), "int64")
    per = out_c // groups
    for ky in range(kh):
        for kx in range(kw):
            top, left = ky * dilation, kx * dilation
            taps = x[:, top : top + (rows - 1) * stride + 1 : stride, left : left + (columns - 1) * stride + 1 : stride]
            for g in range(groups):
                own = w[g * per : (g + 1) * per, ky, kx].astype("int64")
                y[..., g * per : (g + 1) * per] += taps[..., g * each : (g + 1) * each] @ own.T
    return y


CONVOLUTIONS = {  # image, output channels, kernel, stride, padding, groups, dilation, family
    "few channels, words along the row": ((1, 17, 17, 3), 33, 7, 2, 3, 1, 1, "conv2d"),
    "few channels, words of a pixel": ((1, 16, 15, 3), 24, 3, 2, 1, 1, 1, "conv2d"),
    "one channel": ((2, 9, 8, 1), 16, 5, 1, 2, 1, 1, "conv2d"),
    "one channel, dilated": ((1, 9, 17, 1), 8, 3, 1, 2, 1, 2, "conv2d"),
    "no whole word": ((2, 8, 9, 15), 31, 1, 2, 0, 1, 1, "conv2d"),
    "a product, no whole word": ((1, 5, 5, 7), 17, 1, 1, 0, 1, 1, "gemm"),
    "a product": ((1, 7, 7, 32), 40, 1, 1, 0, 1, 1, "gemm"),
    "a border around a product": ((1, 7, 7, 32), 16, 1, 1, 1, 1, 1, "conv2d or gemm"),
    "part of a panel": ((1, 7, 7, 16), 8, 3, 1, 1, 1, 1, "conv2d"),
    "groups": ((1, 9, 9, 32), 16, 3, 1, 1, 4, 1, "conv2d"),
    "depthwise": ((1, 17, 17, 32), 32, 3, 1, 1, 32, 1, "depthwise"),
    "depthwise, part of a vector": ((1, 16, 15, 33), 33, 3, 2, 1, 33, 1, "depthwise"),
    "depthwise, two outputs a channel": ((2, 8, 9, 16), 32, 5, 1, 2, 16, 1, "depthwise"),
    "depthwise, dilated": ((1, 15, 16, 24), 24, 3, 1, 2, 24, 2, "depthwise"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("target", [name for name in TARGETS if name in ("host", "avx2")])
def test_convolution(target: str, case: str) -> None:
    shape, out_c, k, stride, pad, groups, dilation, family = CONVOLUTIONS[case]
    rng = np.random.default_rng(len(case))
    w = numbers(rng, out_c, k, k, shape[3] // groups, kind="int8")
    for zero in (0, 1, 128, 255) if target == "host" else (117,):
        x = numbers(rng, *shape, kind="uint8")

        def body(bb: Any, a: Any, zero: int = zero) -> Any:
            if pad and zero:
                a = bb.emit(relax.op.nn.pad(a, [0, 0, pad, pad, pad, pad, 0, 0], pad_value=float(zero)))
            own = 0 if zero else pad
            return relax.op.nn.conv2d(
                a, relax.const(w), strides=stride, padding=own, groups=groups, dilation=dilation, **NHWC
            )

        out = run(body, [x], family, TARGETS[target])
        assert (out == convolution(x, w, stride, pad, zero, groups, dilation)).all(), zero


def test_a_border_that_others_read_too_is_made_in_memory() -> None:
    x = numbers(np.random.default_rng(3), 1, 6, 6, 16, kind="uint8")
    w = numbers(np.random.default_rng(4), 16, 3, 3, 16, kind="int8")

    def body(bb: Any, a: Any) -> Any:
        padded = bb.emit(relax.op.nn.pad(a, [0, 0, 1, 1, 1, 1, 0, 0], pad_value=9.0))
        conv = bb.emit(relax.op.nn.conv2d(padded, relax.const(w), **NHWC))
        pool = bb.emit(relax.op.nn.max_pool2d(padded, (3, 3), layout="NHWC", out_layout="NHWC"))
        return relax.op.add(conv, bb.emit(relax.op.astype(pool, "int32")))

    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=9)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = convolution(x, w, 1, 1, 9, 1) + windows.max(axis=(-1, -2))
    assert (run(body, [x], "conv2d") == expected).all()


@pytest.mark.parametrize("pad", [0, 1])
def test_a_maximum_of_bytes(pad: int) -> None:
    for channels in (1, 15, 16, 33, 64):
        x = numbers(np.random.default_rng(channels), 1, 9, 8, channels, kind="uint8")
        out = run(
            lambda bb, a: relax.op.nn.max_pool2d(a, (3, 3), (2, 2), pad, layout="NHWC", out_layout="NHWC"), [x], "pool"
        )
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))), (3, 3), axis=(1, 2)
        )
        assert out.dtype == np.uint8 and (out == windows[:, ::2, ::2].max(axis=(-1, -2))).all()
