"""Rows rounded to 8 bits before the judge: right models pass, a few per cent too much in one product do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt import api
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.rounds import mark, may_round, rounded_by
from tvmopt.errors import AccuracyError
from tvmopt.operators.codes import round_groups
from tvmopt.operators.packed_product import Packing, matrix

WIDTH, LAYERS = 64, 4


def network(level: int = 4, factor: float = 1.0) -> onnx.ModelProto:
    """Layers of a norm, two products of weights of 4 bits with an activation between, and a residual; in the third one
    the scales of one product are `factor` times as large."""
    generator = np.random.default_rng(7)
    nodes, weights = [], [numpy_helper.from_array(np.ones(WIDTH, np.float32), "ones")]

    def product(x: str, name: str, k: int, n: int, by: float = 1.0) -> str:
        codes = generator.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
        scales = (generator.uniform(0.5, 1.0, n * (k // 32)) * by * 0.3 / k**0.5).astype(np.float32)
        weights.extend([numpy_helper.from_array(codes, f"{name}_w"), numpy_helper.from_array(scales, f"{name}_s")])
        nodes.append(
            helper.make_node(
                "MatMulNBits", [x, f"{name}_w", f"{name}_s"], [name], name=f"node_{name}", domain="com.microsoft",
                K=k, N=n, bits=4, block_size=32, accuracy_level=level,
            )
        )  # fmt: skip
        return name

    x = "x"
    for layer in range(LAYERS):
        nodes.append(helper.make_node("SimplifiedLayerNormalization", [x, "ones"], [f"norm{layer}"], epsilon=1e-6))
        up = product(f"norm{layer}", f"up{layer}", WIDTH, 2 * WIDTH)
        nodes.append(helper.make_node("Tanh", [up], [f"act{layer}"]))
        down = product(f"act{layer}", f"down{layer}", 2 * WIDTH, WIDTH, factor if layer == 2 else 1.0)
        nodes.append(helper.make_node("Add", [x, down], [x := f"x{layer}"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["rows", WIDTH])], [value(x, TensorProto.FLOAT, ["rows", WIDTH])],
        weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("rows", [1, 24])
def test_rounded_rows_are_right(rows: int) -> None:
    """Verification agrees, and as closely as with float32: it rounds what the compiled model rounds."""
    made = api.compile(network(), shape={"rows": (rows,)})
    report = made.artifact.manifest.report
    assert len(rounded_by(report)) == 2 * LAYERS == sum(k["name"].startswith("rounded") for k in _calls(report))
    assert made.report.accuracy["verified"] and made.report.accuracy["kernels"] >= 2 * LAYERS


def _calls(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [k for k in report["kernels"] for _ in range(k["calls"])]


@pytest.mark.parametrize("option", [{"int8": "off"}, {"exact": True}])
def test_may_be_left_alone(option: dict[str, Any]) -> None:
    made = api.compile(network(), shape={"rows": (3,)}, **option)
    assert not rounded_by(made.artifact.manifest.report)
    told = [d for d in made.report.decisions if d.stage == "tvmopt.RoundActivations"]
    assert len(told) == 2 * LAYERS and all(d.verdict == "declined" and d.reason.startswith("1: ") for d in told)
    assert made.report.accuracy["verified"]
    assert made.report.accuracy["max_relative_error"] < 1e-5


def test_without_leave_nothing_is_rounded() -> None:
    made = api.compile(network(level=0), shape={"rows": (3,)})
    assert "RoundActivations" not in {d.stage.rpartition(".")[2] for d in made.report.decisions}


@pytest.mark.parametrize(("rows", "percent"), [(1, 3), (1, -3), (24, 3), ("1..40", 3), ("1..40@30", -3)])
def test_three_per_cent_in_one_product_are_found(tmp_path: Path, rows: int | str, percent: float) -> None:
    """The artifact of a model one of whose products is a little larger, judged by the right model; the kernels of open
    sizes, too, are looked at one by one."""
    from tvmopt.analysis.verify import verify

    right = tmp_path / "right.onnx"
    onnx.save(network(), right)
    wrong = api.compile(network(factor=1 + percent / 100), verify=False, shape={"rows": (rows,)})
    with pytest.raises(AccuracyError, match=r"the first wrong kernel is rounded_product\S* \(node_down2\)"):
        verify(wrong.artifact, right)
    assert verify(api.compile(network(), verify=False, shape={"rows": (rows,)}).artifact, right).ok


def test_the_oracle_rounds_marked_nodes_alone() -> None:
    model = network()
    x = np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
    plain = Oracle(model).run({"x": x}, ["norm0", "up0", "act0", "down0"])
    assert mark(model, {"node_up0"})
    marked = Oracle(model).run({"x": x}, ["up0", "act0", "down0"])
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    weight = matrix(Packing(WIDTH, 2 * WIDTH, 4, 32), stored["up0_w"], stored["up0_s"].reshape(-1, 2), None)
    numbers, steps = round_groups(plain["norm0"].astype(np.float32), 32)
    rounded = (numbers.astype(np.float64) * steps).reshape(x.shape)
    np.testing.assert_allclose(marked["up0"], rounded @ weight, rtol=1e-6, atol=1e-7)
    assert 1e-4 < np.abs(marked["up0"] - plain["up0"]).max() < 0.05
    weight = matrix(Packing(2 * WIDTH, WIDTH, 4, 32), stored["down0_w"], stored["down0_s"].reshape(-1, 4), None)
    np.testing.assert_allclose(marked["down0"], marked["act0"] @ weight, rtol=1e-6, atol=1e-6)
    assert mark(model, ()) and not mark(model, ())  # they were marked, and are no more
    np.testing.assert_array_equal(Oracle(model).run({"x": x}, ["up0"])["up0"], plain["up0"])


def test_which_nodes_allow_it() -> None:
    assert sum(map(may_round, network().graph.node)) == 2 * LAYERS
    assert not any(map(may_round, network(level=1).graph.node))
