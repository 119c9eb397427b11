"""Small decoders, compiled once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.decoders.small import small_decoder
from tvmopt import api


@pytest.fixture(scope="session", params=["grouped", "plain", "standard"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    """A decoder and its artifact, which verification has passed."""
    model = small_decoder(request.param)
    path = tmp_path_factory.mktemp("decoders") / f"{request.param}.tvmopt"
    made = api.compile(model, output=path)
    assert made.artifact.manifest.accuracy["verified"], made.artifact.manifest.accuracy
    return model, path
