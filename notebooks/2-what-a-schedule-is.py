# %% [markdown]
# # What a schedule is
#
# A *schedule* says how a loop nest runs: in which order, in which pieces, on how many lanes, by how many threads. It never
# changes what is computed. This notebook takes one matrix product, `C = A @ B`, from the plain loops to near the machine's
# peak, one primitive at a time. After each step it shows three things: the loop nest, the inner loop of the generated
# assembly, and the speed.
#
# The last step is the schedule that tvmopt ships, which computes its numbers from the machine's description.

# %%
import os

os.environ["TVM_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's BLAS: one thread, as the first steps have

import matplotlib.pyplot as plt
import numpy as np
import tvm
from looking import inner_loop, nest, seconds
from tvm import te
from tvm.s_tir import Schedule

from tvmopt.analysis.peaks import measure_peaks
from tvmopt.targets import Machine

machine = Machine.load("cpu")
print(f"{machine.name}: {machine.cores} cores, {machine.vector_bits}-bit vectors ({machine.lanes()} floats), "
      f"{machine.vector_registers} vector registers, {machine.fma_ports} multiply-add ports")

# %% [markdown]
# ## The roof
#
# How fast could it be? tvmopt measures that: a loop of independent multiply-adds, in one thread. NumPy's BLAS is a second
# reference: a library written by hand, in assembly, over many years.

# %%
M, N, K = 392, 1024, 512
rng = np.random.default_rng(0)
a, b = rng.standard_normal((M, K), dtype="float32"), rng.standard_normal((K, N), dtype="float32")
expected = a @ b
roof = measure_peaks(1).flops["fp32"] / 1e9
blas = 2 * M * N * K / seconds(lambda: a @ b) / 1e9
print(f"one thread: {roof:.0f} GFLOP/s is the measured peak, NumPy's BLAS reaches {blas:.0f}")

# %% [markdown]
# ## The tool
#
# `step` compiles a function, checks its result against NumPy, times it, and remembers it for the plot at the end.

# %%
target = machine.tvm_target()
history, calls = {}, {}


def step(name, func, weight=b, asm=16):
    with target, tvm.transform.PassContext(config={"s_tir.LoopPartition": {"partition_const_loop": True}}):
        library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target)
    x, w = tvm.runtime.tensor(a), tvm.runtime.tensor(weight)
    out = tvm.runtime.tensor(np.zeros((M, N), "float32"))
    library["main"](x, w, out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-3, atol=1e-3)
    calls[name] = lambda: library["main"](x, w, out)
    history[name] = 2 * M * N * K / seconds(calls[name]) / 1e9
    print(nest(func))
    if asm:
        print()
        print(inner_loop(library.mod.inspect_source("asm"), asm))
    print(f"\n{history[name]:.1f} GFLOP/s, {history[name] / roof:.0%} of the peak of one thread")


def matmul():
    x, y = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    k = te.reduce_axis((0, K), name="k")
    z = te.compute((M, N), lambda i, j: te.sum(x[i, k] * y[k, j], axis=[k]), name="C")
    return Schedule(te.create_prim_func([x, y, z]))


# %% [markdown]
# ## Step 0: the plain loops
#
# One multiply-add after the other, each waiting for the one before: the sum is one number, and `B` is read down a column, so
# that every read is in another cache line.

# %%
sch = matmul()
step("plain loops", sch.mod["main"])

# %% [markdown]
# ## Step 1: `reorder`
#
# Put `j` innermost. Each sum still adds its products in the same order; only the order *among* sums changes. Now `B` is read
# along a row, and neighbouring `j` do not wait for each other: LLVM can vectorise that loop by itself. But a row of `C` has
# more elements than the registers hold, so each pass of `k` loads and stores it.

# %%
sch = matmul()
block = sch.get_sblock("C")
i, j, k = sch.get_loops(block)
sch.reorder(i, k, j)
sch.decompose_reduction(block, k)  # the zeros become a loop of their own
step("reorder", sch.mod["main"])

# %% [markdown]
# ## Step 2: `split` and `vectorize`
#
# Cut `j` into pieces of one vector and move `k` inside: the piece of `C` stays in one vector register for the whole of `k`.
# No loads and stores of `C` are left, but now each multiply-add waits for the one before it, because all add into the same
# register. The processor could start several every cycle; the chain allows one every few cycles, its latency. A step can be
# right and not pay by itself: this one prepares the next.

# %%
lanes = machine.lanes()
sch = matmul()
block = sch.get_sblock("C")
i, j, k = sch.get_loops(block)
j_out, j_in = sch.split(j, [None, lanes])
sch.reorder(i, j_out, k, j_in)
sch.vectorize(j_in)
sch.vectorize(sch.get_loops(sch.decompose_reduction(block, k))[-1])
step("vectorize", sch.mod["main"])

# %% [markdown]
# ## Step 3: a register tile with `unroll`
#
# Give the processor independent chains: `rows` rows times two vectors of `C` at once, all in registers. Each loaded vector of
# `B` now serves `rows` multiply-adds, each element of `A` two. How many rows? As many as registers allow:
# `rows * 2` accumulators, 2 vectors of `B`, 1 element of `A`.

# %%
rows = max(r for r in range(1, 32) if r * 2 + 2 + 1 <= machine.vector_registers and M % r == 0)
print(f"{rows} rows: {rows * 2} + 2 + 1 = {rows * 2 + 3} of {machine.vector_registers} registers")

sch = matmul()
block = sch.get_sblock("C")
i, j, k = sch.get_loops(block)
i_out, i_in = sch.split(i, [None, rows])
j_out, j_mid, j_in = sch.split(j, [None, 2, lanes])
sch.reorder(j_out, i_out, k, i_in, j_mid, j_in)
for loop in (i_in, j_mid):
    sch.unroll(loop)
sch.vectorize(j_in)
*_, z_rows, z_mid, z_in = sch.get_loops(sch.decompose_reduction(block, k))
for loop in (z_rows, z_mid):
    sch.unroll(loop)
sch.vectorize(z_in)
step("register tile", sch.mod["main"])

# %% [markdown]
# ## Step 4: packed weights
#
# `B` is still read with a stride: the next `k` is a whole row further on, which the caches and the address translation dislike. A network's weights are known when
# it is compiled, so they can be stored as the kernel wants them: in panels, one for each `j_out`, read strictly forwards. This
# is the only step that changes the data's layout. tvmopt does it at compile time (`pack_panels`). Whether it is faster here,
# the two figures tell: the processor fetches ahead along a stride as well. It is certain to help where columns are no multiple
# of a vector: the last panel is filled with zeros, and no kernel needs a special case.

# %%
from tvmopt.schedules.cpu._panels import pack_panels
from tvmopt.schedules.cpu.gemm.compute import gemm_te

width = 2 * lanes
panels = pack_panels(b, width)
print(f"B[{K}, {N}] is stored as {list(panels.shape)}: panel, k, column in the panel\n")


def packed_matmul():
    x, w = te.placeholder((M, K), name="A"), te.placeholder(panels.shape, name="B")
    return Schedule(te.create_prim_func([x, w, gemm_te(x, w, (M,), K, N, width)]))


def tiled(sch, rows):
    """The tile of step 3 over packed weights; the sum in a buffer of its own, so that an activation can follow it."""
    gemm, out = sch.get_sblock("gemm"), sch.get_sblock("unpack")
    i, j = sch.get_loops(out)
    i_out, i_in = sch.split(i, [None, rows])
    panel, j_in = sch.split(j, [None, width])
    sch.reorder(panel, i_out, i_in, j_in)
    sch.compute_at(gemm, i_out, preserve_unit_loops=True)
    tile_rows, one, columns, k = sch.get_loops(gemm)[2:]
    sch.reorder(k, one, tile_rows, columns)
    sch.unroll(tile_rows)
    for loop in (columns, j_in):
        outer, inner = sch.split(loop, [None, lanes])
        sch.unroll(outer)
        sch.vectorize(inner)
    sch.unroll(i_in)
    sch.decompose_reduction(gemm, k)
    return sch


step("packed weights", tiled(packed_matmul(), rows).mod["main"], panels)

# %% [markdown]
# ## Step 5: what ships
#
# `schedules/cpu/gemm/` is this kernel with its numbers computed. The family *recognises* the kernel, *chooses* the tile
# from the machine's registers, latency and load ports, and *applies* it. A number of rows that does not divide `M` is fine: the
# rest becomes a loop of its own. Here for one core, as the steps before.

# %%
from dataclasses import replace

from tvmopt.schedules.cpu import gemm
from tvmopt.scheduling.normalize import normalize


def shipped(machine, threads):
    func = normalize(packed_matmul().mod["main"], machine)
    shape = replace(gemm.recognise(func, machine), threads=threads)
    space = gemm.knobs(shape, machine)
    sch = Schedule(func)
    gemm.apply(sch, shape, space.analytic)
    return sch, shape, space


sch, shape, space = shipped(machine.with_cores(1), threads=False)
print(f"recognised: {shape}")
print(f"choices:    {space.choices}")
print(f"analytic:   {space.analytic}\n")
step("shipped family", sch.mod["main"], panels, asm=0)

# %% [markdown]
# ## Step 6: `parallel`
#
# Panels do not depend on each other: one loop becomes tasks for the thread pool. The family does so where the work pays for it.

# %%
together = f"{machine.cores} threads"
step(together, shipped(machine, threads=True)[0].mod["main"], panels, asm=0)
peak_all = measure_peaks(machine.cores).flops["fp32"] / 1e9
print(f"{together}: {history[together] / peak_all:.0%} of their measured peak, {peak_all:.0f} GFLOP/s")

# %% [markdown]
# ## All steps
#
# A machine is not equally fast every second. For the plot all steps run again, in turn, and each keeps its best time.

# %%
for _ in range(4):
    for name, call in calls.items():
        again = seconds(call, least=0.05, rounds=1 if name == "plain loops" else 3)
        history[name] = max(history[name], 2 * M * N * K / again / 1e9)
    blas = max(blas, 2 * M * N * K / seconds(lambda: a @ b, least=0.05) / 1e9)

figure, axis = plt.subplots(figsize=(8, 3.6), dpi=110)
names = list(history)
bars = axis.barh(names[::-1], [history[n] for n in names[::-1]], color="#4477aa")
axis.bar_label(bars, fmt="%.1f", padding=4)
axis.axvline(roof, color="#bb5566", linestyle="--", label="peak, one thread")
axis.axvline(peak_all, color="#bb5566", label=f"peak, {machine.cores} threads")
axis.axvline(blas, color="#999933", linestyle=":", label="NumPy's BLAS, one thread")
axis.set_xlabel("GFLOP/s")
axis.set_xlim(0, 1.15 * peak_all)
axis.set_title(f"C = A @ B, {M} x {K} x {N}, fp32")
axis.legend(loc="upper right", framealpha=1)
figure.tight_layout()

# %%
first, last = history["plain loops"], history["shipped family"]
print(f"From {first:.1f} to {last:.0f} GFLOP/s in one thread: {last / first:.0f} times as fast, with the same additions and products.")
print(f"The shipped family reaches {last / roof:.0%} of the peak of one thread, and {last / blas:.2f} times the speed of NumPy's BLAS.")
assert history["plain loops"] < history["vectorize"] < history["register tile"]
assert last > 0.5 * history["register tile"]  # what ships is computed, not tried, and no worse

# %% [markdown]
# ## Where next
#
# - [Why families](../docs/explanation/why-families.md), and [how to add one](../docs/how-to/add-family.md).
# - [What tuning buys](4-what-tuning-buys.ipynb): when the analytic numbers are not the best ones.
