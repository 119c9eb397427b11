"""Outputs of open sizes lie in storages of the largest one: right at every size, and memory does not grow with
shapes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from tvm import relax

from tests.importer.onnx_check import model, value
from tvmopt.importer import prepare
from tvmopt.importer.relax import to_relax
from tvmopt.passes.stages import through
from tvmopt.pipeline import lower, memory_stages
from tvmopt.targets import Machine


def allocations(shape, ranges, without=()):
    """Names of the operators that allocate in the planned `main`, with their shapes."""
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Concat", ["a", "x"], ["y"], axis=0)]
    imported = to_relax(prepare(model(nodes, [value("x", shape)], [value("y", None)]), ranges))
    machine = Machine.load("cpu")
    with machine.tvm_target():
        stages = memory_stages()
        until = [s.name for s in stages].index("RewriteCUDAGraph")
        kept = [s for s in stages[:until] if s.name not in without]
        return allocated(through(kept, lower(imported.module, machine).module)["main"])


def allocated(main):
    """Names of the operators that allocate in a function, with their shapes."""
    found = []
    relax.analysis.post_order_visit(
        main,
        lambda e: found.append((e.op.name, e.args[0])) if "alloc" in getattr(getattr(e, "op", None), "name", "") else 0,
    )
    return found


@pytest.mark.parametrize(("shape", "most"), [(("n", 3), 2 * 7 * 3 * 4), (("n", "m"), 2 * 7 * 9 * 4)])
def test_an_output_lies_in_a_storage_of_the_largest_size(shape, most):
    ranges = {"n": "1..7", **({"m": "2..9"} if "m" in shape else {})}
    found = allocations(shape, ranges)
    assert not [name for name, _ in found if name == "relax.builtin.alloc_tensor"]
    sizes = [int(s.values[0]) for name, s in found if name == "relax.memory.alloc_storage"]
    assert most in sizes
    before = allocations(shape, ranges, without=("tvmopt.BoundOutputs",))
    assert [name for name, _ in before if name == "relax.builtin.alloc_tensor"]


def test_static_outputs_stay_the_runtime_s():
    assert [name for name, _ in allocations((7, 3), {}) if name == "relax.builtin.alloc_tensor"]


PROGRAM = """
import numpy as np, psutil, tvmopt
from onnx import helper, TensorProto
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1024])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Concat", ["a", "x"], ["y"], axis=0)]
graph = helper.make_graph(nodes, "g", [x], [y])
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
model = tvmopt.compile(made, shape={"n": "1..4096"}, verify=False).model
ones = np.ones((4096, 1024), np.float32)
process = psutil.Process()
for n in (4096, 4096, 1):
    model(ones[:n])
before = process.memory_info().rss
for n in range(40, 4096, 40):
    assert model(ones[:n]).shape == (2 * n, 1024)
print((process.memory_info().rss - before) >> 20)
"""


def test_memory_does_not_grow_with_the_number_of_shapes():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64, done.stdout  # one output of the largest size has 32 MB, those of 101 sizes 1.6 GB


def test_numbers():
    import tvmopt

    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Concat", ["a", "x"], ["y"], axis=0)]
    made = model(nodes, [value("x", ("n", 3))], [value("y", None), value("a", None)])
    compiled = tvmopt.compile(made, shape={"n": "1..33"}, verify=False).model
    for n in (1, 7, 8, 9, 31, 32, 33):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype("float32")
        y, a = compiled(x)
        np.testing.assert_allclose(a, np.exp(x.astype("float64")), rtol=1e-6)
        np.testing.assert_array_equal(y, np.concatenate([a, x]))
