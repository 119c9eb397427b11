"""bf16 products on CPUs: numbers at the edges of vectors and pairs, the instructions, and a whole compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.schedules.cpu.test_depthwise import reference
from tests.schedules.harness import lowered_bf16, rand, rounded
from tvmopt import pipeline
from tvmopt.errors import InputError
from tvmopt.lowering.pairs import INSTRUCTIONS, llvm_functions
from tvmopt.runtime.model import Model
from tvmopt.targets import Machine

HOST = Machine.load("cpu")
runs_bf16 = pytest.mark.skipif(not HOST.has("avx512bf16"), reason="no avx512_bf16 here")
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
Array = np.ndarray[Any, Any]


def run(body: Callable[..., Any], inputs: list[Array], family: str, cores: int = 1) -> Array:
    machine = HOST.with_cores(cores)
    low = lowered_bf16(body, inputs, machine)
    assert family in {k.family.removeprefix("amx_") for k in low.kernels}  # a host may have tiles
    vm = relax.VirtualMachine(pipeline.build(low, machine), tvm.cpu())
    return vm["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()


def close(actual: Array, expected: Array, tolerance: float = 1e-6) -> None:
    """Products of bf16 numbers are exact in fp32; only the sum rounds."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


@runs_bf16
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 2, 1), (7, 9, 17), (8, 8, 8), (9, 15, 16), (33, 31, 15), (15, 32, 33), (1, 768, 100), (197, 64, 40)],
)
def test_gemm(m: int, k: int, n: int) -> None:
    x, w = rand(m, k), rand(k, n, seed=1)
    out = run(lambda bb, a: relax.op.matmul(a, relax.const(w)), [x], "gemm", 2)
    close(out, rounded(x) @ rounded(w))


@runs_bf16
def test_batched_gemm_packs_its_second_operand() -> None:
    for a, b in (
        ((3, 7, 9), (3, 9, 17)),
        ((2, 16, 32), (2, 32, 33)),
        ((1, 4, 5), (6, 5, 8)),
        ((8, 31), (31, 15)),
    ):
        x, y = rand(*a), rand(*b, seed=1)
        close(run(lambda bb, p, q: relax.op.matmul(p, q), [x, y], "batch_gemm"), rounded(x) @ rounded(y))


@runs_bf16
@pytest.mark.parametrize(
    ("shape", "weight", "stride", "pad", "groups", "family"),
    [
        ((1, 17, 17, 3), (33, 7, 7, 3), 2, 3, 1, "conv2d"),  # three channels: padded to four
        ((2, 8, 9, 15), (31, 1, 1, 15), 2, 0, 1, "conv2d"),
        ((1, 7, 7, 16), (8, 3, 3, 16), 1, 1, 1, "conv2d"),
        ((1, 16, 15, 3), (24, 3, 3, 3), 2, 1, 1, "conv2d"),  # part of a panel
        ((1, 5, 5, 7), (17, 1, 1, 7), 1, 0, 1, "gemm"),
        ((1, 7, 7, 24), (16, 3, 3, 3), 1, 1, 8, "conv2d"),  # odd channels a group
        ((1, 9, 9, 16), (16, 3, 3, 2), 1, 1, 8, "conv2d"),
    ],
)
def test_convolution(shape: Any, weight: Any, stride: int, pad: int, groups: int, family: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = rand(*shape), rand(*weight, seed=1)

    def body(bb: Any, a: Any) -> Any:
        out = relax.op.nn.conv2d(a, relax.const(w), strides=stride, padding=pad, groups=groups, **NHWC)
        return relax.op.nn.relu(bb.emit(out))

    tensors = [torch.from_numpy(rounded(t)).permute(0, 3, 1, 2) for t in (x, w)]
    expected = torch.nn.functional.conv2d(*tensors, None, stride, pad, 1, groups).relu().permute(0, 2, 3, 1)
    close(run(body, [x], family), expected.numpy())


@runs_bf16
@pytest.mark.parametrize(
    ("size", "channels", "outputs", "window", "stride", "pad"),
    [
        *((9, channels, channels, 3, 1, 1) for channels in (2, 7, 8, 9, 15, 16, 17, 24, 31, 33, 96)),
        (17, 24, 24, 3, 2, 1), (8, 32, 32, 5, 2, 2), (7, 16, 16, 7, 1, 3), (1, 16, 16, 3, 1, 1),
        (9, 16, 32, 3, 1, 1), (9, 9, 18, 3, 1, 0), (16, 58, 58, 3, 2, 1),
    ],
)  # fmt: skip
def test_depthwise(size: int, channels: int, outputs: int, window: int, stride: int, pad: int) -> None:
    """Data and weights are rounded, products and sums are of fp32; edge values go through."""
    x, w = rand(2, size, size, channels), rand(outputs, window, window, 1, seed=1)
    x[0, 0, 0, 0], x[1, -1, -1, -1] = 3e38, np.inf

    def body(bb: Any, a: Any) -> Any:
        out = relax.op.nn.conv2d(a, relax.const(w), strides=stride, padding=pad, groups=channels, **NHWC)
        return relax.op.nn.relu(bb.emit(out))

    with np.errstate(invalid="ignore", over="ignore"):
        expected = reference(rounded(x), rounded(w), stride, pad, 1).astype("float32")
    out = run(body, [x], "depthwise", 2)
    finite = np.isfinite(expected) & (np.abs(expected) < 1e30)
    assert finite.mean() > 0.5 or size == 1
    close(np.where(finite, out, 0), np.where(finite, np.maximum(expected, 0), 0))
    assert (np.isinf(out) == (expected == np.inf)).all() and (np.isnan(out) == np.isnan(expected)).all()


@runs_bf16
def test_what_a_depthwise_convolution_reads_has_16_bits() -> None:
    """A product in front of it writes 16 bits, and its own result is one that the product behind reads."""
    x, w, d, v = rand(1, 9, 9, 32), rand(64, 1, 1, 32, seed=1), rand(64, 3, 3, 1, seed=2), rand(16, 1, 1, 64, seed=3)

    def body(bb: Any, a: Any) -> Any:
        first = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(a, relax.const(w), **NHWC))))
        middle = bb.emit(relax.op.nn.conv2d(first, relax.const(d), padding=1, groups=64, **NHWC))
        return relax.op.nn.conv2d(bb.emit(relax.op.nn.relu(middle)), relax.const(v), **NHWC)

    low = lowered_bf16(body, [x], HOST.with_cores(1))
    (kernel,) = (k for k in low.kernels if k.family == "depthwise")
    head = next(line for line in low.module[kernel.name].script().splitlines() if "def main" in line)
    assert head.count('"bfloat16"') == 2  # data and result; weights are widened when they are packed


@runs_bf16
@pytest.mark.parametrize("channels", [1, 7, 8, 9, 16, 17, 24, 31, 33])
def test_max_pool_between_products_stays_in_bf16(channels: int) -> None:
    torch = pytest.importorskip("torch")
    x, w = rand(1, 11, 10, 8) - 3, rand(channels, 3, 3, 8, seed=1)  # negative: a border of zeros would win
    v = rand(9, 1, 1, channels, seed=2)

    def body(bb: Any, a: Any) -> Any:
        first = bb.emit(relax.op.nn.conv2d(a, relax.const(w), **NHWC))
        largest = bb.emit(relax.op.nn.max_pool2d(first, 3, 2, 1, layout="NHWC"))
        return relax.op.nn.conv2d(largest, relax.const(v), **NHWC)

    tensors = [torch.from_numpy(rounded(t)).permute(0, 3, 1, 2) for t in (x, w, v)]
    first = torch.nn.functional.conv2d(*tensors[:2])
    largest = torch.nn.functional.max_pool2d(torch.from_numpy(rounded(first.float().numpy())), 3, 2, 1)
    expected = torch.nn.functional.conv2d(largest, tensors[2]).permute(0, 2, 3, 1)
    close(run(body, [x], "pool"), expected.numpy(), 2e-2)  # a sum at the middle of two bf16 may round either way


@runs_bf16
def test_attention_between_products_stays_in_bf16() -> None:
    q, k, v = (rand(1, 17, 2, 24, seed=s) for s in range(3))

    def body(bb: Any, *qkv: Any) -> Any:
        return relax.op.nn.attention(*qkv)

    out = run(body, [q, k, v], "attention")
    a, b, c = (np.moveaxis(rounded(t)[0], 1, 0) for t in (q, k, v))
    score = a @ b.transpose(0, 2, 1) / np.sqrt(24)
    p = np.exp(score - score.max(-1, keepdims=True))
    expected = np.moveaxis((p / p.sum(-1, keepdims=True)) @ c, 0, 1)[None]
    close(out, expected, 2.0**-8)  # the result is rounded once


@pytest.mark.parametrize(
    ("rows", "instruction", "other"), [(4, "vdpbf16ps", "tdpbf16ps"), (28, "tdpbf16ps", "vdpbf16ps")]
)
def test_sapphire_rapids_gets_the_instructions(rows: int, instruction: str, other: str) -> None:
    """Cross-compiled anywhere: few rows by vdpbf16ps, many by AMX; the epilogue's rounding by vcvtneps2bf16."""
    machine = Machine.load("sapphirerapids")
    w = relax.const(rand(64, 64))

    def body(bb: Any, a: Any) -> Any:
        return relax.op.matmul(bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(a, w)))), w)

    low = lowered_bf16(body, [rand(rows, 64)], machine)
    executable = pipeline.build(low, machine)
    modules = [m for m in executable.mod.imports if m.kind == "llvm"]
    text = "".join(m.inspect_source("asm") for m in modules)
    assert text.count(instruction) >= 4 and other not in text
    assert "vcvtneps2bf16" in text and "tvmopt_dot2" not in text


def test_arm_gets_the_instructions() -> None:
    machine = Machine.load("neoverse-v1")
    w = relax.const(rand(64, 64))

    def body(bb: Any, a: Any) -> Any:
        return relax.op.matmul(bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(a, w)))), w)

    executable = pipeline.build(lowered_bf16(body, [rand(8, 64)], machine), machine)
    text = "".join(m.inspect_source("asm") for m in executable.mod.imports if m.kind == "llvm")
    assert text.count("bfdot") >= 4 and "bfcvt" in text and "tvmopt_dot2" not in text


def test_every_number_of_lanes_has_its_function() -> None:
    for feature in ("", *INSTRUCTIONS):
        text = llvm_functions(feature)
        assert all(f"@tvmopt_dot2_{n}(" in text and f"@tvmopt_round_{n}(" in text for n in range(1, 17))


# -- whole compiles --------------------------------------------------------------------------------


def small_cnn(head: Array) -> onnx.ModelProto:
    """Convolutions 3 -> 16 -> 32, global average, `head` [32, classes]."""
    weights = {
        "w1": rand(16, 3, 3, 3, seed=2) * 0.3, "w2": rand(32, 16, 3, 3, seed=3) * 0.15, "head": head,
    }  # fmt: skip
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w1"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["b"]),
            node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["c", "w2"], ["d"], pads=[1] * 4), node("Relu", ["d"], ["e"]),
            node("GlobalAveragePool", ["e"], ["f"]), node("Flatten", ["f"], ["g"]),
            node("MatMul", ["g", "head"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, head.shape[1]])],
        [numpy_helper.from_array(value.astype("float32"), name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@runs_bf16
def test_top1_agrees_on_256_images() -> None:
    """A classifier that has learnt something: the head is fitted to ten noisy patterns. Random heads have no
    margin between classes, so that their agreement would say nothing."""
    rng = np.random.default_rng(5)
    label = rng.integers(0, 10, 256)
    images = rng.standard_normal((10, 3, 16, 16))[label] + 0.5 * rng.standard_normal((256, 3, 16, 16))
    images = images.astype("float32")

    def reference(model: onnx.ModelProto) -> Array:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": images})[0]

    features = reference(small_cnn(np.eye(32)))
    head = np.linalg.lstsq(features, np.eye(10)[label], rcond=None)[0]
    model = small_cnn(head)
    compiled = tvmopt.compile(model, precision="bf16", threads=1)
    accuracy = compiled.report.accuracy
    assert compiled.manifest.precision == "bf16" and accuracy["verified"]
    assert 1e-5 < accuracy["outputs"]["y"] < accuracy["tolerance"] < 0.5
    expected = reference(model)
    found = Model(compiled.artifact).run({"x": images})["y"]
    assert (expected.argmax(1) == label).mean() > 0.9  # it classifies
    assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.99
    notes = [d.reason for d in compiled.report.decisions if d.stage == "tvmopt.ConvertPrecision"]
    assert any("3 operators in bfloat16" in note for note in notes)


@pytest.mark.parametrize(
    ("precision", "target", "words"),
    [
        ("fp16", "x86-64-v2", "f16c"),
        ("bf16", "x86-64-v3", "avx512_bf16"),
        ("int3", "znver5", "int3"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(precision: str, target: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tvmopt.compile(small_cnn(np.eye(32)), precision=precision, target=target)


@pytest.mark.parametrize("columns", [1, 4, 7, 8, 16, 17, 33])
def test_models_of_bfloat16_on_a_processor_without_its_instructions(columns: int) -> None:
    """Products and rounding by arithmetic: x86-64-v3 has AVX2 only."""
    rng = np.random.default_rng(columns)
    kind = ml_dtypes.bfloat16
    w = rng.standard_normal((4, columns)).astype(kind)
    x = rng.standard_normal((3, 4)).astype(kind)
    x[1] = np.array([np.inf, np.nan, 1e38, 1e-40]).astype(kind)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x", TensorProto.BFLOAT16, [3, 4])],
        [value("y", TensorProto.BFLOAT16, [3, columns])],
        [helper.make_tensor("w", TensorProto.BFLOAT16, w.shape, w.tobytes(), raw=True)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvmopt.compile(model, target="x86-64-v3", threads=1, verify=False)
    found = np.asarray(compiled(x)).astype(np.float64)
    with np.errstate(all="ignore"):
        want = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32).astype(kind).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_allclose(found, want, rtol=2.0**-7)
