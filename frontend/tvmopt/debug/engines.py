"""Running one engine once, in its own process: what `compare` asks of onnxruntime, OpenVINO and the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tvmopt.analysis.comparator import Array
from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Job
from tvmopt.bench.runners import parse, runner_class
from tvmopt.files import save_arrays


def job_of(spec: str, model: str, precision: str, threads: int, shapes: Mapping[str, tuple[int, ...]]) -> Job:
    """What an engine is asked, from ``name[:key=value...]``."""
    name, options = parse(spec)
    return Job(name, model, "", threads, 1, precision, dict(shapes), options)


def run_engine(job: Job, feeds: Mapping[str, Array], folder: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The outputs of one run, and the engine's facts.

    Raises:
        MissingDependency: its package or device is missing.
        TvmoptError: it failed or died.
    """
    inputs, outputs = folder / "engine-inputs.npz", folder / "engine-outputs.npz"
    save_arrays(inputs, feeds)
    if runner_class(job.engine).builds and not job.prepared:
        job = replace(job, prepared=str(folder / f"{job.engine}.engine"))
        with Engine(job) as engine:
            engine.ask("build", job, patience=3600)
    with Engine(job) as engine:
        loaded = engine.ask("load", job)
        engine.ask("bind", str(inputs))
        engine.ask("check", str(outputs))
    with np.load(outputs) as file:
        found = {n: file[n] for n in file.files}
    outputs.unlink()
    return found, loaded["facts"]
