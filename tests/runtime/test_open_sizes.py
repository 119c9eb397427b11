"""One artifact for many shapes: right at each, and every other shape refused before a kernel runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.dims import Dim, Range
from tvmopt.errors import InputError
from tvmopt.runtime.model import Model
from tvmopt.runtime.sizes import OpenSizes
from tvmopt.runtime.tensors import TensorInfo

TABLE = 40


def open_model() -> onnx.ModelProto:
    """ids + offsets, both [batch,seq] -> rows of a table, plus a row a position -> a product; and the ids doubled."""
    rng = np.random.default_rng(0)

    def weight(name: str, array: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(array, name)

    def normal(name: str, *shape: int) -> onnx.TensorProto:
        return weight(name, rng.standard_normal(shape).astype("float32"))

    nodes = [
        helper.make_node("Add", ["ids", "offsets"], ["i"]),
        helper.make_node("Gather", ["words", "i"], ["a"]),
        helper.make_node("Shape", ["ids"], ["s"]),
        helper.make_node("Slice", ["s", "one", "two"], ["length"]),
        helper.make_node("Slice", ["places", "zero", "length", "zero"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
        helper.make_node("Concat", ["ids", "ids"], ["twice"], axis=1),
    ]
    weights = [normal("words", 5, 8), normal("places", TABLE, 8), normal("w", 8, 3)]
    weights += [weight(n, np.array([v], np.int64)) for n, v in (("zero", 0), ("one", 1), ("two", 2))]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("ids", "offsets")]
    results = [("y", TensorProto.FLOAT, ["batch", "seq", 3]), ("twice", TensorProto.INT64, ["batch", None])]
    outputs = [helper.make_tensor_value_info(*r) for r in results]
    graph = helper.make_graph(nodes, "open", ids, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("open") / "open.tvmopt"
    tvmopt.compile(open_model(), shape={"batch": "1..9"}, output=file)
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return tvmopt.load(path)


def feeds_of(batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(batch * 100 + length)
    return {n: rng.integers(0, 3, (batch, length)) for n in ("ids", "offsets")}


def theirs(feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(open_model().SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(o) for o in session.run(None, feeds)]


def test_what_it_says(model: Model) -> None:
    assert [str(i) for i in model.inputs] == ["ids: int64[batch,seq]", "offsets: int64[batch,seq]"]
    assert [str(o) for o in model.outputs] == ["y: float32[batch,seq,3]", "twice: int64[batch,2*seq]"]
    assert model.symbols == {"batch": Range(1, 9, 1), "seq": Range(1, TABLE, TABLE)}
    assert model.manifest.accuracy["verified"] and len(model.manifest.accuracy["sizes"]) >= 3
    assert [i.shape for i in model.inputs_at({"seq": 7})] == [(1, 7), (1, 7)]


def test_inputs_beside_others_have_their_sizes_as_far_as_these_have_axes(model: Model) -> None:
    assert [i.shape for i in model.inputs_beside({"offsets": np.zeros((2, 7))})] == [(2, 7), (2, 7)]
    assert [i.shape for i in model.inputs_beside({"offsets": np.zeros(2)})] == [(2, TABLE), (2, TABLE)]


def test_a_run_fills_the_sizes_that_are_asked_for(path: Path) -> None:
    """They were ignored without a word."""
    assert tvmopt.run(path, shape={"batch": (3,), "seq": (5,)}).outputs["y"].shape == (3, 5, 3)
    assert tvmopt.run(path, shape={"ids": (3, 5)}).outputs["y"].shape == (3, 5, 3)
    assert tvmopt.run(path, shape={"ids": ("?", 5)}).outputs["y"].shape == (1, 5, 3)
    given = {"ids": np.zeros((4, 7), np.int64)}
    assert tvmopt.run(path, given, shape={"seq": (7,)}).outputs["y"].shape == (4, 7, 3)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"sequence": (3,)}, "no open size or input 'sequence'"),
        ({"ids": (3,)}, "'ids' has 2 sizes, and 1 are asked for"),
        ({"batch": ("1..4",)}, "one size where 'batch' is to be 1..4"),
        ({"batch": (3,), "ids": (2, 5)}, "'batch' is 3 elsewhere in this call, and is to be 2"),
        ({"batch": (10,)}, "'batch' is 10 in the input"),
    ],
)
def test_sizes_that_a_run_cannot_have_are_refused(path: Path, wanted: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        tvmopt.run(path, shape=wanted)


def test_given_inputs_and_other_sizes_are_refused(path: Path) -> None:
    given = {name: np.zeros((4, 7), np.int64) for name in ("ids", "offsets")}
    with pytest.raises(InputError, match="'batch' is 4 elsewhere"):
        tvmopt.run(path, given, shape={"batch": (2,)})


def test_another_precision_than_the_compiled_one_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="compiled in fp32, not bf16"):
        tvmopt.run(path, precision="bf16")


def test_a_profile_does_not_count_tensors_of_open_sizes_as_empty(path: Path) -> None:
    """It said that 8 bytes were alive at the peak of an LSTM."""
    found = tvmopt.profile(path, seconds=0.01)
    assert found.memory is None and found.planned_bytes > 0


def test_what_is_no_array_is_converted_once(model: Model) -> None:
    class Counted:
        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array, self.reads = array, 0

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            self.reads += 1
            return self.array

    feeds = feeds_of(2, 5)
    counted = {name: Counted(array) for name, array in feeds.items()}
    for name, result in model.run(counted).items():
        np.testing.assert_array_equal(result, model.run(feeds)[name])
    assert [c.reads for c in counted.values()] == [1, 1]


def test_the_other_order_of_bytes_is_copied(path: Path) -> None:
    feeds = feeds_of(2, 5)
    other = {name: array.astype(array.dtype.newbyteorder()) for name, array in feeds.items()}
    for found, expected in zip(tvmopt.load(path).run(other).values(), theirs(feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_wrong_dtype_is_told_before_a_size_that_is_out_of_range(model: Model) -> None:
    feeds = {name: array.astype("float32") for name, array in feeds_of(10, 5).items()}
    with pytest.raises(InputError) as error:
        model.run(feeds)
    assert "ids" in str(error.value) and "offsets" in str(error.value) and "float32" in str(error.value)


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, TABLE])
def test_every_size(model: Model, batch: int, length: int) -> None:
    feeds = feeds_of(batch, length)
    feeds["ids"] = np.asfortranarray(feeds["ids"])  # copied into a buffer that is made for the largest sizes
    for mine, right in zip(model.run(feeds).values(), theirs(feeds), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "offsets", "words"),
    [
        ((1, TABLE + 1), (1, TABLE + 1), ["'seq' is 41", "1 to 40", "shape={'seq': ('1..41@40',)}"]),
        ((10, 4), (10, 4), ["'batch' is 10", "1 to 9"]),
        ((0, 4), (0, 4), ["'batch' is 0", "pass 1 or more"]),
        ((2, 4), (2, 5), ["'offsets' has 5 elements on axis 1", "seq is 4", "'ids'"]),
        ((2, 4), (3, 4), ["'offsets' has 3 elements on axis 0"]),
        ((2, 4, 1), (2, 4), ["(batch, seq)"]),
        ((4,), (4,), ["(batch, seq)"]),
    ],
)
def test_sizes_that_are_refused(model: Model, ids: tuple[int, ...], offsets: tuple[int, ...], words: list[str]) -> None:
    calls: list[Any] = []
    session = model.session()
    session.set_instrument(lambda *a: calls.append(a) or 0)
    try:
        with pytest.raises(InputError) as caught:
            model.run({"ids": np.zeros(ids, np.int64), "offsets": np.zeros(offsets, np.int64)})
    finally:
        session.set_instrument(None)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not calls


def test_inputs_that_are_missing_fit_those_that_are_given(path: Path) -> None:
    found = tvmopt.run(path, {"offsets": np.zeros((3, 11), np.int64)})
    assert found.outputs["y"].shape == (3, 11, 3)
    assert tvmopt.run(path).outputs["y"].shape == (1, TABLE, 3)


def test_outputs_stay_whole_when_later_calls_are_larger(model: Model) -> None:
    feeds = feeds_of(2, 5)
    first = model.run(feeds)
    kept = {n: a.copy() for n, a in first.items()}
    for length in (TABLE, 1, 33):
        model.run(feeds_of(9, length))
    assert all(np.array_equal(kept[n], first[n]) for n in kept)


def test_other_weights_keep_the_ranges(path: Path, tmp_path: Path) -> None:
    fitted = tvmopt.refit(path, open_model(), output=tmp_path / "other.tvmopt")
    assert fitted.manifest.symbols == tvmopt.load(path).symbols


@pytest.mark.skipif(not shutil.which("cc") or sys.platform != "linux", reason="needs a C compiler and glibc")
@pytest.mark.parametrize("guard", ["none", "behind", "before"])
def test_random_calls_stay_in_their_buffers_and_allocate_nothing(path: Path, guard: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "open_calls.py"
    command = [sys.executable, str(script), str(path), "--calls", "60", "--guard", guard]
    alone = os.environ | {"TVM_NUM_THREADS": "1"}  # another thread would allocate its scratch when it first joins in
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["right"], found["refused"], found["written outside"]) == (40, 20, 0)
    assert found["allocations of two largest calls"] > 0 and found["allocations after them"] == 0


@pytest.mark.parametrize(
    ("size", "words"), [(1, "--shape batch:1, for that size alone"), (20, "--shape batch:2..20@2")]
)
def test_a_size_out_of_range_is_told_a_shape_that_compiles(size: int, words: str) -> None:
    """Below the smallest one a range may not be what the model allows: it was refused when it was followed."""
    info = TensorInfo("x", (Dim.symbol("batch"), 3), "float32")
    sizes = OpenSizes(
        SimpleNamespace(symbols={"batch": Range(2, 16, 2)}, model="m", inputs=(info,), conditions=("2 <= batch",))
    )
    with pytest.raises(InputError) as raised:
        sizes.bind([(size, 3)])
    assert raised.value.fix.endswith(words)
