"""Size and start-up of C archives beside onnxruntime's, in turn.

    python benchmarks/c_archive.py mobilenet_v2 bert_base
    python benchmarks/c_archive.py mobilenet_v2 --rounds 31

A round starts every program anew. Of the C archive's example the whole process is timed, from its start to its end,
with one inference; of onnxruntime making the session and the first run, in a Python process that has imported it and
whose start does not count. The files are warm. Outputs are compared before anything is timed. The results go into
``benchmarks/results/MACHINE/c-archive.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime

import tvmopt
from tvmopt.analysis.samples import sample_inputs
from tvmopt.bench.machine import slug
from tvmopt.files import write_text
from tvmopt.toolchain.static import Archiver

PEER = """
import sys, time
import numpy as np, onnxruntime
feeds = dict(np.load(sys.argv[2]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
start = time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
outputs = session.run(None, feeds)
took = time.perf_counter() - start
print(took)
if len(sys.argv) > 3:
    np.savez(sys.argv[3], *outputs)
"""


def started(command: list[str], given: bytes) -> tuple[float, bytes]:
    """Seconds of a process from its start to its end, and what it wrote."""
    start = time.perf_counter()
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - start, done.stdout


def peer(model: Path, feeds: Path, *more: str) -> float:
    words = [sys.executable, "-c", PEER, str(model), str(feeds), *more]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def measured(name: str, rounds: int) -> dict[str, Any]:
    """One model, one thread."""
    source = models.write(name, models.FOLDER)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        made = tvmopt.compile(source, emit="c-archive", output=folder, threads=1, records=False)
        assert made.archive is not None
        program, feeds = Path(place) / "example", Path(place) / "feeds.npz"
        Archiver(made.manifest.arch).program(folder, f"{name}_example.c", f"lib{name}.a", program)
        subprocess.run(["strip", str(program)], check=True)
        arrays = sample_inputs(made.manifest.inputs, bounds=made.manifest.options["bounds"])
        given = b"".join(arrays[info.name].tobytes() for info in made.manifest.inputs)
        np.savez(feeds, **arrays)
        outputs = Path(place) / "outputs.npz"
        peer(source, feeds, str(outputs))
        mine = np.frombuffer(started([str(program)], given)[1], np.float32)
        theirs = np.concatenate([o.ravel() for o in np.load(outputs).values()])
        assert np.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max()), "outputs differ"
        times: dict[str, list[float]] = {"c": [], "onnxruntime": []}
        for _ in range(rounds):
            times["c"].append(started([str(program)], given)[0])
            times["onnxruntime"].append(peer(source, feeds))
        library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
        return {
            "model": name,
            "rounds": rounds,
            "program_mb": program.stat().st_size / 1e6,
            "weights_mb": made.manifest.weight_bytes / 1e6,
            "onnxruntime_mb": (library.stat().st_size + source.stat().st_size) / 1e6,
            "workspace_mb": (made.archive.workspace + made.archive.scratch) / 1e6,
            **{f"{who}_ms": statistics.median(found) * 1e3 for who, found in times.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    found = [measured(name, asked.rounds) for name in asked.models]
    result = models.FOLDER.parent / "results" / slug() / "c-archive.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    write_text(result, json.dumps(found, indent=1) + "\n")
    print("one thread; medians; onnxruntime", onnxruntime.__version__)
    for one in found:
        print(
            f"{one['model']}: program {one['program_mb']:.1f} MB, of which weights {one['weights_mb']:.1f}, and "
            f"{one['workspace_mb']:.1f} MB of workspace (onnxruntime's library and model {one['onnxruntime_mb']:.1f}); "
            f"start and one run {one['c_ms']:.1f} ms (onnxruntime {one['onnxruntime_ms']:.1f})"
        )


if __name__ == "__main__":
    main()
