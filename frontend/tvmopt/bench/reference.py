"""What every engine's outputs are compared with: onnxruntime's in fp32, in a process of its own - for `run.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.judge import Run
from tvmopt.analysis.sensitivity import rounded
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


def again(shapes: dict[str, tuple[int, ...]], feeds: Mapping[str, Any], folder: Path, precision: str) -> Run:
    """The reference on variants of the model, for a :class:`~tvmopt.analysis.judge.Judge`; each is run once for all
    engines."""
    kept: dict[tuple[Path, bool], dict[str, Any]] = {}

    def run(path: Path, round_inputs: bool) -> dict[str, Any]:
        if (path, round_inputs) not in kept:
            inputs = folder / "inputs-again.npz"
            save_arrays(inputs, rounded(feeds, precision) if round_inputs else feeds)
            try:
                found = reference_outputs(Job("onnxruntime", str(path), shapes=shapes), inputs, folder / "again.npz")
            except TvmoptError:
                found = {}
            kept[path, round_inputs] = found
        return kept[path, round_inputs]

    return run
