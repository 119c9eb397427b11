"""Keys: a workload's hash is the same in every process and under every name, and another for another function."""

from __future__ import annotations

import os
import subprocess
import sys

HASHES = """
import tvm
from tvm import te
from tvmopt.tuning.record import workload_hash

def made(n, name, scale=2.0):
    x = te.placeholder((n, 8), name=name)
    y = te.compute((n, 8), lambda i, j: x[i, j] * tvm.tirx.const(scale, "float32"), name=name + "_y")
    return te.create_prim_func([x, y])

print(workload_hash(made(4, "a")), workload_hash(made(4, "b").with_attr("op_pattern", 3)),
      workload_hash(made(5, "a")), workload_hash(made(4, "a", 3.0)))
"""


def test_hash_is_of_the_function_only() -> None:
    answers = [
        subprocess.run(
            [sys.executable, "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, text=True,
            capture_output=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert answers[0] == answers[1]
    same, renamed, larger, scaled = answers[0]
    assert same == renamed and len({same, larger, scaled}) == 3
    assert len(same) == 16
