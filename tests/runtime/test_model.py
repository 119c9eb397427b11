"""Calling a compiled model: right numbers for every array, clear errors for wrong ones, many threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.runtime.small import expected
from tvmopt.errors import InputError
from tvmopt.runtime.tensors import aligned_empty, is_direct


@pytest.fixture(scope="module")
def model(artifact_file: Path) -> tvmopt.Model:
    return tvmopt.load(artifact_file)


@pytest.fixture
def y(x: np.ndarray) -> np.ndarray:
    return expected(0, x)


def close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_by_position_and_name(model: tvmopt.Model, x: np.ndarray, y: np.ndarray) -> None:
    close(model(x), y)
    close(model(x=x), y)
    close(model.run({"x": x})["y"], y)


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 32, 48, 64])
def test_every_alignment(model: tvmopt.Model, x: np.ndarray, y: np.ndarray, offset: int) -> None:
    """Stock kernels crash on an array that is only 16-byte aligned."""
    raw = aligned_empty((x.nbytes + 64,), np.dtype(np.uint8))
    shifted = raw[offset : offset + x.nbytes].view(np.float32).reshape(x.shape)
    shifted[...] = x
    assert is_direct(shifted)
    close(model(shifted), y)


def test_layouts(model: tvmopt.Model, x: np.ndarray, y: np.ndarray) -> None:
    close(model(np.asfortranarray(x)), y)
    wide = np.zeros((1, 3, 9, 18), np.float32)
    wide[..., ::2] = x
    close(model(wide[..., ::2]), y)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert is_direct(frozen)
    close(model(frozen), y)
    assert not frozen.flags.writeable
    close(
        model(np.frombuffer(b"?" + x.tobytes(), np.float32, offset=1).reshape(x.shape)), y
    )  # starts inside an element
    close(model(x.astype(">f4")), y)
    close(model(x.tolist()), y)


def test_dlpack(model: tvmopt.Model, x: np.ndarray, y: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    close(model(torch.from_numpy(x)), y)
    assert torch.from_dlpack(model(x)).shape == (1, 10)
    with pytest.raises(InputError, match="dtype is float64"):
        model(torch.from_numpy(x).double())


def test_outputs_are_the_callers(model: tvmopt.Model, x: np.ndarray, y: np.ndarray) -> None:
    """An output kept over later calls does not change; writing to it does not reach the model."""
    first = model(x)
    kept = first.copy()
    for _ in range(3):
        model(x * 2)[...] = 7
    np.testing.assert_array_equal(first, kept)
    close(model(x), y)


def test_every_problem_at_once(model: tvmopt.Model, x: np.ndarray) -> None:
    with pytest.raises(
        InputError, match=r"no input is called 'X', did you mean 'x'(.|\n)*x: float32\[1,3,9,9\] is missing"
    ):
        model.run({"X": x})
    with pytest.raises(InputError, match=r"2 inputs given, the model takes 1"):
        model(x, x)
    with pytest.raises(InputError, match="missing"):
        model()
    with pytest.raises(InputError, match="given twice"):
        model(x, x=x)
    with pytest.raises(InputError, match=r"shape is \(1, 3, 9, 8\)(.|\n)*open dimension"):
        model(x[..., :8])
    with pytest.raises(InputError, match=r"dtype is float64(.|\n)*astype\('float32'\)"):
        model(x.astype(np.float64))
    with pytest.raises(InputError, match="cannot read a str"):
        model("x")
    with pytest.raises(InputError, match=r"cannot read a NoneType|dtype|shape"):
        model(None)


def test_many_threads(model: tvmopt.Model) -> None:
    """One model, eight threads, different inputs: a virtual machine shared by threads corrupts itself."""
    inputs = [np.random.default_rng(i).standard_normal((1, 3, 9, 9)).astype("float32") for i in range(8)]
    wanted = [expected(0, x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(50):
            if not np.allclose(model(inputs[index]), wanted[index], rtol=1e-3, atol=1e-4):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_loading_needs_no_compiler(artifact_file: Path) -> None:
    """Neither TVM's compiler library nor `import tvm`; and `import tvm` still works afterwards."""
    code = f"""
import sys, numpy as np, tvmopt
model = tvmopt.load({str(artifact_file)!r})
assert model(np.zeros((1, 3, 9, 9), 'float32')).shape == (1, 10)
maps = open('/proc/self/maps').read()
assert 'libtvm_runtime.so' in maps and 'libtvm_compiler' not in maps, maps
for name in ('tvm', 'onnx', 'onnxruntime', 'torch'):
    assert name not in sys.modules, name
import tvm
assert hasattr(tvm, 'relax')
assert model(np.zeros((1, 3, 9, 9), 'float32')).shape == (1, 10)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("variable", "asked", "threads"), [("", None, None), ("1", None, 1), ("2", None, 2), ("1", 2, 2)]
)
def test_threads(artifact_file: Path, variable: str, asked: int | None, threads: int | None) -> None:
    """TVM alone would take half the processors, and on two run a parallel loop as one task."""
    from tvmopt.targets.detect import usable_cores

    code = f"""
import tvmopt, numpy as np
from tvmopt.runtime import pool
model = tvmopt.load({str(artifact_file)!r}, threads={asked})
model(np.zeros((1, 3, 9, 9), 'float32'))
print(model.threads, pool.tasks())
"""
    import os

    environment = {k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"}
    if variable:
        environment["TVM_NUM_THREADS"] = variable
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    wanted = threads or usable_cores()
    assert done.stdout.split() == [str(wanted)] * 2


def test_bad_thread_counts(artifact_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="from 1 to 1024"):
        tvmopt.load(artifact_file, threads=0)
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(InputError, match="TVM_NUM_THREADS is 'many'"):
        tvmopt.load(artifact_file)


def test_call_overhead(model: tvmopt.Model) -> None:
    """A warm call does little besides its kernels (4 to 6 us on a quiet machine): what Python calls is counted."""
    x = aligned_empty((1, 3, 9, 9), np.dtype("float32"))
    x[...] = 0
    model(x), model(x)
    called: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else argument.__name__)

    sys.setprofile(trace)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    assert len(called) <= 45, called  # 31


def test_timing(model: tvmopt.Model, x: np.ndarray) -> None:
    timing = model.time({"x": x}, iterations=20, warmup=1)
    assert timing.n == 20
    assert 0 < timing.min_ms <= timing.median_ms <= timing.p90_ms <= timing.p99_ms
    assert model.time({"x": x}, iterations=1, duration=0.02).n > 1


def test_outputs_that_are_inputs_or_weights(tmp_path: Path) -> None:
    """A model may return an input, a view of it, or a constant: the caller still gets memory of its own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "shape"], ["view"]),
        helper.make_node("Identity", ["k"], ["constant"]),
        helper.make_node("Neg", ["x"], ["negative"]),
    ]
    values = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "alias",
        [values("x", TensorProto.FLOAT, [2, 8])],
        [
            values("same", TensorProto.FLOAT, [2, 8]),
            values("view", TensorProto.FLOAT, [4, 4]),
            values("constant", TensorProto.FLOAT, [5]),
            values("negative", TensorProto.FLOAT, [2, 8]),
        ],
        [
            numpy_helper.from_array(np.array([4, 4]), "shape"),
            numpy_helper.from_array(np.arange(5, dtype="float32"), "k"),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        str(tmp_path / "a.onnx"),
    )
    model = tvmopt.compile(tmp_path / "a.onnx").model
    x = np.arange(16, dtype="float32").reshape(2, 8)
    for _ in range(2):
        results = model.run({"x": x})
        for array in results.values():
            assert not np.shares_memory(array, x)
            array += 100
    np.testing.assert_array_equal(x, np.arange(16, dtype="float32").reshape(2, 8))
    np.testing.assert_array_equal(model.run({"x": x})["constant"], np.arange(5, dtype="float32"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)])
def test_dtypes_and_small_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    from onnx import helper

    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Where", ["c", "x", "z"], ["y"])],
        "where",
        [values("c", 9, shape), values("x", code, shape), values("z", code, shape)],
        [values("y", code, shape)],
    )
    model = tvmopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), verify=False
    ).model
    rng = np.random.default_rng(0)
    c, x, z = rng.integers(0, 2, shape).astype(bool), *(rng.integers(0, 2, (2, *shape)).astype(dtype))
    np.testing.assert_array_equal(model(np.asarray(c), np.asarray(x), np.asarray(z)), np.where(c, x, z))
