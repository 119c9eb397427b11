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
# ## A family that packs weights
#
# A family can begin earlier, at the operator: it writes the loops itself, and stores constant weights as its kernel wants them.
# This one takes products whose weights are all -1, 0 or 1, and keeps them in bytes: a product of few rows waits for its weights,
# and these are a quarter as long. It is one folder. `compute.py` holds the loops and the packing, `schedule.py` the three
# functions, and `__init__.py` the fields.

# %%
folder = Path("site/example/schedules/cpu/ternary")
folder.mkdir()
(folder / "compute.py").write_text('''
"""Products with weights of -1, 0 and 1 as TE, the weights packed in panels of bytes.

    ternary[..., p, j] = sum_k X[..., k] * float(Wp[p, k, j])        Wp[p, k, j] = W[k, p*nr + j], zero beyond N
"""

import numpy as np
from tvm import relax, te

from tvmopt.lowering.common import call_fusable, constant, operand_types, static_shape
from tvmopt.scheduling.family import Declined


def pack(weight, nr):
    """W[K, N] as int8 [ceil(N/nr), K, nr], zeros beyond N."""
    k, n = weight.shape
    whole = np.zeros((k, -(-n // nr) * nr), "int8")
    whole[:, :n] = weight
    return np.ascontiguousarray(whole.reshape(k, -1, nr).swapaxes(0, 1))


def matmul(bb, call, machine):
    """An expression in the place of the call; None: not our kind of product; Declined: ours, but for one condition."""
    x, w = call.args
    value, shape = constant(bb, w), static_shape(x)
    if value is None or value.ndim != 2 or not np.isin(value, (-1, 0, 1)).all():
        return None
    if shape is None or str(x.ty.dtype) != "float32":
        return Declined("an open shape" if shape is None else operand_types(call))
    rows, (depth, columns), nr = shape[:-1], value.shape, 2 * machine.lanes()

    def compute(data, packed):
        k = te.reduce_axis((0, depth), name="k")
        total = te.compute(
            (*rows, -(-columns // nr), nr),
            lambda *i: te.sum(data(*i[:-2], k) * packed(i[-2], k, i[-1]).astype("float32"), axis=[k]),
            name="ternary", attrs={"tvmopt.kernel": "ternary"},
        )
        return te.compute(
            (*rows, columns), lambda *i: total(*i[:-1], i[-1] // nr, i[-1] % nr),
            name="unpack", attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, [x, relax.const(pack(value, nr), "int8")], "ternary")
''')
(folder / "schedule.py").write_text('''
"""Ternary products, CPU: rows by two vectors of sums in registers; a panel of bytes is widened as it is read.

registers   2 * rows sums + 2 (weights) + 1 (x) <= vector_registers
"""

from dataclasses import dataclass

from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.family import Space


@dataclass(frozen=True)
class TernaryProblem:
    """rows by columns, in panels of nr; lanes of a vector."""

    rows: int
    columns: int
    nr: int
    lanes: int


def recognise(func, machine):
    """The block that compute.py marked, its rows in one loop."""
    block, out = annotated(func, "ternary"), consumer(func, "ternary")
    if block is None or out is None:
        return None
    rows, _, nr, _ = extents(block)
    return TernaryProblem(rows, extents(out)[-1], nr, machine.lanes())


def knobs(problem, machine):
    """`rows` of a tile."""
    best = max(1, min(problem.rows, (machine.vector_registers - 3) // 2, 8))
    return Space({"rows": (best, *(n for n in (1, 2, 4, 8) if n != best))})


def apply(sch, problem, knobs):
    """For a panel, for a tile of rows, for k: the tile."""
    total = sch.get_sblock("ternary")
    (out,) = sch.get_consumers(total)
    row, column = sch.get_loops(out)
    tile, row_in = sch.split(row, [None, knobs["rows"]])
    panel, column_in = sch.split(column, [None, problem.nr])
    sch.reorder(panel, tile, row_in, column_in)
    sch.compute_at(total, tile, preserve_unit_loops=True)
    rows, one, columns, k = sch.get_loops(total)[2:]
    vectors, lane = sch.split(columns, [None, problem.lanes])
    sch.reorder(k, one, rows, vectors, lane)
    for loop in (rows, vectors):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.annotate(tile, "pragma_loop_partition_hint", 1)
    sch.parallel(panel)
    sch.decompose_reduction(total, k)
''')
(folder / "__init__.py").write_text('''
"""Products whose weights are -1, 0 and 1, on CPUs."""

from example.schedules.cpu.ternary.compute import matmul
from example.schedules.cpu.ternary.schedule import apply, knobs, recognise
from tvmopt.scheduling.normalize import one_row_loop

NAME, VERSION = "ternary", 1
LOWERS = {"relax.matmul": matmul}
normalise = one_row_loop("ternary")
''');

# %% [markdown]
# Its test belongs to it: sizes around the vector's width, against float64, and what it leaves alone.

# %%
Path("site/test_ternary.py").write_text('''
"""The family `ternary`: numbers at the edges, and what it declines."""

import numpy as np
import tvmopt
from onnx import helper, numpy_helper


def compiled(rows, depth, columns, dtype="float32", scale=1):
    """The compiled product of `rows` rows and random weights of -scale, 0 and scale, and the weights."""
    weight = (np.random.default_rng(0).integers(-1, 2, (depth, columns)) * scale).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(n, kind, [rows, d]) for n, d in (("x", depth), ("y", columns)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return tvmopt.compile(model, records=False), weight


def test_numbers_at_the_edges():
    for size in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33):
        for rows, depth, columns in ((size, 5, 33), (3, size, 40), (2, 9, size)):
            run, weight = compiled(rows, depth, columns)
            assert [k.family for k in run.report.kernels] == ["ternary"]
            x = np.random.default_rng(1).standard_normal((rows, depth)).astype("float32")
            np.testing.assert_allclose(run(x), x.astype("float64") @ weight, atol=1e-5)


def test_what_it_leaves_alone():
    run, _ = compiled(4, 16, 32, scale=2)
    assert [k.family for k in run.report.kernels] == ["gemm"]
    run, _ = compiled(4, 16, 32, dtype="float64")
    assert any(d.reason == "ternary: float64 operands" for d in run.report.decisions)
''');

# %% language="bash"
# python -c "import test_ternary as t; t.test_numbers_at_the_edges(); t.test_what_it_leaves_alone(); print('both tests pass')"

# %% [markdown]
# The same product by tvmopt's own family, and by this one. The first process does not know the package: its path is taken away.

# %%
depth, columns = 2048, 4096
weight = np.random.default_rng(0).integers(-1, 2, (depth, columns)).astype("float32")
borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d])] for n, d in (("x", depth), ("y", columns))]
product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
graph = helper.make_graph([product], "ternary", *borders, [onnx.numpy_helper.from_array(weight, "w")])
onnx.save(helper.make_model(graph, opset_imports=opsets[:1], ir_version=9), "ternary.onnx")

# %% language="bash"
# PYTHONPATH= tvmopt compile ternary.onnx --no-verify --no-records -o ours.tvmopt > before.txt
# tvmopt compile ternary.onnx --no-verify --no-records -o ternary.tvmopt | grep -A1 family

# %%
ours, ternary = tvmopt.load("ours.tvmopt"), tvmopt.load("ternary.tvmopt")
x = np.random.default_rng(1).standard_normal((1, depth), dtype="float32")
np.testing.assert_allclose(ternary(x), x.astype("float64") @ weight, atol=1e-3)
rounds = [[one.time({"x": x}, iterations=20).min_ms for one in (ours, ternary)] for _ in range(9)]
before, after = np.median(rounds, axis=0)
print(f"fp32 panels {before:.3f} ms, bytes {after:.3f} ms: {np.median([b / a for b, a in rounds]):.2f} times as fast")
print(f"artifacts: {Path('ours.tvmopt').stat().st_size / 1e6:.0f} MB and {Path('ternary.tvmopt').stat().st_size / 1e6:.0f} MB")

# %% [markdown]
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
