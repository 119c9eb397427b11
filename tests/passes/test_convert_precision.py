"""Which operators get 16-bit operands, where the casts end up, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.importer.sizes import variable
from tvmopt.lowering import keeps_fp32
from tvmopt.passes import ConvertPrecision
from tvmopt.passes.graph import dtype, op_name
from tvmopt.report import DecisionLog
from tvmopt.targets import Machine

R = relax.op
BF16 = {"tol": 3e-2}
W = relax.const(rand(16, 16, scale=0.25))


def convert(precision: str = "bf16", unsupported: Any = None) -> Any:
    return lambda log: ConvertPrecision(log, precision, unsupported)


def types(mod: Any, name: str) -> list[list[str]]:
    """The operand types of every call of `name`."""
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [[dtype(a) for a in c.args] for c in calls if op_name(c) == name]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_product_takes_16_bits_and_answers_in_float32(precision: str) -> None:
    mod = build({"x": (7, 16)}, lambda b, x: R.matmul(x, W))
    after = check_rewrite(convert(precision), mod, {"matmul": 1, "astype": 1}, **BF16)
    half = "bfloat16" if precision == "bf16" else "float16"
    assert types(after, "matmul") == [[half, half]]
    assert [str(f.dtype) for f in after["main"].ret_ty.fields] == ["float32"]


def test_numbers_of_a_quantized_tensor_are_not_rounded() -> None:
    """Sums of bytes are exact in float32: rounded operands put 2 of 64 elements of a QLinearMatMul off by a step."""
    scale, zero = relax.const(np.float32(0.05)), relax.const(np.int8(2))
    log = DecisionLog()

    def body(b: Any, x: Any) -> Any:
        q = b.emit(R.quantize(x, scale, zero, out_dtype="int8"))
        moved = b.emit(R.permute_dims(b.emit(R.dequantize(q, scale, zero)), [1, 0]))
        return R.quantize(b.emit(R.matmul(moved, W)), relax.const(np.float32(0.1)), zero, out_dtype="int8")

    mod = build({"x": (16, 7)}, body)
    assert types(ConvertPrecision(log)(mod), "matmul") == [["float32", "float32"]]
    assert [d.reason for d in log.decisions] == ["7: an operand is a quantized tensor's numbers"]


@pytest.mark.parametrize("turns", [True, False])
def test_a_fourier_transform_is_not_rounded(turns: bool) -> None:
    angles = np.outer(np.arange(16), np.arange(9)) * np.pi / 8
    matrix = np.stack([np.cos(angles), -np.sin(angles)], -1).reshape(16, 18)
    matrix = matrix if turns else matrix * np.linspace(1, 2, 18)
    log = DecisionLog()
    mod = build({"x": (7, 16)}, lambda b, x: R.matmul(x, relax.const(matrix.astype("float32"))))
    converted = types(ConvertPrecision(log)(mod), "matmul") != [["float32", "float32"]]
    assert converted is not turns
    assert [d.reason for d in log.decisions if d.reason[:1] == "8"] == (["8: a Fourier transform"] if turns else [])


def test_a_value_read_twice_exists_in_16_bits_only() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.emit(R.nn.relu(R.matmul(x, W)))
        return R.add(b.emit(R.matmul(y, W)), y)  # the residual reads what the product reads

    after = check_rewrite(
        convert(), build({"x": (8, 16)}, body), {"matmul": 2, "nn.relu": 1, "add": 1, "astype": 3}, **BF16
    )
    assert types(after, "astype") == [["float32"], ["float32"], ["bfloat16"]]


def test_casts_move_above_what_only_moves_elements() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.emit(R.nn.relu(R.matmul(x, W)))
        z = b.emit(R.nn.relu(R.matmul(y, W)))
        both = b.emit(R.permute_dims(R.concat([y, z], 0), [1, 0]))
        return R.matmul(both, relax.const(rand(18, 4)))

    after = check_rewrite(
        convert(),
        build({"x": (9, 16)}, body),
        {"matmul": 3, "nn.relu": 2, "concat": 1, "permute_dims": 1, "astype": 3},
        **BF16,
    )
    assert types(after, "permute_dims") == [["bfloat16"]]


def test_parts_of_a_split_stay_in_16_bits() -> None:
    def body(b: Any, x: Any) -> Any:
        parts = b.emit(R.split(b.emit(R.nn.relu(R.matmul(x, W))), 2, axis=1))
        return R.matmul(b.emit(parts[0]), b.emit(R.permute_dims(b.emit(parts[1]), [1, 0])))

    after = check_rewrite(
        convert(),
        build({"x": (5, 16)}, body),
        {"matmul": 2, "nn.relu": 1, "split": 1, "permute_dims": 1, "astype": 2},
        **BF16,
    )
    assert types(after, "split") == [["bfloat16"]]


def test_a_part_of_a_split_that_nothing_multiplies_is_widened() -> None:
    def body(b: Any, x: Any) -> Any:
        parts = b.emit(R.split(b.emit(R.nn.relu(x)), 2, axis=1))
        return R.concat([b.emit(R.matmul(b.emit(parts[0]), W)), b.emit(R.nn.relu(b.emit(parts[1])))], 1)

    after = check_rewrite(
        convert(),
        build({"x": (5, 32)}, body),
        {"matmul": 1, "nn.relu": 2, "split": 1, "concat": 1, "astype": 2},
        **BF16,
    )
    assert types(after, "split") == [["bfloat16"]]


def test_a_part_of_an_input_is_rounded_behind_the_split() -> None:
    def body(b: Any, x: Any) -> Any:
        parts = b.emit(R.split(x, 2, axis=1))
        return R.concat([b.emit(R.matmul(b.emit(parts[0]), W)), b.emit(R.nn.relu(b.emit(parts[1])))], 1)

    after = check_rewrite(
        convert(),
        build({"x": (5, 32)}, body),
        {"matmul": 1, "nn.relu": 1, "split": 1, "concat": 1, "astype": 1},
        **BF16,
    )
    assert types(after, "split") == [["float32"]]


@pytest.mark.parametrize("half", [False, True])
def test_others_read_an_input_with_all_its_digits(half: bool) -> None:
    """Also in another shape, and one of float16: it is there as float32 anyway."""

    def body(b: Any, x: Any) -> Any:
        y = b.emit(R.astype(x, "float32")) if half else b.emit(R.squeeze(x, [0]))
        y = b.emit(R.squeeze(y, [0])) if half else y
        return R.add(b.emit(R.matmul(y, W)), y)

    mod = build({"x": ((1, 5, 16), "float16" if half else "float32")}, body)
    after = ConvertPrecision(DecisionLog())(mod)
    assert types(after, "add") == [["float32", "float32"]]
    assert types(after, "astype") == [*([["float16"]] if half else []), ["float32"]]


def test_attention_answers_in_16_bits_and_its_mask_stays() -> None:
    def body(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        return R.matmul(R.reshape(R.nn.attention(q, k, v, m), (6, 16)), W)

    mod = build({"q": (1, 6, 2, 8), "k": (1, 6, 2, 8), "v": (1, 6, 2, 8), "m": (1, 1, 6, 6)}, body)
    after = check_rewrite(
        convert(), mod, {"nn.attention_bias": 1, "reshape": 1, "matmul": 1, "astype": 3}, numbers=False
    )
    assert types(after, "nn.attention_bias") == [["bfloat16"] * 3 + ["float32"]]


def test_a_convolution_and_the_model_outputs_stay_float32() -> None:
    weight = relax.const(rand(8, 3, 3, 4, scale=0.2))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}

    def body(b: Any, x: Any) -> Any:
        y = b.emit(R.nn.relu(R.nn.conv2d(x, weight, padding=1, **layouts)))
        return y, R.nn.conv2d(y, relax.const(rand(4, 1, 1, 8)), **layouts)

    after = check_rewrite(
        convert(), build({"x": (1, 5, 5, 4)}, body), {"nn.conv2d": 2, "nn.relu": 1, "astype": 2}, **BF16
    )
    out = after["main"].ret_ty
    assert {str(field.dtype) for field in out.fields} == {"float32"}


# -- refusals --------------------------------------------------------------------------------


def refused(mod: Any, precision: str = "bf16", unsupported: Any = None) -> list[str]:
    log = DecisionLog()
    after = convert(precision, unsupported)(log)(mod)
    assert ops(after) == ops(mod)
    return [d.reason for d in log if d.verdict == "declined"]


def test_float64_is_left_alone() -> None:
    mod = build({"x": ((4, 8), "float64"), "y": ((8, 4), "float64")}, lambda b, x, y: R.matmul(x, y))
    assert refused(mod) == ["1: operands are float64"]


def depthwise(b, x):
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    return R.nn.conv2d(x, relax.const(rand(8, 3, 3, 1)), groups=8, **layouts)


def test_depthwise_convolutions_take_16_bits_where_there_is_a_kernel() -> None:
    mod = build({"x": (1, 4, 4, 8)}, depthwise)
    after = convert("bf16")(DecisionLog())(mod)
    assert types(after, "nn.conv2d") == [["bfloat16", "bfloat16"]]
    assert refused(mod, unsupported=lambda name, call: "no such kernel") == ["5: no such kernel"]


def test_the_depthwise_convolutions_of_gpus_are_left_alone() -> None:
    mod = build({"x": (1, 4, 4, 8)}, depthwise)
    machine = Machine.load("nvidia-h100")
    (reason,) = refused(mod, "fp16", lambda name, call: keeps_fp32(name, call, machine, "fp16", exact=False))
    assert reason.startswith("5: ") and "pairs" in reason


def test_a_reduction_of_one_term_is_no_product_of_pairs() -> None:
    assert refused(build({"x": (4, 1)}, lambda b, x: R.matmul(x, relax.const(rand(1, 8))))) == [
        "3: a reduction of one term"
    ]


def test_weights_beyond_float16_are_left_alone() -> None:
    mod = build({"x": (4, 16)}, lambda b, x: R.matmul(x, relax.const(np.full((16, 4), 7e4, "float32"))))
    assert refused(mod, "fp16") == ["4: a weight does not fit into float16"]
    assert not [d for d in refused(build({"x": (4, 16)}, lambda b, x: R.nn.relu(x)), "fp16")]


def test_a_missing_kernel_is_told() -> None:
    mod = build({"x": (4, 16)}, lambda b, x: R.matmul(x, W))
    assert refused(mod, unsupported=lambda name, call: f"no kernel for {name}") == ["5: no kernel for matmul"]


def test_what_only_moves_elements_may_be_an_output_too() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.emit(R.permute_dims(b.emit(R.nn.relu(R.matmul(x, W))), [1, 0]))
        return y, R.matmul(y, relax.const(rand(9, 4)))

    after = check_rewrite(
        convert(), build({"x": (9, 16)}, body), {"matmul": 2, "nn.relu": 1, "permute_dims": 1, "astype": 3}, **BF16
    )
    assert [str(f.dtype) for f in after["main"].ret_ty.fields] == ["float32", "float32"]


def open_rows(*dims: Any) -> tuple[Any, ...]:
    """A shape of an open number of rows, and these sizes."""
    return (variable("n"), *dims)


def test_open_rows_and_samples_are_multiplied_by_constants_in_16_bits() -> None:
    product = build({"x": open_rows(16)}, lambda b, x: R.matmul(x, W))
    kernel = relax.const(rand(8, 16, 3, 3))
    layer = build({"x": open_rows(16, 9, 9)}, lambda b, x: R.nn.conv2d(x, kernel, padding=1))
    for mod, name in ((product, "matmul"), (layer, "nn.conv2d")):
        after = check_rewrite(convert(), mod, {name: 1, "astype": 1}, numbers=False)
        assert types(after, name) == [["bfloat16", "bfloat16"]]


def test_open_operands_that_a_run_computes_stay_in_float32() -> None:
    n = variable("n")
    scores = build({"x": (2, n, 16), "y": (2, 16, n)}, lambda b, x, y: R.matmul(x, y))
    (reason,) = refused(scores, "bf16")
    assert reason.startswith("2: an open size")
    cuda = Machine.load("nvidia-h100")
    (reason,) = refused(
        build({"x": open_rows(16)}, lambda b, x: R.matmul(x, W)),
        "bf16",
        lambda name, call: keeps_fp32(name, call, cuda, "bf16", exact=False),
    )
    assert reason == "5: kernels for GPUs take no 16-bit operands of open sizes"


@pytest.mark.parametrize(("size", "winograd"), [(("h", "w"), True), ((56, "w"), False), ((56, 56), False)])
def test_open_pictures_keep_winograds_form_where_it_is_faster(size: Any, winograd: bool) -> None:
    dims = [d if isinstance(d, int) else variable(d) for d in size]
    kernel = relax.const(rand(64, 3, 3, 64))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    mod = build({"x": (1, *dims, 64)}, lambda b, x: R.nn.conv2d(x, kernel, padding=1, **layouts))
    (call,) = (b.value for b in mod["main"].body.blocks[0].bindings if op_name(b.value) == "nn.conv2d")
    machine = Machine.load("sapphirerapids")
    reason = keeps_fp32("nn.conv2d", call, machine, "bf16", exact=False)
    assert reason == ("Winograd in fp32 is faster" if winograd else None)
