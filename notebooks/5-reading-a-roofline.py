# %% [markdown]
# # Reading a roofline
#
# Where does the time of a model go, and what can be done about it? `tvmopt profile` times every kernel inside real runs and
# places it under the machine's roofs. Here: a convolutional network and a transformer, their kernels classified, one piece of
# advice followed, the gain measured. All of it with one thread: what else the machine does then disturbs least.

# %%
import os
import shutil
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import onnx
from making import encoder

import tvmopt

sys.path.append("../benchmarks")
import models

written = models.write("squeezenet")
os.chdir(tempfile.mkdtemp())
shutil.copy(written, "cnn.onnx")
onnx.save(encoder(layers=2, width=256, heads=4, length=128), "transformer.onnx")

for name in ("cnn", "transformer"):
    tvmopt.compile(f"{name}.onnx", output=f"{name}.tvmopt", records=False, threads=1)

# %% [markdown]
# ## Profile

# %% language="bash"
# tvmopt profile cnn.tvmopt --top 8

# %% [markdown]
# How to read a row: its share of the time, the speed it reached, what bounds it, and how much of its roof it uses. A kernel
# that does few operations on many bytes can be perfect at a small part of the peak: its roof is the bandwidth.
#
# The same as Python objects, for both models:

# %%
profiles = {name: tvmopt.profile(f"{name}.tvmopt", seconds=2.0) for name in ("cnn", "transformer")}
for name, found in profiles.items():
    print(f"{name}: {1e3 * found.latency_s:.2f} ms, {found.flops / found.latency_s / 1e9:.0f} GFLOP/s; "
          f"the kernels' times add up to {found.accounted_s / found.latency_s:.0%} of it")

# %% [markdown]
# ## The plot
#
# Across: *arithmetic intensity*, operations for each byte that must move. Up: the speed reached. The slanted lines are the
# bandwidths of the caches and of memory, the flat one is the arithmetic peak; all were measured on this machine. A kernel cannot
# be above them. The area of a dot is its share of the time.

# %%
peaks = profiles["cnn"].peaks
peak = peaks.compute() / 1e9
figure, axis = plt.subplots(figsize=(8, 4.6), dpi=110)
intensity = np.logspace(-1.2, 3, 200)
for level, style in (("l2", ":"), ("l3", "-."), ("dram", "-")):
    axis.plot(intensity, np.minimum(peak, intensity * peaks.bandwidth[level] / 1e9), style, color="grey",
              label=f"roof with {level.upper()}: {peaks.bandwidth[level] / 1e9:.0f} GB/s")
for (name, found), colour in zip(profiles.items(), ("#4477aa", "#ee6677"), strict=True):
    kernels = [k for k in found.kernels if k.flops]
    axis.scatter([k.position.intensity for k in kernels], [k.gflops for k in kernels],
                 s=[20 + 900 * k.share for k in kernels], color=colour, alpha=0.55, label=name)
axis.set_xscale("log"), axis.set_yscale("log")
axis.set_ylim(0.5, 2 * peak)
axis.set_xlabel("arithmetic intensity, FLOP/byte"), axis.set_ylabel("GFLOP/s")
axis.set_title(f"{peaks.threads} threads, peak {peak:.0f} GFLOP/s fp32")
axis.legend(loc="lower right", fontsize=8, markerscale=0.5)
figure.tight_layout()

# %% [markdown]
# ## Classify
#
# A kernel above 60 % of the arithmetic peak is bound by *compute*; above 60 % of the bandwidth its data can have, by *memory*;
# the rest by *latency*: waiting, starting threads, too little parallel work, or a poor schedule.

# %%
for name, found in profiles.items():
    share = {bound: sum(k.share for k in found.kernels if k.position.bound == bound)
             for bound in ("compute", "memory", "latency")}
    print(f"{name:12}", ", ".join(f"{bound} {part:.0%}" for bound, part in share.items()), "of the time")

# %% [markdown]
# ## The advice
#
# Each row of the profile has a piece of advice, with the gain that the *whole model* would see (Amdahl's law): a kernel that
# takes a tenth of the time can make the model a tenth faster at most.

# %%
for name, found in profiles.items():
    print(name)
    for kernel in sorted(found.kernels, key=lambda k: -k.advice.gain)[:3]:
        print(f"  {kernel.name[:34]:34} {kernel.share:4.0%} of the time, {kernel.position.roof_share:4.0%} of its roof: "
              f"{kernel.advice.text} (model x {kernel.advice.gain:.2f})")

# %% [markdown]
# ## Act on it
#
# Where the advice is to tune, that is one command: `tvmopt tune MODEL --only KERNEL`. Here with a budget of a few seconds; a
# night finds more. The kernel with the largest promised gain:

# %%
candidates = [(k.advice.gain, name, k) for name, found in profiles.items() for k in found.kernels
              if "tune it" in k.advice.text]
if candidates:
    _, name, kernel = max(candidates, key=lambda c: c[0])
else:  # nothing is far from its roof: take the kernel that takes most of the time
    name, kernel = "cnn", profiles["cnn"].kernels[0]
print(f"{kernel.name} of the {name}: {kernel.share:.0%} of the time, at {kernel.position.roof_share:.0%} of its roof, "
      f"knobs {kernel.knobs}")

# %%
from tvmopt.tuning.driver import tune

result = tune(f"{name}.onnx", only=kernel.name, trials=20, budget="15s", store="records.db", generic=False, compare=False,
              threads=1)
for task in result.tasks:
    found = f"{1 / task.ratio:.2f} times as fast with {task.knobs}" if task.ratio < 1 else "nothing faster beyond noise"
    print(f"{task.name}: {task.trials} candidates measured, {found}")

# %% [markdown]
# ## Measure the gain
#
# Not from the tuner's own word: compile again with the record, and run both files in turn.

# %%
tvmopt.compile(f"{name}.onnx", output="tuned.tvmopt", store="records.db", threads=1)
before, after = tvmopt.load(f"{name}.tvmopt"), tvmopt.load("tuned.tvmopt")
x = before.inputs[0]
feeds = {x.name: np.random.default_rng(0).standard_normal(x.shape, dtype="float32")}
rounds = [(before.time(feeds, iterations=20).min_ms, after.time(feeds, iterations=20).min_ms) for _ in range(9)]
ratio = np.array([b / a for b, a in rounds])
low, high = np.percentile(ratio, [10, 90])
print(f"{name}: {np.median([b for b, _ in rounds]):.3f} ms before, {np.median([a for _, a in rounds]):.3f} ms after; "
      f"{np.median(ratio):.3f} times as fast (most rounds between {low:.2f} and {high:.2f})")
promised = kernel.advice.gain
print(f"The advice promised at most {promised:.2f}." if candidates else "No gain was promised.")

# %% [markdown]
# A promise is an upper bound: what a kernel at 85 % of its roof would give. If the interval above contains 1, this machine could
# not tell a difference, and that is the result. Other advice that is not about schedules: *fuse* (look at
# `tvmopt explain`: why did the neighbours not fuse?), *run a larger batch* (small kernels cost their start), *use 16 bits*
# ([Precision](6-precision.ipynb)).
#
# [How numbers are measured](../docs/explanation/how-numbers-are-measured.md) says what stands behind each figure.
