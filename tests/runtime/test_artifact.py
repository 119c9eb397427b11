"""The artifact: round trip, same bytes, stripped and refitted, and every kind of damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnx
import pytest

import tvmopt
from tests.runtime.small import expected, small_model
from tvmopt.analysis import graph_html
from tvmopt.cli import rendering
from tvmopt.errors import AccuracyError, ArtifactError, InputError
from tvmopt.report import Report
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime import container
from tvmopt.runtime.artifact import Artifact
from tvmopt.targets import Machine


def test_round_trip(artifact: Artifact, artifact_file: Path) -> None:
    loaded = artifacts.read(artifact_file)
    assert loaded.manifest == artifact.manifest
    assert loaded.library == artifact.library
    for a, b in zip(loaded.weights, artifact.weights, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ctypes.data % 64 == 0


def test_mapped_weights_are_equal_and_do_not_reach_the_file(artifact_file: Path) -> None:
    before = artifact_file.read_bytes()
    mapped = artifacts.read(artifact_file, mapped=True)
    for a, b in zip(mapped.weights, artifacts.read(artifact_file).weights, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ctypes.data % 64 == 0
        a[...] = 0
    assert artifact_file.read_bytes() == before


def _huge_bytes(address: int) -> int:
    """Bytes in huge pages of the mapping that holds an address."""
    inside, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            start, end = (int(part, 16) for part in head.split("-"))
            inside = start <= address < end
        elif inside and head == "AnonHugePages:":
            found = 1024 * int(line.split()[1])
    return found


def test_weights_lie_in_huge_pages(tmp_path: Path) -> None:
    """Private memory: where it was shared, the system gave none, and AlexNet took 1.05 of the time."""
    allowed = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not allowed.exists() or "[never]" in allowed.read_text():
        pytest.skip("this system has no huge pages for programs that ask")
    size = 6 * artifacts.HUGE + 4097
    (tmp_path / "weights").write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
    with (tmp_path / "weights").open("rb") as file:
        memory = artifacts._segments(file, [(0, size)], mapped=False)[0]
    assert memory.tobytes() == (tmp_path / "weights").read_bytes()
    assert _huge_bytes(memory.ctypes.data) >= artifacts.HUGE


def test_weights_are_outside_the_library(artifact: Artifact) -> None:
    weights = {tuple(w.shape) for w in artifact.manifest.weights}
    assert len(artifact.manifest.weights) == 4, weights
    assert sum(w.info.nbytes for w in artifact.manifest.weights) == 4 * (8 * 27 + 8 + 80 + 10) or weights


def test_any_zip_tool_reads_it(artifact_file: Path) -> None:
    with zipfile.ZipFile(artifact_file) as archive:
        assert archive.namelist() == ["weights.bin", "library.so", "manifest.json"]
        assert archive.testzip() is None
        assert json.loads(archive.read("manifest.json"))["model"] == "small.onnx"


def test_same_input_same_bytes(onnx_file: Path, tmp_path: Path) -> None:
    """Two processes with different hash seeds and temporary folders write one and the same file."""
    files = []
    for seed in ("1", "2"):
        temporary = tmp_path / f"tmp{seed}"
        temporary.mkdir()
        output = tmp_path / f"{seed}.tvmopt"
        code = f"import tvmopt; tvmopt.compile({str(onnx_file)!r}, output={str(output)!r}, verify=False)"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(temporary)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        files.append(output.read_bytes())
    assert files[0] == files[1]


def test_nothing_of_this_machine_is_in_it(artifact_file: Path) -> None:
    data = artifact_file.read_bytes()
    for text in (str(Path.home()), "/tmp/", os.uname().nodename):
        assert text.encode() not in data or len(text) < 6


def test_stripped_and_refitted(compiled: tvmopt.Compiled, tmp_path: Path, x: np.ndarray) -> None:
    stripped = compiled.save(tmp_path / "stripped.tvmopt", strip_weights=True)
    with pytest.raises(ArtifactError, match=r"no weights(.|\n)*tvmopt refit .*stripped.tvmopt small.onnx"):
        tvmopt.load(stripped)
    other = tmp_path / "other.onnx"
    onnx.save(small_model(seed=5), str(other))
    fitted = tvmopt.refit(stripped, other, output=tmp_path / "fitted.tvmopt")
    assert fitted.report.accuracy["verified"]
    np.testing.assert_allclose(tvmopt.load(tmp_path / "fitted.tvmopt")(x), expected(5, x), rtol=1e-4, atol=1e-5)
    assert fitted.artifact.library == compiled.artifact.library


def test_refit_with_the_same_model_gives_the_same_bytes(
    compiled: tvmopt.Compiled, onnx_file: Path, tmp_path: Path
) -> None:
    first = compiled.save(tmp_path / "a.tvmopt").read_bytes()
    stripped = compiled.save(tmp_path / "s.tvmopt", strip_weights=True)
    fitted = tvmopt.refit(stripped, onnx_file, verify=False)
    assert fitted.save(tmp_path / "b.tvmopt").read_bytes() == first


def test_refit_refuses_another_structure(artifact_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "wider.onnx"
    onnx.save(small_model(classes=11), str(other))
    with pytest.raises(ArtifactError, match="structure"):
        tvmopt.refit(artifact_file, other)


def test_verification_refuses_wrong_weights(artifact: Artifact, onnx_file: Path) -> None:
    from tvmopt.analysis.verify import verify

    wrong = Artifact.build(
        artifact.manifest,
        artifact.library,
        [(w.info, a * 1.01) for w, a in zip(artifact.manifest.weights, artifact.weights, strict=True)],
    )
    with pytest.raises(AccuracyError, match=r"a tolerance of .* would pass"):
        verify(wrong, onnx_file)
    assert verify(artifact, onnx_file).ok


def test_a_crash_of_generated_code_is_an_error_of_ours(artifact: Artifact, onnx_file: Path) -> None:
    """The child dies; this process tells where."""
    from tvmopt.analysis.verify import verify

    wrong = replace(
        artifact,
        manifest=replace(artifact.manifest, weights=artifact.manifest.weights[:1]),
        weights=artifact.weights[:1],
    )
    with pytest.raises((AccuracyError, ArtifactError)):
        verify(wrong, onnx_file)


# -- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 30, 1000, 5000, -200, -23, -1])
def test_truncated(artifact_file: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.tvmopt"
    path.write_bytes(artifact_file.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"where: .*cut.tvmopt"):
        tvmopt.load(path)


def test_every_flipped_byte_is_found_or_harmless(artifact_file: Path, tmp_path: Path) -> None:
    """A flipped byte in manifest, library, weights or directory never gets through."""
    data = bytearray(artifact_file.read_bytes())
    path = tmp_path / "flipped.tvmopt"
    good = artifacts.read(artifact_file)
    for position in [*range(0, len(data), 997), *range(len(data) - 400, len(data), 7)]:
        data[position] ^= 0x55
        path.write_bytes(data)
        try:
            loaded = artifacts.read(path)
        except ArtifactError:
            pass
        else:  # padding, or a date
            assert loaded.library == good.library
            assert all(np.array_equal(a, b) for a, b in zip(loaded.weights, good.weights, strict=True))
        data[position] ^= 0x55


def _zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "library.so/../x", "a\\b", "link"])
def test_foreign_members_and_path_tricks(tmp_path: Path, name: str) -> None:
    path = _zip(tmp_path / "evil.tvmopt", {"manifest.json": b"{}", "library.so": b"", name: b"x"})
    with pytest.raises(ArtifactError, match="a member"):
        tvmopt.load(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.tvmopt"]


def test_not_an_artifact(tmp_path: Path, onnx_file: Path) -> None:
    text = tmp_path / "text.tvmopt"
    text.write_text("hello")
    with pytest.raises(ArtifactError, match="not a tvmopt artifact, or damaged"):
        tvmopt.load(text)
    with pytest.raises(ArtifactError, match="an ONNX file, not compiled yet") as error:
        tvmopt.load(onnx_file)
    assert error.value.fix == f"tvmopt compile {onnx_file}"
    with pytest.raises(ArtifactError, match="no manifest"):
        tvmopt.load(_zip(tmp_path / "other.zip", {"x": b""}))
    with pytest.raises(ArtifactError, match="No such file"):
        tvmopt.load(tmp_path / "missing.tvmopt")
    with pytest.raises(ArtifactError, match="a folder"):
        tvmopt.load(tmp_path)
    packed = _zip(tmp_path / "packed.tvmopt", {"manifest.json": b"{}" * 99, "library.so": b""}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ArtifactError, match="compressed"):
        tvmopt.load(packed)


def _rewritten(artifact: Artifact, tmp_path: Path, **changes: object) -> Path:
    manifest = json.loads(artifact.manifest.to_json())
    manifest.update(changes)
    data = json.dumps(manifest).encode()
    weights = b"".join(bytes(p) for p in artifacts.pieces(artifact.weights))
    path = tmp_path / "changed.tvmopt"
    with path.open("wb") as file:
        container.write(file, {"manifest.json": [data], "library.so": [artifact.library], "weights.bin": [weights]})
    return path


def test_another_format_version(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"format version 99; this tvmopt reads version 8"):
        tvmopt.load(_rewritten(artifact, tmp_path, format=99))


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": 3}, {"inputs": [{"name": "x"}]}, {"threads": "2"}, {"unknown": 1}, {"parts": {}},
        {"outputs": [{"name": "y", "shape": [1, -10], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": [1], "dtype": "nonsense"}]},
        {"weights": [{"name": "w", "shape": [9], "dtype": "float32", "offset": 10**15}]},
        {"weights": [{"name": "w", "shape": [9], "dtype": "float32", "offset": 3}]},
        {"inputs": [{"name": "x", "shape": ["n"], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": ["1 +"], "dtype": "float32"}]},
        {"symbols": {"n": {"min": 1, "max": 8, "opt": 1}}},
        {"conditions": ["x <= 3"]},
    ],
)  # fmt: skip
def test_a_manifest_that_lies(artifact: Artifact, tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ArtifactError, match=r"manifest|size"):
        tvmopt.load(_rewritten(artifact, tmp_path, **changes))


def test_every_flipped_bit_of_the_manifest_is_found(artifact: Artifact, artifact_file: Path, tmp_path: Path) -> None:
    data = bytearray(artifact_file.read_bytes())
    begin, path = data.index(b'{\n "accuracy"'), tmp_path / "flipped.tvmopt"
    for position in range(begin, begin + len(artifact.manifest.to_json()), 53):
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        with pytest.raises(ArtifactError):
            artifacts.read_manifest(path)
        data[position] ^= 1 << position % 8


def test_a_file_of_another_version_of_tvm(artifact: Artifact, tmp_path: Path) -> None:
    versions = {**artifact.manifest.versions, "apache-tvm": "0.26.0"}
    path = _rewritten(artifact, tmp_path, versions=versions)
    with pytest.raises(ArtifactError, match=r"made with other versions: apache-tvm 0\.26\.0, here is 0\.27"):
        tvmopt.load(path)
    assert artifacts.read_manifest(path).versions == versions  # to look at it is no risk


def _edited(tensors: tuple[object, ...], **changes: object) -> list[dict[str, object]]:
    first, *rest = [asdict(tensor) for tensor in tensors]
    return [{**first, **changes}, *rest]


@pytest.mark.parametrize("field", ["inputs", "outputs"])
@pytest.mark.parametrize(
    "change", [{"dtype": "int32"}, {"shape": [3]}, {"shape": [1, 3, 9, 9, 1]}, {"dtype": "str"}, {"dtype": "object"}]
)
def test_tensors_that_the_code_does_not_have(
    artifact: Artifact, tmp_path: Path, field: str, change: dict[str, object]
) -> None:
    path = _rewritten(artifact, tmp_path, **{field: _edited(getattr(artifact.manifest, field), **change)})
    with pytest.raises(ArtifactError, match=r"contradicts itself|manifest is damaged"):
        model = tvmopt.load(path)
        model.run({i.name: np.zeros(i.shape, i.numpy_dtype) for i in model.inputs})


def test_a_tensor_more_than_the_code_takes(artifact: Artifact, tmp_path: Path) -> None:
    more = [*_edited(artifact.manifest.inputs), {"name": "more", "shape": [1], "dtype": "float32"}]
    with pytest.raises(ArtifactError, match="its code takes 5 tensors, its manifest has 6"):
        tvmopt.load(_rewritten(artifact, tmp_path, inputs=more))


def test_a_report_that_is_none(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="report"):
        tvmopt.explain(_rewritten(artifact, tmp_path, report={"kernels": 3}))


@pytest.mark.parametrize("value", [[[]], {"a": 1}, float("nan"), -5, 10**400, None, "x"])
def test_a_report_with_a_value_of_another_type(artifact: Artifact, tmp_path: Path, value: object) -> None:
    """Whatever is changed in the report, all that reads it reads it, or says that the artifact is damaged."""
    report = json.loads(artifact.manifest.to_json())["report"]
    refused = 0
    for whole, key in [*_places(report)][::3]:
        kept, whole[key] = whole[key], value
        try:
            told = Report.from_dict(report)
        except ArtifactError as error:
            refused += 1
            assert "damaged" in str(error)
        else:
            graph_html.html(told, None)
            for show in (rendering.coverage, rendering.kernels, rendering.between, rendering.launches):
                show(told)
            rendering.decisions(told, "applied", 0)
        whole[key] = kept
    assert refused > 20


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in JSON data with each of its keys."""
    for key, inner in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@pytest.mark.parametrize("keep", [0, 3, 70, 400, -4096, -1])
def test_a_library_that_is_cut_short_is_never_mapped(artifact: Artifact, keep: int) -> None:
    """The hash finds it first; without the hash its headers do. To touch what is missing would be a SIGBUS."""
    with pytest.raises(ArtifactError, match="the library is damaged"):
        tvmopt.Model(replace(artifact, library=artifact.library[:keep]))


@pytest.mark.parametrize("word", ["run", "inspect", "explain", "profile", "refit"])
def test_what_is_no_plain_file(tmp_path: Path, word: str) -> None:
    """A pipe would hang for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    given = {"run": [pipe], "refit": [pipe, pipe]}.get(word, [pipe])
    with pytest.raises((ArtifactError, InputError), match="not a plain file"):
        if word == "profile":
            from tvmopt.analysis.profile import profile

            profile(pipe)
        else:
            getattr(tvmopt, word)(*given)


def test_missing_instructions_are_named(artifact: Artifact, tmp_path: Path) -> None:
    path = _rewritten(artifact, tmp_path, features=["avx2", "amx-int8", "sve2"], target="graviton9")
    with pytest.raises(ArtifactError, match=r"lacks instructions the artifact uses: .*sve2(.|\n)*graviton9"):
        tvmopt.load(path)


# -- writing ---------------------------------------------------------------------------------------------


def test_an_interrupted_write_leaves_nothing(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.tvmopt"
    path.write_text("the old one")
    real = container.write

    def interrupted(file, members):
        real(file, {"manifest.json": members["manifest.json"]})
        raise KeyboardInterrupt

    monkeypatch.setattr(container, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        artifact.save(path)
    assert path.read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["model.tvmopt"]


def test_unwritable(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        artifact.save(tmp_path / "no" / "such" / "folder.tvmopt")
    with pytest.raises(InputError, match="is a folder"):
        artifact.save(tmp_path)


def test_a_machine_that_cannot_run_the_code_does_not_verify_it(tmp_path: Path) -> None:
    """Cross-compiling is no error: the file is written, and what was not done is said."""
    here = Machine.load("cpu")
    other = replace(here, name="newer", features=(*here.features, "avx10"))
    made = tvmopt.compile(small_model(), target=other, output=tmp_path / "x.tvmopt")
    assert made.report.accuracy == {"verified": False, "reason": ANY}
    assert any(w.endswith("avx10") and w.startswith("not verified: this machine lacks") for w in made.report.warnings)
    with pytest.raises(ArtifactError, match="avx10"):
        tvmopt.load(tmp_path / "x.tvmopt")
