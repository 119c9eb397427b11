"""Tiles are asked for, and code that needs them is refused where there are none - by name, before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvmopt
from tests.amx import real
from tests.amx.nets import save_cnn
from tvmopt.compiler.results import used_features
from tvmopt.errors import ArtifactError
from tvmopt.report import Kernel, Report
from tvmopt.runtime.model import Model
from tvmopt.runtime.tiles import request, use_tiles
from tvmopt.targets import Machine


@pytest.mark.skipif(real(), reason="this machine has tiles")
def test_no_tiles_is_an_error_with_its_reason() -> None:
    assert request()
    with pytest.raises(ArtifactError, match="does not give this process AMX tiles") as told:
        use_tiles("resnet50.tvmopt")
    assert "resnet50.tvmopt" in str(told.value) and "--precision fp32" in str(told.value)


@pytest.mark.skipif(real(), reason="this machine has tiles")
def test_an_artifact_with_tiles_is_refused_not_run(tmp_path: Path) -> None:
    compiled = tvmopt.compile(save_cnn(tmp_path / "cnn.onnx"), target="sapphire-rapids", precision="bf16", verify=False)
    assert {"amx-bf16", "amx-tile"} <= set(compiled.manifest.features)
    with pytest.raises(ArtifactError, match="lacks instructions the artifact uses: amx-bf16, amx-int8, amx-tile"):
        Model(compiled.artifact)


def test_only_code_with_tiles_needs_them() -> None:
    machine = Machine.load("sapphirerapids")

    def features(family: str) -> set[str]:
        kernel = Kernel("k", family, "analytic", {}, 1, (("n",),), 1.0, 1.0)
        report = Report("m", machine.name, "bf16", (kernel,), (), {}, 1.0, 1, 1, 1)
        return set(used_features(machine, report))

    assert {"amx-bf16", "amx-tile"} <= features("amx_gemm") and "avx512f" in features("gemm")
    assert not any(f.startswith("amx-") for f in features("gemm"))
