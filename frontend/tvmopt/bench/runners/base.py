"""The one interface of all engines: load a model, bind inputs, run once, hand out outputs.

Everything here runs in the engine's own process. A runner imports its package inside :meth:`Runner.load`,
so that a missing one is an error with an install command and not a crash of the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.bench.records import Job
from tvmopt.errors import InputError, MissingDependency

Array = np.ndarray[Any, Any]


class Runner(ABC):
    """One engine with one model.

    Class attributes:
        options: the keys an engine spec may set, with what they mean.
        builds: whether :meth:`build` writes a file that :meth:`load` reads.
    """

    options: Mapping[str, str] = {}
    builds = False

    def __init__(self, job: Job) -> None:
        self.job = job
        unknown = sorted(set(job.options) - set(self.options))
        if unknown:
            known = ", ".join(f"{k} ({v})" for k, v in self.options.items()) or "none"
            raise InputError(f"{job.engine} has no option {', '.join(unknown)}", fix=f"options: {known}")

    def build(self, path: Path) -> None:  # noqa: B027 - most engines compile while loading
        """Compile the model to `path`, in a process that ends afterwards."""

    @abstractmethod
    def load(self) -> dict[str, str]:
        """Make ready to run; the row's facts: version, threads, precision *read back*, transfers."""

    @abstractmethod
    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Take the inputs that every following :meth:`run` uses."""

    @abstractmethod
    def run(self) -> None:
        """One inference, finished when it returns."""

    @abstractmethod
    def outputs(self) -> dict[str, Array]:
        """The outputs of the last run, by ONNX name."""

    def caller(self) -> Callable[[], None]:
        """A callable for one more concurrent caller (a stream); inputs are bound."""
        raise InputError(
            f"{self.job.engine} has no concurrent streams here", fix="--streams 1, or leave this engine out"
        )

    def transfers(self) -> dict[str, float]:
        """Milliseconds of host-to-device and device-to-host copies; empty where data stays on the host."""
        return {}


def require(module: str, package: str, why: str = "", command: str = "") -> Any:
    """Import a module or say what to install.

    Args:
        module: what to import.
        package: what to install.
        command: instead of ``pip install PACKAGE``.
    """
    try:
        return import_module(module)
    except ImportError as error:
        detail = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingDependency(
            f"{module} cannot be imported{detail}{': ' + why if why else ''}",
            fix=command or f"pip install {package}",
        ) from error


def version(*packages: str) -> str:
    """The first installed package's version."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def bound_model(job: Job) -> Any:
    """The job's ONNX model with its shapes bound, or its path where nothing is open."""
    if not job.shapes:
        return job.model
    import onnx

    model = onnx.load(job.model)
    for value in model.graph.input:
        if value.name in job.shapes:
            dims = value.type.tensor_type.shape
            dims.Clear()
            for size in job.shapes[value.name]:
                dims.dim.add(dim_value=size)
    return model.SerializeToString()
