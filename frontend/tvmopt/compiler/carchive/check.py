"""An archive beside the artifact of the same compile: the example is built and must give the same bytes - for
`emit.py`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tvmopt.analysis.samples import sample_inputs
from tvmopt.errors import AccuracyError
from tvmopt.runtime.artifact import Artifact
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.emulation import find_emulator, opened
from tvmopt.toolchain.static import Archiver

SEEDS = (0, 1)


def check(
    artifact: Artifact, archiver: Archiver, folder: Path, name: str, weights: Sequence[str], parallel: bool
) -> None:
    """Run artifact and archive on seeded inputs, by this machine or by an emulator.

    Args:
        folder: where the archive's files are. weights: words that tell the example where they are.
        parallel: it may use several threads; then it runs with two as well.

    Raises:
        AccuracyError: the archive ends otherwise than with the artifact's outputs.
    """
    manifest = artifact.manifest
    model = opened(artifact)
    with tempfile.TemporaryDirectory(prefix="tvmopt-archive-check-") as place:
        program = Path(place) / "example"
        archiver.program(folder, f"{name}_example.c", f"lib{name}.a", program)
        foreign = manifest.arch not in ("", host_arch())
        command = [*(find_emulator(manifest).command[:3] if foreign else ()), str(program), *weights]
        for seed in SEEDS:
            feeds = sample_inputs(manifest.inputs, seed=seed, bounds=manifest.options.get("bounds"))
            given = b"".join(_bytes(feeds[info.name]) for info in manifest.inputs)
            outputs = model.run(feeds)
            wanted = b"".join(_bytes(outputs[info.name]) for info in manifest.outputs)
            for threads in ("1", "2") if parallel else ("1",):
                done = subprocess.run([*command, threads], input=given, capture_output=True, check=False, cwd=folder)
                if done.returncode or done.stdout != wanted:
                    raise _wrong(manifest.model, done, seed, threads)


def _bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes() or b"\0" * array.itemsize


def _wrong(model: str, done: subprocess.CompletedProcess[bytes], seed: int, threads: str) -> AccuracyError:
    said = done.stderr.decode(errors="replace").strip()
    how = f"ended with {done.returncode}{': ' * bool(said)}{said}" if done.returncode else "gave other outputs"
    return AccuracyError(
        f"the C archive {how} with the inputs of seed {seed} and {threads} thread(s); the artifact runs them.",
        where=model,
        fix="this is a bug: please report it with the model (--no-verify skips this check)",
    )
