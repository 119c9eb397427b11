"""What every engine's outputs are compared with: onnxruntime's in fp32, in a process of its own - for `run.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Job


def reference_outputs(job: Job, inputs: Path, path: Path) -> dict[str, Any]:
    """Outputs of a job of onnxruntime on a file of inputs; kept in `path`."""
    with Engine(job) as engine:
        engine.ask("load", job)
        engine.ask("bind", str(inputs))
        engine.ask("check", str(path))
    with np.load(path) as file:
        return {n: file[n] for n in file.files}
