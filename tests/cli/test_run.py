"""`tvmopt run`: what it writes, what it takes, what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.cli.test_commands import tvmopt as command
from tests.runtime.small import small_model
from tvmopt.cli.run import _summary


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    onnx.save(small_model(), str(folder / "small.onnx"))
    tvmopt.compile(small_model(), output=folder / "small.tvmopt", threads=1, verify=False)
    return folder / "small.tvmopt"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two outputs."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xyz"]
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"]), helper.make_node("Tanh", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("run") / "two.tvmopt"
    tvmopt.compile(model, output=path, threads=1, verify=False)
    return path


def test_files_hold_what_their_names_say(one: Path, two: Path, tmp_path: Path) -> None:
    assert command("run", one, "-o", tmp_path / "out.npy").returncode == 0
    assert (tmp_path / "out.npy").read_bytes()[:6] == b"\x93NUMPY"
    assert np.load(tmp_path / "out.npy").shape == (1, 10)
    assert command("run", two, "-o", tmp_path / "out.npz").returncode == 0
    assert sorted(np.load(tmp_path / "out.npz")) == ["y", "z"]


@pytest.mark.parametrize(("name", "told"), [("out.csv", "'.csv'"), ("out", "does not say")])
def test_other_names_are_refused(one: Path, tmp_path: Path, name: str, told: str) -> None:
    done = command("run", one, "-o", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and told in done.stderr and ".npz" in done.stderr
    done = command("run", one, "-o", "-", cwd=tmp_path)
    assert done.returncode == 2 and "standard output takes no results" in done.stderr
    assert not list(tmp_path.iterdir())


def test_several_outputs_do_not_fit_into_one_array(two: Path, tmp_path: Path) -> None:
    done = command("run", two, "-o", tmp_path / "out.npy")
    assert done.returncode == 2 and "several outputs: y, z" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--iterations", "7"), ("--warmup", "1"), ("--duration", "0.01")])
def test_asking_for_iterations_asks_for_the_time(one: Path, option: tuple[str, str]) -> None:
    timing = json.loads(command("run", one, *option, "--json").stdout)["timing"]
    assert timing["n"] >= 7 and (option[0] != "--iterations" or timing["n"] == 7)
    assert json.loads(command("run", one, "--json").stdout)["timing"] is None


def test_numbers_are_numbers(one: Path) -> None:
    (output,) = json.loads(command("run", one, "--json").stdout)["outputs"]
    assert all(isinstance(output[name], float) for name in ("min", "mean", "max"))
    assert output["shape"] == [1, 10] and output["not_finite"] == 0


def test_numbers_that_are_not_finite_are_counted_and_no_zeros(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "root", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tvmopt.compile(model, output=tmp_path / "root.tvmopt", threads=1, verify=False)
    for x, row, figures in (
        ([-1, -1, -1], ["-", "-", "-", "3", "of", "3"], (None, None, None, 3)),
        ([4, -1, 1], ["1", "1.5", "2", "1", "of", "3"], (1, 1.5, 2, 1)),
    ):
        np.save(tmp_path / "x.npy", np.array(x, "f4"))
        done = command("run", tmp_path / "root.tvmopt", "-i", f"x={tmp_path / 'x.npy'}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1].split()[2:] == row
        assert "NaN or Inf" in done.stdout
        (output,) = json.loads(
            command("run", tmp_path / "root.tvmopt", "-i", f"x={tmp_path / 'x.npy'}", "--json").stdout
        )["outputs"]
        assert tuple(output[name] for name in ("min", "mean", "max", "not_finite")) == figures
    empty = _summary(np.zeros((0, 4), np.float32))
    assert (empty["min"], empty["mean"], empty["max"], empty["not_finite"]) == (None, None, None, 0)


def test_an_onnx_file_is_compiled_and_said_so(one: Path, tmp_path: Path) -> None:
    done = command("run", one.with_suffix(".onnx"), "--threads", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "compiled for this run only" in done.stderr and "float32[1, 10]" in done.stdout
    assert not list(tmp_path.iterdir())
    same = command("run", one)
    assert same.stdout == done.stdout and same.stderr == ""


def test_more_threads_than_cores_are_warned_of(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmopt.targets import detect

    monkeypatch.setattr(detect, "usable_cores", lambda: 2)
    done = command("run", one, "--threads", "64")
    assert done.returncode == 0 and "64 threads share 2 cores" in done.stderr
    assert command("run", one, "--threads", "2").stderr == ""
