"""The smallest piece that fails: with a command, with numbers, by bisection and one by one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.command import tvmopt
from tests.debug.nets import info, model, residual, saved
from tvmopt.debug.check import Command, Finding
from tvmopt.debug.layers import Layers
from tvmopt.debug.reduce import Search, reduce
from tvmopt.errors import InputError

FAILS_WITH = """
import sys, onnx
names = {n.name for n in onnx.load(sys.argv[1], load_external_data=False).graph.node}
sys.exit(3 if set(sys.argv[2].split("+")) <= names else 0)
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return saved(residual(), tmp_path / "net.onnx")


def command(folder: Path, nodes: str) -> str:
    """A check that fails where these nodes are there."""
    script = folder / "fails_with.py"
    script.write_text(FAILS_WITH)
    return f"{sys.executable} {script} {{model}} {nodes}"


class Has:
    """The same as a function, counting."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.calls = set(nodes), 0

    def __call__(self, path: Path, piece: onnx.ModelProto, feeds: object) -> Finding:
        self.calls += 1
        return Finding("command" if self.nodes <= {n.name for n in piece.graph.node} else "")


@pytest.mark.parametrize("mode", ["bisect", "linear"])
@pytest.mark.parametrize("guilty", [("conv2",), ("conv1",), ("head",), ("conv1", "conv3"), ("relu1", "add3", "pool")])
def test_search_finds_exactly_the_guilty(tmp_path: Path, mode: str, guilty: tuple[str, ...]) -> None:
    check = Has(*guilty)
    search = Search(Layers(residual(), {}, tmp_path), check, wants=False)
    assert search.whole().fails
    inside = search.run(mode)
    assert {search.layers.nodes[i].name for i in inside} == set(guilty)


def test_bisection_needs_few_checks(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(200)]
    check = Has("n150")
    search = Search(Layers(model(nodes, [info("t0", 2)], [info("t200", 2)]), {}, tmp_path), check, wants=False)
    search.whole()
    assert search.run("bisect") == {150}
    assert check.calls < 20


def test_bisection_where_the_last_output_is_right(tmp_path: Path) -> None:
    """Two chains from one input, the first of which is guilty: the end of the second says nothing about it."""
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(100)]
    nodes += [helper.make_node("Neg", [f"s{i}" if i else "t0"], [f"s{i + 1}"], name=f"m{i}") for i in range(100)]
    check = Has("n37")
    outputs = [info("t100", 2), info("s100", 2)]
    search = Search(Layers(model(nodes, [info("t0", 2)], outputs), {}, tmp_path), check, wants=False)
    search.whole()
    assert [search.layers.nodes[i].name for i in search.run("bisect")] == ["n37"] and check.calls < 25


def test_command(net: Path, tmp_path: Path) -> None:
    done = tvmopt(
        "surgeon",
        "reduce",
        net,
        "-o",
        tmp_path / "small.onnx",
        "--check",
        command(tmp_path, "conv2+relu2"),
        "--json",
    )
    found = json.loads(done.stdout)
    assert found["names"] == ["conv2 (Conv)", "relu2 (Relu)"] and found["nodes"] == [9, 2]
    assert found["kind"] == "command" and found["confirmed"] and not found["warning"]
    onnx.checker.check_model(found["path"], full_check=True)


def test_numbers_with_values_of_the_whole_model(net: Path, tmp_path: Path) -> None:
    """Exactly equal numbers are not to be had: with no tolerance every convolution is `wrong`."""
    found = reduce(net, output=tmp_path / "small.onnx", rtol=0.0)
    assert found.kind == "numbers" and found.nodes[1] == 1 and found.confirmed
    with np.load(found.inputs) as file:
        assert set(file.files) == {v.name for v in onnx.load(found.path).graph.input}
    assert "max error" in found.failure


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({}, "does not fail"),
        ({"check": "nothing"}, "where the model goes"),
        ({"check": "no-such-program-here {model}"}, "cannot be run"),
        ({"check": "true {model}", "fail_regex": "("}, "regular expression cannot be parsed"),
        ({"check": "true '{model}"}, "command cannot be parsed"),
        ({"mode": "ternary"}, "no mode"),
        ({"inputs": "/nonexistent.npz"}, "cannot read the inputs"),
    ],
)
def test_refusals(net: Path, tmp_path: Path, arguments: dict[str, str], what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        reduce(net, output=tmp_path / "small.onnx", **arguments)
    assert error.value.fix and ("fail_regex" not in arguments or "--fail-regex" in error.value.where)
    assert not (tmp_path / "small.onnx").exists()


def test_a_command_that_always_fails_is_suspected(net: Path, tmp_path: Path) -> None:
    found = reduce(net, output=tmp_path / "small.onnx", check="false {model}")
    assert "may be the command" in found.warning


def test_regex_and_timeout(tmp_path: Path) -> None:
    net = residual()
    path = saved(net, tmp_path / "net.onnx")
    assert Command("echo bad {model}", "b.d").__call__(path, net, {}).fails
    assert not Command("echo good {model}", "b.d").__call__(path, net, {}).fails
    assert Command("sh -c 'sleep 5' {model}", seconds=0.2).__call__(path, net, {}).kind == "command: timeout"


def test_values_and_pieces(tmp_path: Path) -> None:
    """The reference's values of inner tensors, by NumPy."""
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype("f4")
    layers = Layers(residual(), {"x": x}, tmp_path)
    layers.compute(["c1", "r1", "p"])
    c1, r1 = layers.value("c1"), layers.value("r1")
    assert c1 is not None and r1 is not None
    np.testing.assert_array_equal(np.maximum(c1, 0), r1)
    piece = layers.piece({1})
    assert [v.name for v in piece.graph.input] == ["c1"] and [v.name for v in piece.graph.output] == ["r1"]
    assert layers.value("a3") is None
