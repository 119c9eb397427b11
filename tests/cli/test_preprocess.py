"""`tvmopt compile --preprocess`, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.preprocessing.test_stages import convolution

STAGE = "image:resize=40,crop=33x31,mean=0.5,std=0.25"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preprocess")
    onnx.save(convolution(), str(folder / "m.onnx"))
    return folder


def test_pictures_in(folder: Path) -> None:
    done = tvmopt("compile", "m.onnx", "--preprocess", STAGE, "--shape", "x:1x48x64x3", "--threads", 1, cwd=folder)
    assert done.returncode == 0 and "agrees with float64 and onnxruntime" in done.stdout, done.stderr
    shown = tvmopt("inspect", "m.tvmopt", cwd=folder).stdout
    assert f"takes      {STAGE}" in shown and "uint8[1,48,64,3]" in shown
    np.save(folder / "x.npy", np.random.default_rng(0).integers(0, 256, (1, 48, 64, 3), dtype=np.uint8))
    assert tvmopt("run", "m.tvmopt", "-i", "x=x.npy", "-o", "y.npy", cwd=folder).returncode == 0
    assert np.load(folder / "y.npy").shape == (1, 8, 17, 16)


def test_a_configuration(folder: Path) -> None:
    config = {"do_resize": True, "size": {"height": 33, "width": 31}, "resample": 3, "do_normalize": False}
    (folder / "c.json").write_text(json.dumps(config))
    done = tvmopt(
        "compile", "m.onnx", "--preprocess", "x=image:@c.json,from=9x10", "-o", "c.tvmopt", "--no-verify", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    taken = json.loads(tvmopt("inspect", "c.tvmopt", "--json", cwd=folder).stdout)["options"]["preprocess"]
    assert taken["x"].startswith("image:filter=bicubic,resize=33x31,") and taken["x"].endswith(",from=9x10")


def test_classes_out(folder: Path) -> None:
    (folder / "l.txt").write_text("\n".join(f"column {i}" for i in range(16)))
    stage = "y=scores:softmax,top-k=3,labels=l.txt"
    done = tvmopt("compile", "m.onnx", "--postprocess", stage, "-o", "s.tvmopt", "--threads", 1, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gives      y=scores:softmax,top-k=3" in tvmopt("inspect", "s.tvmopt", cwd=folder).stdout
    shown = tvmopt("run", "s.tvmopt", cwd=folder).stdout
    assert "y_classes" in shown and shown.count("column ") == 3, shown
    (classes,) = json.loads(tvmopt("run", "s.tvmopt", "--json", cwd=folder).stdout)["classes"]
    assert [c["name"] for c in classes] == [f"column {c['class']}" for c in classes]
    done = tvmopt("compile", "m.onnx", "--postprocess", "scores:top-k=17", "-o", "no.tvmopt", cwd=folder)
    assert done.returncode == 2 and "has 16 classes" in done.stderr and not (folder / "no.tvmopt").exists()


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("image:resize=40,crp=33", "did you mean crop?"),
        (STAGE, "from=480x640"),
        ("y=" + STAGE + ",from=48x64", "no input 'y'"),
        ("image:crop=33x31,from=20x20", "pad=zero"),
        ("image:@none.json", "cannot be read"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_written(folder: Path, stage: str, told: str) -> None:
    done = tvmopt("compile", "m.onnx", "--preprocess", stage, "-o", "wrong.tvmopt", cwd=folder)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert "where: " in done.stderr and "fix:   " in done.stderr
    assert not (folder / "wrong.tvmopt").exists()
