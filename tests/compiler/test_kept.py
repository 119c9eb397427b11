"""The artifact of the same compile: taken from the disk if everything that decides it is the same, and only then."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.cli.command import tvmopt as command
from tests.compiler.small import silu
from tvmopt.api import compile_isolated
from tvmopt.cache import Artifacts
from tvmopt.compiler import kept as module
from tvmopt.compiler.dump import Dumps
from tvmopt.compiler.kept import Kept, copied
from tvmopt.compiler.request import Request, external_files, source_hash
from tvmopt.extensions import register, unregister
from tvmopt.runtime.artifact import read
from tvmopt.targets import Machine


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TVMOPT_ARTIFACTS_MB", "64")
    monkeypatch.setenv("TVMOPT_STORE", str(tmp_path / "tuning.db"))
    return tmp_path / "kept" / "artifacts"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return silu(tmp_path / "m.onnx", 16)


def key_of(request: Request, verify: bool = True, tolerance: float | None = None) -> tuple[str, str]:
    """Both halves of a compile's key."""
    kept = Kept.of(request, verify, tolerance)
    assert kept is not None
    return kept.start, source_hash(request.source)


def test_the_second_compile_has_the_bytes_of_the_first(place: Path, model: Path, tmp_path: Path) -> None:
    first = command("compile", model, "-o", tmp_path / "a.tvmopt")
    assert first.returncode == 0 and "compiled in" in first.stdout and "when it was compiled" not in first.stdout
    again = command("compile", model, "-o", tmp_path / "b.tvmopt")
    assert "taken from the cache of an earlier compile (--no-cache" in again.stdout
    assert "verified when it was compiled: agrees with float64" in again.stdout
    anew = command("compile", model, "-o", tmp_path / "c.tvmopt", "--no-cache")
    assert "compiled in" in anew.stdout and "when it was compiled" not in anew.stdout
    texts = {(tmp_path / f"{name}.tvmopt").read_bytes() for name in "abc"}
    assert len(texts) == 1
    stripped = compile_isolated(model, output=tmp_path / "d.tvmopt", strip_weights=True)
    assert stripped.report.cached and read(tmp_path / "d.tvmopt").manifest.stripped
    assert "1 files" in command("cache", "list").stdout.splitlines()[2]
    assert "removed" in command("cache", "clear").stdout and not list(place.rglob("*.tvmopt"))


@pytest.mark.parametrize("within_the_kernel", [True, False])
def test_a_copy_has_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_the_kernel: bool) -> None:
    def across(*given: object) -> int:
        raise OSError(errno.EXDEV, "two file systems")

    if not within_the_kernel:
        monkeypatch.setattr(os, "copy_file_range", across)
    content = np.random.default_rng(0).bytes(3_000_001)
    (tmp_path / "kept").write_bytes(content)
    assert copied(tmp_path / "kept", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert not copied(tmp_path / "gone", tmp_path / "copy")


def test_in_python_too(place: Path, model: Path) -> None:
    first, again = tvmopt.compile(model), tvmopt.compile(model)
    assert (first.report.cached, again.report.cached) == (False, True)
    assert not tvmopt.compile(model, cache=False).report.cached
    assert again.manifest == first.manifest and again.report.accuracy == first.report.accuracy != {}
    assert again.report.seconds == {} != first.report.seconds
    x = np.random.default_rng(1).standard_normal((33, 16), dtype=np.float32)
    np.testing.assert_array_equal(again(x), first(x))
    proto = onnx.load(model)  # of bytes and protos as of files, each under its name
    assert not tvmopt.compile(proto).report.cached and tvmopt.compile(proto).report.cached


def test_what_only_looks_needs_no_artifact(place: Path, model: Path) -> None:
    first = tvmopt.explain(model)
    again = tvmopt.explain(model)
    assert (first.cached, again.cached) == (False, True) and again.kernels == first.kernels


CHANGES: dict[str, Callable[[Request], Request]] = {
    "precision": lambda r: replace(r, machine=Machine.load("sapphirerapids"), precision="bf16"),
    "machine": lambda r: replace(r, machine=r.machine.with_cores(r.machine.cores + 1)),
    "shapes": lambda r: replace(r, shapes={"x": (33, 16)}),
    "values": lambda r: replace(r, values={"x": np.ones((33, 16), np.float32)}),
    "exact": lambda r: replace(r, exact=True),
    "int8": lambda r: replace(r, int8="off"),
    "kv_cache": lambda r: replace(r, kv_cache="int8"),
    "name": lambda r: replace(r, name="other.onnx"),
    "records": lambda r: replace(r, records=False),
    "without": lambda r: replace(r, without=("tvmopt.FusePad",)),
    "generic": lambda r: replace(r, generic=("*",)),
    "cuda_graph": lambda r: replace(r, cuda_graph=False),
    "preprocess": lambda r: replace(r, preprocess={"x": "image:from=8x8"}),
    "postprocess": lambda r: replace(r, postprocess={"y": "scores:softmax"}),
    "labels": lambda r: replace(r, labels={"y": ["a", "b"]}),
    "first": lambda r: replace(r, first=r.source),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_part_of_a_request_decides(place: Path, model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "tuning.db").write_bytes(b"records")
    request = Request(model, Machine.load("cpu"))
    assert key_of(CHANGES[name](request)) != key_of(request) == key_of(replace(request))
    left = set(request.__dataclass_fields__) - {*CHANGES, "source", "store", "dumps"}
    assert not left, "a new field needs a change here"


def test_what_else_decides(place: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(model, Machine.load("cpu"))
    plain = key_of(request)
    assert len({plain, key_of(request, verify=False), key_of(request, tolerance=1e-3)}) == 3
    store = tmp_path / "tuning.db"
    store.write_bytes(b"records")
    with_store = key_of(request)
    store.with_name("tuning.db-wal").write_bytes(b"more")
    assert len({plain, with_store, key_of(request)}) == 3
    assert key_of(replace(request, store=tmp_path / "another.db")) not in (plain, with_store)
    with monkeypatch.context() as changed:
        changed.setattr(module, "sources", lambda: "others")
        assert key_of(request)[0] != plain[0]
    with monkeypatch.context() as changed:
        changed.setenv("CC", "another")
        assert key_of(request)[0] != plain[0]
    assert key_of(request)[0] != plain[0]  # there are records now
    silu(model, 17)
    assert key_of(request)[1] != plain[1]


def test_the_sources_of_the_package_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passes" / "__pycache__").mkdir(parents=True)
    (tmp_path / "passes" / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(module.tvmopt, "__file__", str(tmp_path / "__init__.py"))
    found = [module.sources.__wrapped__()]
    (tmp_path / "passes" / "__pycache__" / "one.pyc").write_bytes(b"x")
    assert module.sources.__wrapped__() == found[0]
    for change in ("one.py", "two.toml"):
        (tmp_path / "passes" / change).write_text("a = 2\n")
        found.append(module.sources.__wrapped__())
    (tmp_path / "passes" / "two.toml").rename(tmp_path / "two.toml")
    found.append(module.sources.__wrapped__())
    assert len(set(found)) == 4


def external(folder: Path, inside: bool) -> Path:
    """A model whose weight, of the graph or of a Constant node, lies in a file beside it."""
    weight = numpy_helper.from_array(np.arange(24, dtype=np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, "weights.bin")
    (folder / "weights.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    constant = [helper.make_node("Constant", [], ["w"], value=weight)] if inside else []
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [24])
    graph = helper.make_graph(
        [*constant, helper.make_node("Add", ["x", "w"], ["y"])], "g", [info],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [24])], [] if inside else [weight],
    )  # fmt: skip
    (folder / "e.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "e.onnx"


@pytest.mark.parametrize("inside", [False, True])
def test_external_data_decides(tmp_path: Path, inside: bool) -> None:
    """That of a node's attribute was not looked at."""
    path = external(tmp_path, inside)
    assert external_files(path) == {"weights.bin"}
    before = source_hash(path)
    (tmp_path / "weights.bin").write_bytes(bytes(96))
    assert source_hash(path) != before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_artifact_is_compiled_again(place: Path, model: Path, tmp_path: Path, damage: str) -> None:
    whole = compile_isolated(model, output=tmp_path / "a.tvmopt", verify=False).path
    (file,) = place.rglob("*.tvmopt")
    data = file.read_bytes()
    middle = data.rindex(b"weights.bin") // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    file.write_bytes({"cut": data[:-100], "flipped": flipped, "empty": b""}[damage])
    again = compile_isolated(model, output=tmp_path / "b.tvmopt", verify=False)
    assert not again.report.cached and whole is not None and again.path is not None
    assert again.path.read_bytes() == whole.read_bytes() == file.read_bytes()


def test_an_artifact_of_another_model_is_not_taken(place: Path, model: Path, tmp_path: Path) -> None:
    other = silu(tmp_path / "other.onnx", 24)
    assert command("compile", other, "-o", tmp_path / "other.tvmopt", "--no-cache").returncode == 0
    assert command("compile", model, "-o", tmp_path / "a.tvmopt").returncode == 0
    (kept,) = place.rglob("*.tvmopt")
    kept.write_bytes((tmp_path / "other.tvmopt").read_bytes())
    again = command("compile", model, "-o", tmp_path / "b.tvmopt")
    assert again.returncode == 0 and "compiled in" in again.stdout
    assert read(tmp_path / "b.tvmopt").manifest.inputs == read(tmp_path / "a.tvmopt").manifest.inputs


def test_what_is_not_kept(place: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(model, Machine.load("cpu"))
    kept = Kept.of(request, True, None)
    assert kept is not None
    artifact = tvmopt.compile(model, verify=False, cache=False).artifact
    kept.keep(artifact, verify=True)  # asked to be verified, and was not
    assert not list(place.rglob("*.tvmopt"))
    kept.keep(artifact, verify=False)
    assert len(list(place.rglob("*.tvmopt"))) == 1
    assert Kept.of(replace(request, dumps=Dumps(everything=str(tmp_path))), True, None) is None
    assert Kept.of(replace(request, machine=Machine.load("nvidia-h100")), True, None) is None
    assert Kept.of(replace(request, source=tmp_path / "none.onnx"), True, None) is None

    register(SimpleNamespace(CONVERTERS={("com.example", "Nothing"): print}), "plugin")
    try:
        assert Kept.of(request, True, None) is None
    finally:
        unregister("plugin")
    monkeypatch.setenv("TVMOPT_ARTIFACTS_MB", "0")
    assert Kept.of(request, True, None) is None


def test_a_kept_file_that_is_gone_is_written_anew(place: Path, model: Path, tmp_path: Path) -> None:
    """Another process may need its room at any moment."""
    assert not copied(tmp_path / "none.tvmopt", tmp_path / "a.tvmopt") and not (tmp_path / "a.tvmopt").exists()
    kept = Kept.of(Request(model, Machine.load("cpu")), False, None)
    assert kept is not None and kept.copy(tmp_path / "a.tvmopt") is None
    artifact = tvmopt.compile(model, verify=False, cache=False).artifact
    file = kept.keep(artifact, verify=False)
    assert file is not None and kept.copy(tmp_path / "a.tvmopt") is not None
    assert (tmp_path / "a.tvmopt").read_bytes() == file.read_bytes() == artifact.save(tmp_path / "b").read_bytes()


def test_a_large_artifact_is_not_kept(tmp_path: Path) -> None:
    cache = Artifacts(tmp_path, 400)
    cache.put("ab" * 32, 101, lambda path: path.write_bytes(bytes(101)))
    assert cache.find("ab" * 32) is None and not cache.begun("ab")
    cache.put("ab" * 32, 100, lambda path: path.write_bytes(bytes(100)))
    assert cache.find("ab" * 32) is not None and cache.begun("abab") and not cache.begun("abba")


def test_compiling_loads_no_torch(model: Path, tmp_path: Path) -> None:
    """TVM imports torch where it is installed, which takes a second, and nothing here needs it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    code = "import sys, tvmopt; sys.modules.pop('torch', None); tvmopt.compile(sys.argv[1], verify=False, cache=False)"
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}", str(model)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
