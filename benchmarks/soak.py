"""A server's life in short: requests from threads that live for one request, and loads that are dropped.

    python benchmarks/soak.py threads --count 100000
    python benchmarks/soak.py loads --count 50000
    python benchmarks/soak.py loads --artifact model.tvmopt

Prints operating-system threads, memory mappings and resident memory at the start, at every tenth and at the end: all
three must stay flat. Without an artifact it compiles a small model of two matrix products.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import tvmopt


def state() -> tuple[int, int, float]:
    """Threads, mappings and resident MB of this process."""
    process = psutil.Process()
    mappings = Path("/proc/self/maps").read_text().count("\n")
    return process.num_threads(), mappings, process.memory_info().rss / 1e6


def small_model() -> Any:
    """Two products with a Relu between them: parallel loops, weights, a temporary."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 256]) for name in "xy")
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def soak(step: Callable[[], None], count: int, tell: Callable[[str], None] = print) -> list[tuple[int, int, float]]:
    """Do a step so many times; the state before, at every tenth of the way and at the end."""
    step()
    gc.collect()
    states, begin = [state()], time.perf_counter()
    for index in range(1, count + 1):
        step()
        if index % max(1, count // 10) == 0:
            states.append(state())
            told = "{} threads, {} mappings, {:.1f} MB".format(*states[-1])
            tell(f"{index:>7}: {told}, {index / (time.perf_counter() - begin):.0f} a second")
    return states


def request_step(path: Path) -> Callable[[], None]:
    """One request from a thread that was started for it and ends with it."""
    model = tvmopt.load(path)
    feeds = {i.name: np.ones(i.shape, i.numpy_dtype) for i in model.inputs}
    expected = model.run(feeds)

    def request() -> None:
        got = model.run(feeds)
        if any((got[name] != expected[name]).any() for name in expected):
            wrong.append(threading.get_ident())

    wrong: list[int] = []

    def step() -> None:
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
        if wrong:
            raise SystemExit("a request got another result than the first one")

    return step


def load_step(path: Path) -> Callable[[], None]:
    """Load, call once, drop."""

    def step() -> None:
        model = tvmopt.load(path)
        model.run({i.name: np.ones(i.shape, i.numpy_dtype) for i in model.inputs})

    return step


STEPS = {"threads": request_step, "loads": load_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=STEPS)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--artifact", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.artifact or Path(folder) / "small.tvmopt"
        if not given.artifact:
            tvmopt.compile(small_model(), output=path, verify=False, cache=False)
        states = soak(STEPS[given.what](path), given.count)
    print(
        "from {} threads, {} mappings, {:.1f} MB to {} threads, {} mappings, {:.1f} MB".format(*states[0], *states[-1])
    )


if __name__ == "__main__":
    main()
