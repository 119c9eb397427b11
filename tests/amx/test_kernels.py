"""AMX kernels: numbers at the edges of tiles, no access outside, the instructions, whole models - in the emulator, or
on the real instructions where there are some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.amx import Misuse, machine, real, run, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "it runs")

GEMMS: list[dict[str, Any]] = [
    {"m": m, "k": k, "n": n, "then": then, "cores": cores}
    for m, k, n, then, cores in (
        (16, 64, 33, "relu", 1), (15, 128, 17, "", 1), (17, 102, 15, "gelu", 1), (31, 33, 32, "residual", 1),
        (32, 96, 64, "gelu", 1), (33, 34, 31, "relu", 1), (9, 768, 100, "", 2), (8, 512, 160, "residual", 2),
        (49, 97, 16, "", 1), (197, 64, 40, "residual", 2), (64, 1000, 96, "relu", 2), (129, 24, 130, "", 1),
        (96, 512, 32, "relu", 2), (128, 32, 96, "residual", 2), (130, 33, 95, "gelu", 1),  # rows outermost
    )
]  # fmt: skip
CONVS: list[dict[str, Any]] = [
    {"shape": [1, 17, 17, 3], "weight": [33, 7, 7, 3], "stride": 2, "pad": 3, "then": "relu"},  # padded to 4 channels
    {"shape": [2, 9, 8, 15], "weight": [31, 3, 3, 15], "pad": 1, "then": "residual"},
    {"shape": [1, 7, 7, 64], "weight": [64, 3, 3, 64], "pad": 1, "then": "relu", "cores": 2},
    {"shape": [1, 15, 15, 32], "weight": [40, 3, 3, 32], "stride": 2, "pad": 1},  # an odd width: two phases
    {"shape": [1, 14, 14, 64], "weight": [40, 1, 1, 64], "stride": 2, "then": "relu"},  # decimated
    {"shape": [1, 14, 14, 31], "weight": [48, 5, 5, 31], "stride": 3, "pad": 2},
    {"shape": [1, 14, 14, 16], "weight": [17, 3, 1, 16], "stride": 2, "dilation": [2, 1]},
    {"shape": [1, 33, 31, 32], "weight": [16, 3, 3, 32], "pad": 1, "cores": 2, "then": "relu"},  # a panel of one tile
    {"shape": [1, 14, 14, 64], "weight": [96, 1, 1, 64], "then": "residual"},  # a GEMM
]
GEMMS_OF_BYTES: list[dict[str, Any]] = [
    {"m": m, "k": k, "n": n, "cores": cores}
    for m, k, n, cores in (
        (16, 64, 64, 1), (15, 256, 17, 1), (31, 130, 15, 1), (31, 65, 32, 1), (33, 68, 31, 2), (9, 1536, 100, 2),
        (197, 127, 40, 2), (64, 1001, 96, 2), (129, 48, 130, 1), (32, 192, 64, 1),
        (128, 64, 96, 2), (130, 65, 95, 1),  # rows outermost
    )
] + [{"m": 32, "k": 65_792, "n": 33, "extreme": extreme} for extreme in (-128, 127)]  # fmt: skip
GEMMS += [{**GEMMS[k], "rows": "open"} for k in (0, 2, 5, 10)]
GEMMS_OF_BYTES += [{**GEMMS_OF_BYTES[k], "rows": "open"} for k in (2, 4, 6)]
CONVS_OF_BYTES: list[dict[str, Any]] = [
    {"shape": [1, 17, 17, 3], "weight": [33, 7, 7, 3], "stride": 2, "pad": 3, "zero": 114},
    {"shape": [2, 9, 8, 15], "weight": [31, 3, 3, 15], "pad": 1, "zero": 255},
    {"shape": [1, 7, 7, 64], "weight": [64, 3, 3, 64], "pad": 1, "zero": 128, "cores": 2},
    {"shape": [1, 15, 15, 32], "weight": [40, 3, 3, 32], "stride": 2, "pad": 1},
    {"shape": [1, 14, 14, 128], "weight": [40, 1, 1, 128], "stride": 2},
    {"shape": [1, 14, 14, 31], "weight": [48, 5, 5, 31], "stride": 3, "pad": 2, "zero": 1},
    {"shape": [1, 18, 18, 16], "weight": [17, 3, 1, 16], "stride": 2, "dilation": 2},
    {"shape": [1, 33, 31, 32], "weight": [16, 3, 3, 32], "pad": 1, "cores": 2},
    {"shape": [1, 14, 14, 66], "weight": [96, 1, 1, 66]},  # a GEMM
]
CONVS += [{**CONVS[k], "samples": "open"} for k in (0, 2)]
CONVS_OF_BYTES += [{**CONVS_OF_BYTES[k], "samples": "open"} for k in (0, 2, 8)]
ATTENTION: list[dict[str, Any]] = [
    {"queries": 17, "keys": 17, "depth": 32},
    {"queries": 64, "keys": 33, "depth": 64, "cores": 2},
    {"queries": 49, "keys": 49, "depth": 32, "mask": [2, 1, 1, 49]},
    {"queries": 33, "keys": 31, "depth": 32, "mask": [1, 2, 33, 31]},
    {"queries": 33, "keys": 31, "depth": 32, "mask": [1, 2, 33, 31], "fill": 1.5},
    {"queries": 49, "keys": 49, "depth": 32, "mask": [2, 1, 1, 49], "fill": -1e4},
    {"queries": 70, "keys": 70, "depth": 64, "causal": "TopLeft", "cores": 2},
    {"queries": 16, "keys": 65, "depth": 32, "heads": 4, "kv_heads": 2, "causal": "BottomRight"},
]
GUARDED = [(16, 70, 32), (32, 33, 64), (17, 96, 32), (49, 64, 64), (64, 24, 128)]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[dict[str, Any]]]:
    """All kernels from one child, which imports TVM once."""
    groups = {
        "gemm": [{"kind": "gemm", **case} for case in GEMMS],
        "conv": [{"kind": "conv", **case} for case in CONVS],
        "gemm_bytes": [{"kind": "gemm_bytes", **case} for case in GEMMS_OF_BYTES],
        "conv_bytes": [{"kind": "conv_bytes", **case} for case in CONVS_OF_BYTES],
        "attention": [{"kind": "attention", **case} for case in ATTENTION],
        "guarded": [{"kind": "guarded", "m": m, "k": k, "n": n} for m, k, n in GUARDED],
    }
    found = iter(run([case for group in groups.values() for case in group]))
    return {name: [next(found) for _ in group] for name, group in groups.items()}


def check(outcome: dict[str, Any], tolerance: float = TOLERANCE, product: str = "tdpbf16ps") -> None:
    """Right, by tiles, as planned, and all threads' tiles released."""
    assert outcome["error"] <= tolerance, outcome
    assert any(family.startswith("amx_") for family in outcome["kernels"]), outcome
    assert not outcome.get("notes") and outcome["configured"] == 0, outcome
    if not real():
        assert outcome["ran"][product] > 0 and outcome["ran"]["tilerelease"] > 0


@pytest.mark.parametrize("index", range(len(GEMMS)), ids=lambda i: "x".join(str(v) for v in GEMMS[i].values()))
def test_gemm(outcomes: dict[str, list[dict[str, Any]]], index: int) -> None:
    check(outcomes["gemm"][index])


def test_rows_are_outermost_where_the_result_is_larger_than_the_weights(outcomes: Any) -> None:
    for group, cases, few, many in (("gemm", GEMMS, 32, 768), ("gemm_bytes", GEMMS_OF_BYTES, 64, 1536)):
        pairs = zip(cases, outcomes[group], strict=True)
        found = {(c["m"], c["k"], c["n"]): o for c, o in pairs if "rows" not in c}
        assert found[128, few, 96]["kernels"]["amx_gemm"]["rows_outer"] == 1
        assert found[9, many, 100]["kernels"]["amx_gemm"]["rows_outer"] == 0


@pytest.mark.parametrize("index", range(len(CONVS)))
def test_convolution(outcomes: dict[str, list[dict[str, Any]]], index: int) -> None:
    check(outcomes["conv"][index])


@pytest.mark.parametrize("index", range(len(GEMMS_OF_BYTES)))
def test_gemm_of_bytes(outcomes: dict[str, list[dict[str, Any]]], index: int) -> None:
    check(outcomes["gemm_bytes"][index], 0, "tdpbusd")


@pytest.mark.parametrize("index", range(len(CONVS_OF_BYTES)))
def test_convolution_of_bytes(outcomes: dict[str, list[dict[str, Any]]], index: int) -> None:
    check(outcomes["conv_bytes"][index], 0, "tdpbusd")


@pytest.mark.parametrize("index", range(len(ATTENTION)))
def test_attention(outcomes: dict[str, list[dict[str, Any]]], index: int) -> None:
    check(outcomes["attention"][index], 2.0**-7)  # probabilities and result are rounded to bf16


@pytest.mark.parametrize("index", range(len(GUARDED)))
def test_nothing_is_read_or_written_beyond_the_operands(outcomes: Any, index: int) -> None:
    assert outcomes["guarded"][index]["error"] <= TOLERANCE


@pytest.mark.skipif(real(), reason="the emulator is not used here")
def test_four_loads_for_four_products_and_one_store_a_tile(outcomes: Any) -> None:
    """32 x 64, K = 96: two panels of one 2x2 block, three steps. Sums stay in tiles: each is stored once."""
    ran, code = outcomes["gemm"][4]["ran"], outcomes["gemm"][4]["code"]
    assert ran["tdpbf16ps"] == ran["tileloadd"] == 2 * 4 * 3
    assert ran["tilestored"] == ran["tilezero"] == 2 * 4
    # a spill would be one more; LLVM may write out the loop over panels
    assert code["tdpbf16ps"] == code["tileloadd"] and code["tilestored"] == code["tilezero"] in (4, 8)


@pytest.mark.skipif(real(), reason="the emulator is not used here")
def test_the_emulator_refuses_misuse() -> None:
    """A configuration whose A has fewer pairs than B has rows ends the child."""
    with pytest.raises(Misuse, match="AMX: a product: the words of A"):
        run([{"kind": "misuse"}])


def test_tiles_and_vectors_give_the_same_bytes(tmp_path: Path) -> None:
    """Two quantised networks: AMX, VNNI and AVX2 agree to the last bit."""
    from tests.test_int8_models import NETS, Net

    paths = []
    for name, kind in (("residual", "uint8"), ("gated", "int8")):
        onnx.save(NETS[name](Net(kind, True)), tmp_path / f"{name}.onnx")
        paths.append(str(tmp_path / f"{name}.onnx"))
    for outcome in run([{"kind": "quantised", "path": path} for path in paths]):
        assert outcome["same"] and outcome["configured"] == 0, outcome
        assert real() or outcome["ran"]["tdpbusd"] > 0


@pytest.mark.skipif(not machine().has("avx512bf16"), reason="no avx512bf16 here: --precision bf16 is refused")
def test_a_small_network(tmp_path: Path) -> None:
    """Convolutions, residual sums, attention, LayerNorm, GELU, a classifier: the whole way through `tvmopt.compile`."""
    from tests.amx.nets import save_cnn, save_transformer

    paths = [save_cnn(tmp_path / "cnn.onnx"), save_transformer(tmp_path / "transformer.onnx")]
    for outcome, family in zip(
        run([{"kind": "model", "path": str(p), "threads": 2} for p in paths]), ("amx_conv2d", "amx_gemm"), strict=True
    ):
        assert outcome["error"] <= 0.05 and outcome["kernels"][family] >= 2, outcome
        assert {"amx-bf16", "amx-tile"} <= set(outcome["features"]) and outcome["configured"] == 0
