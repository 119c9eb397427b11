# %% [markdown]
# # Precision
#
# Sixteen bits in place of thirty-two: half the bytes to move, and on some machines more arithmetic. The price is accuracy. How
# much of each? This notebook compiles one transformer in `fp32`, `bf16` and `fp16`, and measures error against speed.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from making import encoder

import tvmopt
from tvmopt.analysis.peaks import measure_peaks
from tvmopt.targets import Machine

os.chdir(tempfile.mkdtemp())
onnx.save(encoder(layers=1, width=768, heads=12, length=128), "model.onnx")

# %% [markdown]
# ## The formats
#
# `bfloat16` has the range of `float32` and few digits; `float16` has more digits and a small range.

# %%
for dtype in (np.float32, ml_dtypes.bfloat16, np.float16):
    facts = ml_dtypes.finfo(dtype)
    print(f"{np.dtype(dtype).name:9} {facts.bits} bits, {facts.nmant} of them digits: eps {float(facts.eps):.1e}, "
          f"largest {float(facts.max):.1e}, smallest normal {float(facts.smallest_normal):.1e}")

# %% [markdown]
# ## What this machine has
#
# A dot-product or tile instruction for 16 bits (`avx512bf16`, `amx-bf16`, `avx512fp16`) does more operations a cycle. Without
# one, 16-bit numbers are widened before each multiplication: fewer bytes, the same arithmetic or more of it.

# %%
machine = Machine.load("cpu")
special = [f for f in machine.features if any(word in f for word in ("bf16", "fp16", "f16c", "amx"))]
peaks = measure_peaks(machine.cores)
print(f"{machine.name}: {', '.join(special) or 'nothing for 16 bits'}")
for kind, value in peaks.flops.items():
    print(f"  measured peak {kind:9} {value / 1e9:6.0f} GOP/s, {value / peaks.flops['fp32']:.1f} times fp32's")

# %% [markdown]
# ## Compile in each
#
# `--precision` converts products, convolutions and attention; sums stay in `float32`, and so do normalisation and softmax. The
# check against onnxruntime uses a tolerance that follows from the precision asked for.

# %%
compiled, refused = {}, {}
for precision in ("fp32", "bf16", "fp16"):
    try:
        compiled[precision] = tvmopt.compile("model.onnx", precision=precision, output=f"{precision}.tvmopt", records=False)
    except tvmopt.errors.TvmoptError as error:
        refused[precision] = error
        print(f"{precision}: {error}")
        continue
    report = compiled[precision].report
    print(f"{precision}: weights {report.weight_bytes / 1e6:.2f} MB, activations {report.activation_bytes / 1e6:.2f} MB, "
          f"agrees with onnxruntime: {report.accuracy['verified']}")

# %% [markdown]
# ## Error
#
# The reference is onnxruntime in `float32`, on the same inputs. Shown is the error relative to the largest value of the output.

# %%
rng = np.random.default_rng(0)
inputs = [rng.standard_normal((1, 128, 768), dtype="float32") for _ in range(4)]
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
references = [session.run(None, {"x": x})[0] for x in inputs]

errors = {}
for precision, found in compiled.items():
    outputs = [np.asarray(found.model(x), "float32") for x in inputs]
    relative = np.concatenate([np.abs(o - r).ravel() / np.abs(r).max() for o, r in zip(outputs, references, strict=True)])
    errors[precision] = relative
    print(f"{precision}: median {np.median(relative):.1e}, p99 {np.percentile(relative, 99):.1e}, largest {relative.max():.1e}")

figure, axis = plt.subplots(figsize=(7, 3), dpi=110)
bins = np.logspace(-9, -1, 70)
for (precision, relative), colour in zip(errors.items(), ("#4477aa", "#ee6677", "#228833"), strict=False):
    axis.hist(np.maximum(relative, 1e-9), bins=bins, histtype="step", linewidth=1.6, label=precision, color=colour)
axis.set_xscale("log")
axis.set_xlabel("error, relative to the largest output"), axis.set_ylabel("elements")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## Speed
#
# In turn, round after round, so that a slow second hits all of them; one thread, and the quickest call of each round, so that a
# busy machine disturbs little.

# %%
loaded = {precision: tvmopt.load(f"{precision}.tvmopt", threads=1) for precision in compiled}
times = {precision: [] for precision in loaded}
for _ in range(9):
    for precision, model in loaded.items():
        times[precision].append(model.time({"x": inputs[0]}, iterations=10, warmup=2).min_ms)
for precision, samples in times.items():
    ratio = np.array(times["fp32"]) / np.array(samples)
    print(f"{precision}: {np.median(samples):.3f} ms, {np.median(ratio):.2f} times as fast as fp32 "
          f"(rounds from {ratio.min():.2f} to {ratio.max():.2f})")

# %% [markdown]
# ## Error against speed

# %%
figure, axis = plt.subplots(figsize=(6, 3.4), dpi=110)
for precision in compiled:
    point = (np.median(times[precision]), np.percentile(errors[precision], 99))
    axis.scatter(*point, s=70, color="#4477aa")
    axis.annotate(precision, point, xytext=(8, 4), textcoords="offset points")
axis.set_yscale("log")
axis.set_xlim(0, 1.25 * max(np.median(t) for t in times.values()))
axis.set_xlabel("ms an inference"), axis.set_ylabel("error, p99")
axis.margins(y=0.3)
figure.tight_layout()

# %%
best = min(times, key=lambda p: np.median(times[p]))
print(f"The fastest here is {best}. " + (
    "Sixteen bits did not pay in this run, on this machine, for this model."
    if best == "fp32" else f"It costs {np.percentile(errors[best], 99):.0e} of the largest output (p99)."))

# %% [markdown]
# Whether an error matters is a question to your data: a classifier may not notice one that spoils a detector's boxes.
# `tvmopt compare` and [the limits](../docs/limits.md) say what is checked.
