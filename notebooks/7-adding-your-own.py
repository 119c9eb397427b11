# %% [markdown]
# # Adding your own
#
# An operator, a graph pass, a schedule family and a target - all from *outside* the package. This notebook writes a small
# package, `example`, that teaches tvmopt an operator of its own, `MovingAverage`: the mean of an element and those before it.
#
# The first cells write the package's files, so that you see all of it.

# %%
import os
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx import TensorProto, helper

os.chdir(tempfile.mkdtemp())
Path("site/example/schedules/cpu").mkdir(parents=True)
for folder in ("example", "example/schedules", "example/schedules/cpu"):
    Path("site", folder, "__init__.py").touch()

# %% [markdown]
# ## The model
#
# An ONNX file with a node that nobody knows, behind two negations that cancel each other.

# %%
rows, length, window = 256, 2048, 16
nodes = [
    helper.make_node("Neg", ["x"], ["a"], name="first"),
    helper.make_node("Neg", ["a"], ["b"], name="second"),
    helper.make_node("MovingAverage", ["b"], ["y"], name="smooth", domain="com.example", window=window),
]
borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, length])] for n in "xy"]
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
model = helper.make_model(helper.make_graph(nodes, "smoothing", *borders), opset_imports=opsets, ir_version=9)
onnx.save(model, "model.onnx")

# %%
import tvmopt

try:
    tvmopt.compile("model.onnx")
except tvmopt.errors.UnsupportedOp as error:
    print(error)

# %% [markdown]
# ## An operator
#
# A *converter* turns one ONNX node into TVM's Relax. Relax has no moving average, so `call_te` writes its loops: where a window
# begins before the row, elements count as zero.

# %%
Path("site/example/operators.py").write_text('''
"""The operators of com.example, for tvmopt."""

from tvm import te, tirx


def moving_average(bb, inputs, attrs, ctx):
    """MovingAverage: y[r, j] = (x[r, j - window + 1] + ... + x[r, j]) / window, zeros before the row."""
    window = int(attrs.get("window", 3))
    if window < 1:
        raise ctx.unsupported(f"its window is {window}")

    def compute(x):
        rows, length = x.shape
        k = te.reduce_axis((0, window), name="k")
        padded = te.compute(
            (rows, length + window - 1),
            lambda r, j: te.if_then_else(j >= window - 1, x[r, j - (window - 1)], tirx.const(0.0, "float32")),
            name="padded",
        )
        total = te.compute(
            (rows, length), lambda r, j: te.sum(padded[r, j + k], axis=[k]), name="moving_sum",
            attrs={"tvmopt.kernel": "example.moving_sum"},
        )
        return te.compute((rows, length), lambda r, j: total[r, j] / window, name="mean")

    return bb.call_te(compute, inputs[0], primfunc_name_hint="moving_average")


CONVERTERS = {("com.example", "MovingAverage"): moving_average}
''');

# %% [markdown]
# ## A pass
#
# A *rule* is shown each binding of the graph and answers with a new value, or with `None`. What it did, and why it did not, it
# records: `tvmopt explain` shows it.

# %%
Path("site/example/passes.py").write_text('''
"""Graph passes of the example."""

from tvmopt.passes.graph import Rewrite, op_name, rewrite_pass


@rewrite_pass("example.CancelNegations")
class CancelNegations(Rewrite):
    """Cancel two negations in a row.

        Before                     After
        a = R.negative(x)          b = x
        b = R.negative(a)

    Declines when   1. the input is no negation.
    """

    def rule(self, graph, var, value):
        if op_name(value) != "negative":
            return None
        inner = graph.call(value.args[0], "negative")
        if inner is None:
            self.declined(var, "1: its input is not a negation")
            return None
        self.applied(var, "two negations")
        return inner.args[0]


PASSES = (("tvmopt.ConvertLayout", CancelNegations),)  # before that pass
''')
Path("site/example/extension.py").write_text('''
"""What tvmopt finds under the entry point: operators and passes."""

from example.operators import CONVERTERS
from example.passes import PASSES

__all__ = ["CONVERTERS", "PASSES"]
''');

# %% [markdown]
# ## Make it known
#
# A package tells of itself by *entry points*. With `pip install`, these lines in its `pyproject.toml` do it:
#
# ```toml
# [project.entry-points."tvmopt.extensions"]
# example = "example.extension"
#
# [project.entry-points."tvmopt.schedules"]
# example = "example.schedules"
# ```
#
# What `pip install` leaves of them is one small file. Here it is written by hand, so that this notebook installs nothing.

# %%
info = Path("site/example-1.0.dist-info")
info.mkdir()
(info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
(info / "entry_points.txt").write_text(
    "[tvmopt.extensions]\nexample = example.extension\n[tvmopt.schedules]\nexample = example.schedules\n"
)
sys.path.insert(0, str(Path("site").resolve()))
os.environ["PYTHONPATH"] = sys.path[0]  # for the commands below

# %% language="bash"
# tvmopt compile model.onnx --no-verify --no-records

# %% [markdown]
# It compiles, and the report names the extension. `--no-verify`: onnxruntime does not know this operator, so NumPy has to be
# the reference here.

# %%
x = np.random.default_rng(0).standard_normal((rows, length), dtype="float32")
padded = np.pad(x.astype("float64"), [(0, 0), (window - 1, 0)])
expected = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1).mean(axis=-1)

plain = tvmopt.load("model.tvmopt")
np.testing.assert_allclose(plain(x), expected, atol=1e-6)
print(f"largest error: {np.abs(plain(x) - expected).max():.1e}")
for kernel in tvmopt.explain("model.tvmopt").kernels:
    print(f"kernel {kernel.name}: family {kernel.family}, nodes {', '.join(n for site in kernel.nodes for n in site)}")
for decision in tvmopt.explain("model.tvmopt").decisions:
    if decision.stage.startswith("example."):
        print(f"{decision.stage} {decision.verdict} at {decision.node}: {decision.reason}")

# %% [markdown]
# ## A schedule family
#
# No family of tvmopt was written for this kernel. One of ours recognises the block by its annotation, computes its strip width
# from the machine, and applies primitives: a row is one task; the zeros in front are made for a strip at a time; a strip of
# sums stays in vector registers while the window passes over it.

# %%
Path("site/example/schedules/cpu/moving_average.py").write_text('''
"""Moving average, CPU: a strip of sums in registers while the window passes.

registers   strip / v accumulators <= vector_registers / 2       v = lanes; 8 * v: 8 of 32
latency     strip / v >= add_latency * add_ports                  8 >= 4 * 2
"""

from dataclasses import dataclass

from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.family import Space

NAME, VERSION = "example.moving_average", 1


@dataclass(frozen=True)
class Shape:
    """rows of length elements, a window, and the vector's lanes."""

    rows: int
    length: int
    window: int
    lanes: int


def recognise(func, machine):
    """The block that our converter annotated, of whole vectors."""
    block = annotated(func, "example.moving_sum")
    dims = extents(block) if block is not None else []
    if len(dims) != 3 or dims[1] % (8 * machine.lanes()):
        return None
    return Shape(*dims, machine.lanes())


def knobs(shape, machine):
    """`vectors` in a strip: as many as hide the latency of an addition."""
    best = max(1, min(machine.fma_latency * machine.fma_ports, machine.vector_registers // 2, 8))
    return Space({"vectors": (best, *(n for n in (1, 2, 4, 8) if n != best))})


def apply(sch, shape, knobs):
    """A strip at a time: zeros, sums, mean."""
    total, padded = sch.get_sblock("moving_sum"), sch.get_sblock("padded")
    (mean,) = sch.get_consumers(total)
    row, j = sch.get_loops(mean)
    strip, vector, lane = sch.split(j, [None, knobs["vectors"], shape.lanes])
    sch.compute_at(total, strip, preserve_unit_loops=True)
    sch.compute_at(padded, row, preserve_unit_loops=True)
    *_, columns, k = sch.get_loops(total)
    inner, in_lane = sch.split(columns, [None, shape.lanes])
    sch.reorder(k, inner, in_lane)
    for loop in (inner, vector):
        sch.unroll(loop)
    for loop in (in_lane, lane):
        sch.vectorize(loop)
    sch.parallel(row)
    init = sch.decompose_reduction(total, k)
    *_, zeros, zero_lane = sch.get_loops(init)
    sch.unroll(zeros)
''');

# %% language="bash"
# tvmopt compile model.onnx --no-verify --no-records -o with-family.tvmopt

# %%
fast = tvmopt.load("with-family.tvmopt")
np.testing.assert_allclose(fast(x), expected, atol=1e-6)
rounds = [(plain.time({"x": x}, iterations=20).min_ms, fast.time({"x": x}, iterations=20).min_ms) for _ in range(9)]
before, after = np.median(rounds, axis=0)
print(f"generic schedule {before:.3f} ms, our family {after:.3f} ms: {np.median([b / a for b, a in rounds]):.2f} times as fast")

figure, axis = plt.subplots(figsize=(6, 1.6), dpi=110)
bars = axis.barh(["our family", "without it"], [after, before], color=["#228833", "#4477aa"])
axis.bar_label(bars, fmt="%.3f ms", padding=3)
axis.set_xlim(0, 1.3 * max(before, after))
figure.tight_layout()

# %% [markdown]
# `tvmopt tune` searches the family's knobs like those of any other, and keeps its records under the family's name and version.
#
# ## A target
#
# A machine is a TOML file. Schedules compute their numbers from it: with the registers of an older machine, the same family
# chooses another strip. No code changes.

# %%
Path("old.toml").write_text('''
kind = "llvm"
mcpu = "x86-64-v2"
cores = 2
vector_bits = 128
vector_registers = 16
fma_ports = 1
fma_latency = 4
''')
from example.schedules.cpu import moving_average

from tvmopt.targets import Machine

for target in ("cpu", "old.toml"):
    machine = Machine.load(target)
    shape = moving_average.Shape(rows, length, window, machine.lanes())
    print(f"{machine.name}: {machine.vector_bits}-bit vectors, {machine.vector_registers} registers -> "
          f"{moving_average.knobs(shape, machine).analytic}")

# %% language="bash"
# tvmopt compile model.onnx --no-verify --no-records --target old.toml -o old.tvmopt
# tvmopt run old.tvmopt --print-time | tail -4

# %% [markdown]
# ## Where next
#
# The rules for each part: [operator](../docs/how-to/add-operator.md), [pass](../docs/how-to/add-pass.md),
# [schedule family](../docs/how-to/add-family.md), [target](../docs/how-to/add-target.md).
