"""The small model, compiled once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvmopt
from tests.runtime.small import small_model
from tvmopt.runtime.artifact import Artifact


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(small_model(), str(path))
    return path


@pytest.fixture(scope="session")
def compiled(onnx_file: Path) -> tvmopt.Compiled:
    return tvmopt.compile(onnx_file, verify=False)


@pytest.fixture(scope="session")
def artifact(compiled: tvmopt.Compiled) -> Artifact:
    return compiled.artifact


@pytest.fixture(scope="session")
def artifact_file(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifact.save(tmp_path_factory.mktemp("artifact") / "small.tvmopt")


@pytest.fixture
def x() -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).standard_normal((1, 3, 9, 9)).astype("float32")
