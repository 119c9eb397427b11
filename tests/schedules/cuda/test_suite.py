"""What the suite compiles to on a GPU, held against what is kept in benchmarks/results: kernels, registers, spills."""

from __future__ import annotations

import json
from pathlib import Path

import gpu_suite
import pytest

from tvmopt.errors import MissingDependency
from tvmopt.toolchain import cuda as cuda_toolkit

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
KEPT = json.loads((BENCHMARKS / "results/nvidia-h100-compiled/fp16.json").read_text())


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_compiles_to_the_kernels_kept(name: str, tmp_path: Path) -> None:
    """Fewer registers or kernels are progress: run benchmarks/gpu_suite.py and look at the difference."""
    try:
        if not cuda_toolkit.find_toolkit().nvcc:
            pytest.skip("no nvcc here")
    except MissingDependency as error:
        pytest.skip(str(error))
    suite = gpu_suite
    kept = next(row for row in KEPT["models"] if row["model"] == name)
    found = suite.compiled(suite.models.write(name, tmp_path, batch=1), KEPT["target"], KEPT["precision"])
    assert {k: found.get(k) for k in ("kernels", "families", "spilled", "dlight")} == {
        k: kept[k] for k in ("kernels", "families", "spilled", "dlight")
    }, found.get("error")
    assert found["registers"] <= kept["registers"] and found["shared"] <= kept["shared"]
