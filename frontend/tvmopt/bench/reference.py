"""What every engine's outputs are compared with: onnxruntime's in fp32, in a process of its own - for `run.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.sensitivity import rounded, write_rounded
from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Job
from tvmopt.errors import TvmoptError
from tvmopt.files import save_arrays


def reference_outputs(job: Job, inputs: Path, path: Path) -> dict[str, Any]:
    """Outputs of a job of onnxruntime on a file of inputs; kept in `path`."""
    with Engine(job) as engine:
        engine.ask("load", job)
        engine.ask("bind", str(inputs))
        engine.ask("check", str(path))
    with np.load(path) as file:
        return {n: file[n] for n in file.files}


def moved_outputs(
    model: str, shapes: dict[str, tuple[int, ...]], feeds: Mapping[str, Any], folder: Path, precision: str
) -> dict[str, Any]:
    """The reference's outputs with weights and inputs rounded to 16 bits, for `tvmopt.analysis.sensitivity`; none where
    it cannot run."""
    path, inputs = folder / "rounded.onnx", folder / "rounded-inputs.npz"
    if not path.is_file():  # once for all engines
        write_rounded(model, path, precision)
        save_arrays(inputs, rounded(feeds, precision))
    try:
        return reference_outputs(Job("onnxruntime", str(path), shapes=shapes), inputs, folder / "moved.npz")
    except TvmoptError:
        return {}  # no slack then
