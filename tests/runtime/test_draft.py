"""An artifact's file that is begun before its manifest is known is the file that is written at once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmopt
from tests.runtime.small import small_model
from tvmopt.cache import Artifacts
from tvmopt.errors import InputError
from tvmopt.files import moved
from tvmopt.runtime import container
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.runtime.draft import Draft, read_candidate
from tvmopt.runtime.tensors import Array


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return tvmopt.compile(small_model(), verify=False, cache=False).artifact


@pytest.mark.parametrize("candidate", [False, True], ids=["finished at once", "read before"])
def test_the_bytes_are_the_same(artifact: Artifact, candidate: bool, tmp_path: Path) -> None:
    with Draft() as draft:
        draft.begin(artifact.weights)
        if candidate:
            message = json.loads(json.dumps(draft.candidate(artifact)))
            other = read_candidate(message)
            assert other.manifest == artifact.manifest and other.library == artifact.library
            assert all(map(np.array_equal, other.weights, artifact.weights))
        file = draft.finish(artifact)
        assert file.read_bytes() == artifact.to_bytes() == artifact.save(tmp_path / "whole").read_bytes()
        assert read(file).manifest == artifact.manifest
    assert not file.exists() and not file.parent.exists()


def test_weights_begin_again(artifact: Artifact) -> None:
    with Draft() as draft:
        draft.begin([weight + 1 for weight in artifact.weights[:1]])
        draft.begin(artifact.weights)
        assert draft.finish(artifact).read_bytes() == artifact.to_bytes()


def test_a_compile_keeps_the_file_that_it_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMOPT_ARTIFACTS_MB", "100")
    monkeypatch.setattr(Artifact, "save", lambda *args, **options: pytest.fail("the weights are written twice"))
    model = tmp_path / "small.onnx"
    onnx.save(small_model(), model)
    made = tvmopt.compile(model, output=tmp_path / "out.tvmopt")
    (entry,) = Artifacts.default().entries()
    kept = Artifacts.default().path(entry.key)
    assert kept.read_bytes() == (tmp_path / "out.tvmopt").read_bytes() == made.artifact.to_bytes()
    assert kept.stat().st_mode & 0o777 == (tmp_path / "out.tvmopt").stat().st_mode & 0o777
    again = tvmopt.compile(model)
    assert again.report.cached and again.report.accuracy == made.report.accuracy
    tvmopt.compile(model, output=tmp_path / "other.tvmopt", cache=False)
    assert (tmp_path / "other.tvmopt").read_bytes() == kept.read_bytes()


def test_a_file_moves_to_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(source: Path, place: Path) -> None:
        if Path(source).parent != Path(place).parent:
            raise OSError(18, "Invalid cross-device link")
        real(source, place)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a/file").write_bytes(b"content")
    moved(tmp_path / "a/file", tmp_path / "b/file")
    assert (tmp_path / "b/file").read_bytes() == b"content" and [*(tmp_path / "b").iterdir()] == [tmp_path / "b/file"]


def test_nothing_is_begun_without_room(artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the file is written where it is wanted, and verification says what it lacks."""

    def add(self: container.Writer, name: str, given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full, Draft() as draft:
        full.setattr(container.Writer, "add", add)
        draft.begin(artifact.weights)
        assert not draft.begun and not draft.path.exists()
        with pytest.raises(InputError, match="No space left"):
            draft.candidate(artifact)
    model, real = tmp_path / "small.onnx", Draft.begin
    onnx.save(small_model(), model)

    def begin(self: Draft, weights: Sequence[Array]) -> None:
        with monkeypatch.context() as full:
            full.setattr(container.Writer, "add", add)
            real(self, weights)

    monkeypatch.setattr(Draft, "begin", begin)
    with pytest.raises(InputError, match="No space left"):
        tvmopt.compile(model, cache=False)
    tvmopt.compile(model, output=tmp_path / "out.tvmopt", verify=False, cache=False)
    monkeypatch.setattr(Draft, "begin", real)
    assert (tmp_path / "out.tvmopt").read_bytes() == tvmopt.compile(
        model, verify=False, cache=False
    ).artifact.to_bytes()
