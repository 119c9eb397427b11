"""Machine code of kernels, made on all cores and kept: the same bytes however they came about, the right numbers."""

from __future__ import annotations

import ast
import ctypes
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx

import tvmopt
from tvmopt.cache import Kernels
from tvmopt.compiler import kernels
from tvmopt.targets import Machine

ROWS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def model(rows: tuple[int, ...], first: str = "Relu", seed: int = 0) -> onnx.ModelProto:
    """Products of these widths, one after the other, an activation behind each, a Softmax behind the last."""
    rng = np.random.default_rng(seed)
    nodes, weights, at = [], [], "x"
    for i, (k, n) in enumerate(pairwise(rows)):
        weights.append(numpy_helper.from_array(rng.standard_normal((k, n), dtype=np.float32) / k**0.5, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [at, f"w{i}"], [f"h{i}"], name=f"product{i}"))
        at = f"a{i}"
        nodes.append(helper.make_node("Tanh" if i else first, [f"h{i}"], [at], name=f"activation{i}"))
    nodes.append(helper.make_node("Softmax", [at], ["y"], name="softmax"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [5, rows[0]])], [value("y", TensorProto.FLOAT, [5, rows[-1]])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    return Kernels.default()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each kernel that is really compiled."""
    real, seen = kernels._vectorized, list[str]()

    def compiled(func: Any, *rest: Any) -> Any:
        seen.append(func.script())
        return real(func, *rest)

    monkeypatch.setattr(kernels, "_vectorized", compiled)
    return seen


def library(source: onnx.ModelProto, **options: Any) -> bytes:
    return tvmopt.compile(source, verify=False, records=False, **options).artifact.library


def test_the_same_bytes_kept_or_not(made: list[str], cache: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(ROWS)
    first = library(source)
    count = len(made)
    assert count >= len(ROWS) - 1
    assert library(source) == first and len(made) == count, "the second time nothing is compiled"
    monkeypatch.setenv("TVMOPT_CACHE", "off")
    assert library(source) == first and len(made) == 2 * count
    monkeypatch.setattr(kernels, "usable_cores", lambda: 1)
    assert library(source) == first, "one thread makes what several make"


def test_numbers_of_kept_code(made: list[str]) -> None:
    """Verified against float64 both times; and another process's inputs."""
    source = model(ROWS)
    for _ in range(2):
        compiled = tvmopt.compile(source, records=False)
        assert compiled.report.accuracy["verified"]
    fresh = np.random.default_rng(3).standard_normal((5, ROWS[0]), dtype=np.float32)
    x = fresh.astype(np.float64)
    weights = [numpy_helper.to_array(w).astype(np.float64) for w in source.graph.initializer]
    for number, weight in enumerate(weights):
        x = np.tanh(x @ weight) if number else np.maximum(x @ weight, 0)
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(compiled(fresh), expected, rtol=1e-4, atol=1e-6)


def test_another_model_uses_the_kernels_that_it_shares(made: list[str]) -> None:
    """They have other names there: a kernel's name decides nothing."""
    one = tvmopt.compile(model(ROWS), verify=False, records=False)
    count = len(made)
    two = tvmopt.compile(model(ROWS, "Tanh", seed=1), records=False)
    assert len(made) == count + 1, "one product has another activation"
    names = [{k.name for k in compiled.report.kernels} for compiled in (one, two)]
    assert len(names[0] - names[1]) > 1
    assert two.report.accuracy["verified"]


def test_names_of_tensors_decide_nothing(made: list[str]) -> None:
    """The loops of a model have kernels of their own, with names of their own for what they read."""
    one, two = model(ROWS), model(ROWS)
    for node in two.graph.node:
        node.input[:] = [f"its_{name}" for name in node.input]
        node.output[:] = [f"its_{name}" for name in node.output]
    for value in (*two.graph.input, *two.graph.output, *two.graph.initializer):
        value.name = f"its_{value.name}"
    before = library(one)
    count = len(made)
    assert library(two) != before, "the names of inputs and outputs are the library's"
    assert len(made) == count


def test_sizes_that_a_kernel_is_given_stand_in_its_tensors_types(cache: Kernels) -> None:
    """A kernel of tensors of 2 * n numbers is given n as a number."""
    n, i = tirx.Var("n", "int64"), tirx.Var("i", "int64")
    x, y = (tirx.decl_buffer((n * 2,), "float32", name, layout=None) for name in "xy")
    copy = tirx.BufferStore(y, tirx.BufferLoad(x, [i]), [i])
    loop = tirx.For(i, tirx.const(0, "int64"), n * 2, tirx.ForKind.SERIAL, copy)
    func = tirx.PrimFunc([x, n, y], loop).with_attrs({"tirx.noalias": True, "tirx.is_scheduled": True, "s_tir": True})
    made = kernels.objects(tvm.IRModule({"copy": func}), Machine.load("x86-64-v3"), cache)
    assert b"copy" in made["copy"]


def test_damaged_files_are_made_again(made: list[str], cache: Kernels) -> None:
    first, count = library(model(ROWS)), len(made)
    assert cache.folder is not None
    for path in cache.folder.glob("??/*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    assert library(model(ROWS)) == first and len(made) == 2 * count
    assert library(model(ROWS)) == first and len(made) == 2 * count


@pytest.mark.parametrize("change", ["target", "threads", "without", "precision", "our passes", "tvm"])
def test_what_decides_the_code_is_in_the_key(made: list[str], change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, machine = model((32, 64, 64)), Machine.load("sapphirerapids").with_cores(2)
    library(source, target=machine)
    count, options = len(made), {"target": machine}
    if change == "target":
        options = {"target": "x86-64-v3"}
    elif change == "without":
        options["without"] = ["LowerExtrema"]
    elif change == "precision":
        options["precision"] = "bf16"
    elif change == "threads":
        options["target"] = machine.with_cores(1)
    elif change == "our passes":
        monkeypatch.setattr(kernels, "_our_passes", lambda: "edited")
    else:
        monkeypatch.setattr(kernels.tvm, "__version__", "0.28")
    library(source, **options)
    assert len(made) > count


def test_each_kernel_has_its_own_name(made: list[str], tmp_path: Path) -> None:
    """Those that are the same code too, and very long ones; the name that stands for all in the cache is gone."""
    compiled = tvmopt.compile(model((32, 64, 64, 64, 64)), verify=False, records=False, threads=1)
    path = tmp_path / "library.so"
    path.write_bytes(compiled.artifact.library)
    exported = ctypes.CDLL(str(path))
    addresses = {k.name: ctypes.cast(exported[f"__tvm_ffi_{k.name}"], ctypes.c_void_p).value
                 for k in compiled.report.kernels}  # fmt: skip
    assert len(set(addresses.values())) == len(addresses) > 1
    assert kernels.NAME.encode() not in compiled.artifact.library


def test_the_longest_name() -> None:
    """A chain of as many operators as one kernel takes."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg" if i % 2 else "Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(200)]
    graph = helper.make_graph(
        nodes, "g", [value("v0", TensorProto.FLOAT, [3])], [value("v200", TensorProto.FLOAT, [3])]
    )
    compiled = tvmopt.compile(helper.make_model(graph, ir_version=8), records=False)
    assert compiled.report.accuracy["verified"]


def test_a_name_longer_than_what_stands_for_it(made: list[str]) -> None:
    """Slices of 64 lengths in one kernel, each with a number of its own in the kernel's name."""
    ends = {"first": 1, "last": 10_000, "axis": 0}
    names = ["x", *(f"a{i}" for i in range(70))]
    nodes = [helper.make_node("Slice", [a, *ends], [b]) for a, b in pairwise(names)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [100])], [value(names[-1], TensorProto.FLOAT, [30])],
        [numpy_helper.from_array(np.array([at]), name) for name, at in ends.items()],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(100, dtype=np.float32)
    for _ in range(2):
        compiled = tvmopt.compile(source, records=False, verify=False)
        assert max(len(kernel.name) for kernel in compiled.report.kernels) >= len(kernels.NAME)
        np.testing.assert_array_equal(compiled(x), x[70:])
    assert len(made) == len(compiled.report.kernels), "the second time nothing is compiled"


def test_the_key_covers_every_source_that_runs_late() -> None:
    """Functions that lower intrinsics, and the passes of loops, run behind the loops that the key is made of: rounding
    and lookups were left out once."""
    folder = Path(kernels.pipeline.__file__).parent
    late = {file for file in (folder / "lowering").rglob("*.py") if "register_intrin_lowering(" in file.read_text()}
    assert {"lower_rounding.py", "lookups.py"} <= {file.name for file in kernels.late()}
    assert late and late <= set(kernels.late())


def test_the_key_covers_what_late_passes_take_from_other_rooms() -> None:
    """`open_loops.whole`, which a late pass asks, was left out: code of an older version came back from the disk."""
    folder = Path(kernels.pipeline.__file__).parent
    rooms = ("scheduling", "operators", "lowering")
    taken = set()
    for file in (folder / "lowering").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tvmopt."):
                path = folder.joinpath(*str(node.module).split(".")[1:])
                taken |= {path.with_suffix(".py")} if path.with_suffix(".py").exists() else set()
    decisive = {file for file in taken if file.relative_to(folder).parts[0] in rooms}
    assert folder / "scheduling" / "open_loops.py" in decisive <= set(kernels.late())
