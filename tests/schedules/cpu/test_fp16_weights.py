"""Weights of float16 on CPUs: numbers at the edges of vectors, what stays in fp32, instructions, a whole compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.schedules.harness import module_of, rand
from tvmopt import pipeline
from tvmopt.pipeline import BUILD_CONFIG, lower, rewrite_kernels
from tvmopt.runtime.model import Model
from tvmopt.targets import Machine
from tvmopt.targets.precision import widens_fp16

HOST = Machine.load("cpu")
pytestmark = pytest.mark.skipif(not widens_fp16(HOST), reason="no instruction that widens float16 here")
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
Array = np.ndarray[Any, Any]


def lowered(body: Any, inputs: list[Array], machine: Machine) -> Any:
    return lower(module_of(body, inputs), machine, precision="fp16")


def run(body: Any, inputs: list[Array], family: str, cores: int = 1) -> Array:
    machine = HOST.with_cores(cores)
    low = lowered(body, inputs, machine)
    assert family in {k.family for k in low.kernels}
    assert '"float16"' in low.module.script()
    vm = relax.VirtualMachine(pipeline.build(low, machine), tvm.cpu())
    return vm["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()


def close(found: Array, exact: Array) -> None:
    """Nothing is rounded but the weights, which are rounded in `exact` too, and the sums of fp32."""
    assert found.shape == exact.shape
    same = np.isnan(exact) | np.isinf(exact)
    assert np.array_equal(found[same], exact[same].astype(np.float32), equal_nan=True)
    assert np.abs(found - exact)[~same].max() <= 4e-6 * max(1.0, np.abs(exact[~same]).max())


def half(w: Array) -> Array:
    return w.astype(np.float16).astype(np.float64)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1, 1, 1),
        (1, 2, 7),
        (7, 9, 17),
        (8, 8, 8),
        (9, 15, 16),
        (33, 31, 15),
        (15, 32, 33),
        (1, 768, 100),
        (197, 64, 40),
    ],
)
def test_a_product(m: int, k: int, n: int) -> None:
    x, w = rand(m, k), rand(k, n, seed=1)
    close(run(lambda bb, a: relax.op.matmul(a, relax.const(w)), [x], "gemm", 2), x.astype(float) @ half(w))


def test_numbers_at_the_edges_of_a_product() -> None:
    x, w = rand(5, 9), rand(9, 17, seed=1)
    x[0, 0], x[1, 1], x[2, 2], x[3] = np.nan, np.inf, 3e38, 0.0
    w[0], w[1, 3], w[2] = 65504.0, 1e-7, 0.0  # the largest of float16, one of its denormals
    with np.errstate(invalid="ignore"):
        exact = x.astype(float) @ half(w)
    close(run(lambda bb, a: relax.op.matmul(a, relax.const(w)), [x], "gemm"), exact)


@pytest.mark.parametrize(("groups", "size", "strides"), [(1, 1, 1), (1, 3, 2), (1, 5, 1), (2, 3, 2)])
def test_a_convolution(groups: int, size: int, strides: int) -> None:
    x, w = rand(1, 9, 8, 6), rand(17 * groups, size, size, 6 // groups, seed=1)
    pad = size // 2
    found = run(
        lambda bb, a: relax.op.nn.conv2d(
            a, relax.const(w), strides=strides, padding=[pad] * 4, groups=groups, **NHWC
        ), [x], "gemm" if size == 1 else "conv2d",
    )  # fmt: skip
    padded = np.pad(x.astype(float), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::strides, ::strides]
    each = [
        np.einsum("nyxckl,oklc->nyxo", part, filters)
        for part, filters in zip(np.split(windows, groups, 3), np.split(half(w), groups), strict=True)
    ]
    close(found, np.concatenate(each, 3))


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.full((8, 8), 7e4, "float32"), "1: the weights do not fit into float16"),
        (np.full((8, 8), 3e-8, "float32"), "1: the weights do not fit into float16"),
    ],
)
def test_weights_that_float16_does_not_hold_stay(weight: Array, reason: str) -> None:
    low = lowered(lambda bb, a: relax.op.matmul(a, relax.const(weight)), [rand(2, 8)], HOST)
    assert '"float16"' not in low.module.script()
    assert reason in [d.reason for d in low.log.decisions]


@pytest.mark.parametrize(("target", "instruction"), [("aarch64", "fcvtl"), ("x86-64-v3", "vcvtph2ps")])
def test_each_processor_widens_by_an_instruction(target: str, instruction: str) -> None:
    machine = Machine.load(target)
    low = lowered(lambda bb, a: relax.op.matmul(a, relax.const(rand(128, 256))), [rand(48, 128)], machine)
    kernels = [(g, f) for g, f in low.module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    functions = {g: f.with_attr("global_symbol", g.name_hint) for g, f in kernels}
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3, config=BUILD_CONFIG):
        code = tvm.compile(rewrite_kernels(tvm.IRModule(functions)), target=machine.tvm_target())
    assert instruction in code.mod.inspect_source("asm")


def test_a_compile_keeps_its_weights_in_half_the_bytes() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((256, 512)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 512])],
        [numpy_helper.from_array(w, "w")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = tvmopt.compile(model, precision="fp16", threads=1)
    assert made.report.accuracy["verified"] and made.manifest.precision == "fp16"
    assert sum(t.nbytes for t in made.artifact.weights) == w.size * 2
    x = rng.standard_normal((3, 256)).astype("float32")
    close(Model(made.artifact).run({"x": x})["y"], x.astype(float) @ half(w))
