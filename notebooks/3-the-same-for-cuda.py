# %% [markdown]
# # The same for CUDA
#
# [What a schedule is](2-what-a-schedule-is.ipynb), for a GPU. The same matrix product, the same primitives, and some new ones:
# loops are *bound* to blocks and threads, and copies into shared memory are written into the schedule.
#
# No GPU is needed to read this: the code, the registers, the shared memory and the occupancy come from the compiler. NVIDIA's
# `nvcc` is needed; where it is missing, the notebook says so and shows the code alone. Times need a GPU.

# %%
import shutil

import matplotlib.pyplot as plt
import tvm
from looking import nest
from tvm import te
from tvm.s_tir import Schedule

from tvmopt.toolchain.ptxas import compile_source, occupancy
from tvmopt.targets import Machine

machine = Machine.load("nvidia-h100")
nvcc = shutil.which("nvcc")
print(f"{machine.name}: {machine.cores} multiprocessors, {machine.bandwidth / 1e9:.0f} GB/s of memory, "
      f"architecture {machine.mcpu}")
print("nvcc: found" if nvcc else "nvcc: not found. Registers and occupancy are left out below.")

# %% [markdown]
# ## The tool
#
# `step` generates CUDA C++, shows the loop nest with its bindings and the heart of the code, and asks `ptxas` what a thread
# takes. *Occupancy* is the share of a multiprocessor's threads that can be resident at once: what hides the latency of memory.
#
# Beside it stands the *traffic*: operations for each byte that a block loads from global memory. A tile of `bm x bn` of the
# result loads `bm + bn` numbers for `2 * bm * bn` operations.

# %%
M = N = K = 1024
target = machine.tvm_target()
history = {}


def heart(source, keep=18):
    """The innermost loop of the first kernel, and what follows it."""
    lines = [line for line in source[source.index("__launch_bounds__"):].splitlines() if line.strip()]
    deepest = max((len(line) - len(line.lstrip()), -i) for i, line in enumerate(lines) if "for (" in line) if any(
        "for (" in line for line in lines) else (0, 0)
    start = max(0, -deepest[1] - 1)
    return "\n".join(line[:150] for line in lines[start : start + keep])


def step(name, func, bm, bn, threads, keep=12):
    with target:
        library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target)
    source = next(m for m in library.mod.imports if m.kind == "cuda").inspect_source()
    print(nest(func))
    print("\n" + heart(source, keep) + "\n")
    traffic = 2 * bm * bn / (4 * (bm + bn))
    history[name] = {"traffic": traffic, "occupancy": None}
    if nvcc:
        _, usage = compile_source(source, machine.mcpu)
        (used,) = usage.values()
        share, limit = occupancy(threads, used.registers, used.shared, machine)
        history[name]["occupancy"] = share
        print(f"{threads} threads a block, {used.registers} registers a thread, {used.shared} B shared, "
              f"{used.spill_stores} B spilled; occupancy {share:.0%}, limited by {limit}")
    print(f"{traffic:.1f} operations for each byte from global memory")


def matmul():
    x, y = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    k = te.reduce_axis((0, K), name="k")
    z = te.compute((M, N), lambda i, j: te.sum(x[i, k] * y[k, j], axis=[k]), name="C")
    return Schedule(te.create_prim_func([x, y, z]))


# %% [markdown]
# ## Step 1: `bind`
#
# One thread for each element of `C`. Neighbouring threads read neighbouring elements of `B`, which the hardware joins into one
# access. But nothing is shared: every thread loads its own row and column.

# %%
sch = matmul()
block = sch.get_sblock("C")
i, j, k = sch.get_loops(block)
bx, tx = sch.split(sch.fuse(i, j), [None, 256])
sch.bind(bx, "blockIdx.x")
sch.bind(tx, "threadIdx.x")
sch.decompose_reduction(block, k)
step("a thread an element", sch.mod["main"], 1, 1, 256)

# %% [markdown]
# ## Step 2: `cache_read` into shared memory
#
# A block of 256 threads computes a tile of 16 by 16. It copies a strip of `A` and of `B` into shared memory, waits, and all
# its threads use the copy.


# %%
def tile(bm, bn, bk, tm, tn):
    """A bm x bn tile a block, tm x tn of it a thread, bk of the reduction at a time through shared memory."""
    sch = matmul()
    block = sch.get_sblock("C")
    if tm * tn > 1:
        local = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    by, ty, yi = sch.split(i, [None, bm // tm, tm])
    bx, tx, xi = sch.split(j, [None, bn // tn, tn])
    k_out, k_in = sch.split(k, [None, bk])
    sch.reorder(by, bx, ty, tx, k_out, k_in, yi, xi)
    sch.bind(by, "blockIdx.y")
    sch.bind(bx, "blockIdx.x")
    thread = sch.fuse(ty, tx)
    sch.bind(thread, "threadIdx.x")
    threads = (bm // tm) * (bn // tn)
    if tm * tn > 1:
        sch.reverse_compute_at(local, thread)
        sch.unroll(yi)
        sch.unroll(xi)
    for index in (0, 1):
        copy = sch.cache_read(block, index, "shared")
        sch.compute_at(copy, k_out)
        _, mine = sch.split(sch.fuse(*sch.get_loops(copy)[-2:]), [None, threads])
        sch.bind(mine, "threadIdx.x")
    sch.decompose_reduction(block, k_out)
    return sch.mod["main"], bm, bn, threads


step("shared memory", *tile(16, 16, 16, 1, 1))

# %% [markdown]
# ## Step 3: a register tile
#
# Now each thread computes 8 by 8 elements and keeps them in registers, so that one value from shared memory serves eight
# multiply-adds. The block's tile grows to 128 by 128, and with it the operations for each byte. The occupancy falls: a thread
# takes more registers. That is a good trade here, because the independent sums of one thread hide latency as well.

# %%
step("register tile", *tile(128, 128, 8, 8, 8), keep=8)

# %% [markdown]
# ## What the traffic allows
#
# An upper bound, computed from the machine's description and not measured: a kernel whose blocks load this much cannot be
# faster than bandwidth times operations for each byte - unless the caches help, which they do.

# %%
peak = machine.peak_flops / 1e12
names = list(history)
bound = [min(peak, history[n]["traffic"] * machine.bandwidth / 1e12) for n in names]
figure, axis = plt.subplots(figsize=(7, 2.4), dpi=110)
bars = axis.barh(names[::-1], bound[::-1], color="#4477aa")
axis.bar_label(bars, fmt="%.1f", padding=3)
axis.axvline(peak, color="#bb5566", linestyle="--", label=f"fp32 peak of the description, {peak:.0f}")
axis.set_xlim(0, 1.2 * max(peak, *bound))
axis.set_xlabel("bound by global memory traffic, TFLOP/s")
axis.legend(loc="lower right")
figure.tight_layout()

# %% [markdown]
# ## Step 4: what ships
#
# tvmopt's CUDA families use the tensor cores: units that multiply small matrices in one instruction, in 16 bits or as three
# `tf32` products for `fp32`. A whole compile, with the resources that `ptxas` reports for each kernel, limits checked:

# %%
import os
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvmopt

os.chdir(tempfile.mkdtemp())
weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((K, N), dtype="float32"), "w")
borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [M, N])] for n in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], "g", *borders, [weight])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "gemm.onnx")

for precision in ("fp32", "fp16") if nvcc else ():
    try:
        compiled = tvmopt.compile("gemm.onnx", target="nvidia-h100", precision=precision, output=f"{precision}.tvmopt")
    except tvmopt.errors.TvmoptError as error:
        print(f"{precision}: {error}")
        continue
    print(precision)
    for kernel in compiled.report.kernels:
        for launch in kernel.launches:
            print(f"  {kernel.family:14} {kernel.name[:28]:28} grid {launch['grid']}, {launch['threads']} threads, "
                  f"{launch['registers']} registers, {launch['shared'] / 1024:.1f} KiB shared, {launch['spilled']} B spilled, "
                  f"occupancy {launch['occupancy']:.0%} ({launch['limit']})")
        print(f"  {'':14} knobs {kernel.knobs}")
if not nvcc:
    print("nvcc is not installed: nothing can be compiled for a GPU here")

# %% [markdown]
# ## Times
#
# With a GPU, and only then.

# %%
from pathlib import Path

from tvmopt.runtime.library import cuda_available

if cuda_available():
    x = np.random.default_rng(1).standard_normal((M, K), dtype="float32")
    for file in sorted(Path().glob("*.tvmopt")):
        timing = tvmopt.load(file).time({"x": x})
        print(f"{file.stem}: {timing.median_ms:.3f} ms, {2e-9 * M * N * K / timing.median_ms:.1f} TFLOP/s")
else:
    print("There is no GPU here: nothing was timed, and no speed is claimed.")

# %% [markdown]
# ## Where next
#
# [The families](../docs/reference/families.md) with their arithmetic, CUDA's among them; [targets](../docs/reference/targets.md)
# says what compiling for CUDA needs.
