# %% [markdown]
# # My first model
#
# ResNet-50 from an ONNX file to an answer: compile it, run a picture through it, read the report.
#
# The network's graph is the real one; its weights are random with a fixed seed, because nothing is downloaded here. So it
# recognises nothing, but it computes exactly what a trained one computes. With a file of your own, change the first cell.

# %%
import os
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tvmopt

sys.path.append("../benchmarks")
import models

written = models.write("resnet50_caffe2")
os.chdir(tempfile.mkdtemp())  # everything else goes into a folder of its own
shutil.copy(written, "resnet50.onnx")
print(f"resnet50.onnx: {Path('resnet50.onnx').stat().st_size / 1e6:.0f} MB")

# %% [markdown]
# ## Compile
#
# One command makes one file. It ends with a summary, and with the check: the compiled module and onnxruntime ran on the same
# inputs, and their outputs agree within a tolerance that follows from the arithmetic.

# %% language="bash"
# tvmopt compile resnet50.onnx --no-records

# %% [markdown]
# In the table, a *family* is a schedule written for one kind of kernel, and *analytic* means that its tile sizes were computed
# from this machine's description; nothing was searched or tuned. *Winograd* is an algorithm for 3x3 convolutions that
# needs fewer multiplications.
#
# ## Run a picture
#
# The network wants a picture of 224 by 224 pixels, three colours, as `float32` in the order channel, row, column, each colour
# shifted and scaled as at training time. This picture is drawn, not loaded.

# %%
model = tvmopt.load("resnet50.tvmopt")
print(model)

y, x = np.mgrid[0:1:224j, 0:1:224j]
disc = (x - 0.5) ** 2 + (y - 0.45) ** 2 < 0.09
picture = np.stack([0.3 + 0.6 * disc, 0.45 + 0.3 * x * ~disc, 0.8 - 0.5 * y], axis=-1)

mean, spread = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
tensor = ((picture - mean) / spread).transpose(2, 0, 1)[None].astype("float32")

plt.figure(figsize=(2.4, 2.4), dpi=100)
plt.imshow(picture)
plt.axis("off");

# %% [markdown]
# Five classes with the highest scores, and what onnxruntime says of the same picture:

# %%
import onnxruntime

name = model.inputs[0].name
ours = model(tensor)
session = onnxruntime.InferenceSession("resnet50.onnx", providers=["CPUExecutionProvider"])
theirs = session.run(None, {name: tensor})[0]

for kind, scores in (("tvmopt", ours), ("onnxruntime", theirs)):
    best = np.argsort(scores[0])[::-1][:5]
    print(f"{kind:12}", "  ".join(f"class {c}: {scores[0, c]:.5f}" for c in best))
print(f"largest difference: {np.abs(ours - theirs).max():.1e}")

# %% [markdown]
# A wrong shape or type is an error that says what to do. Nothing is converted silently.

# %%
try:
    model(tensor.astype("float64"))
except tvmopt.errors.InputError as error:
    print(error)

# %% [markdown]
# ## How fast?
#
# `model.time` measures the compiled code alone, call by call. For a comparison that can be believed use `tvmopt bench
# resnet50.onnx --against onnxruntime`: it interleaves the engines, each in a process of its own, and ends with a verdict.

# %%
timing = model.time({name: tensor}, iterations=30)
print(f"{timing.median_ms:.1f} ms a picture with {model.threads} threads (median of {timing.n} calls, "
      f"p90 {timing.p90_ms:.1f} ms)")

# %% [markdown]
# ## Read the report
#
# The file keeps a report of its own making. Who computes what?

# %%
report = tvmopt.explain("resnet50.tvmopt")
families = {}
for kernel in report.kernels:
    families[kernel.family] = families.get(kernel.family, 0) + kernel.flops * kernel.calls

names = sorted(families, key=families.get)
figure, axis = plt.subplots(figsize=(7, 2.6), dpi=110)
bars = axis.barh(names, [100 * families[n] / report.flops for n in names], color="#4477aa")
axis.bar_label(bars, fmt="%.1f %%", padding=3)
axis.set_xlim(0, 75)
axis.set_xlabel("share of the arithmetic, %")
figure.tight_layout()

# %% [markdown]
# Each kernel names the ONNX nodes that it computes, so a slow kernel leads back to the model. (This file's nodes are not
# named by their author; a trained model's export mostly has names like `layer1.0.conv2`.)

# %%
heaviest = sorted(report.kernels, key=lambda k: -k.flops * k.calls)[:4]
for kernel in heaviest:
    print(f"{kernel.family:9} {kernel.calls:2} calls  {kernel.flops / 1e6:6.0f} MFLOP each  knobs {kernel.knobs}")
    print(f"          first call computes: {', '.join(kernel.nodes[0])}")

# %% [markdown]
# What did the passes do to the graph, and what did they leave alone? A refusal always has a reason.

# %%
from collections import Counter

done = Counter(d.stage for d in report.decisions if d.verdict == "applied")
print("applied: ", ", ".join(f"{stage.removeprefix('tvmopt.')} {n}" for stage, n in done.most_common(6)))
refused = Counter((d.stage.removeprefix("tvmopt."), d.reason) for d in report.decisions if d.verdict == "declined")
for (stage, reason), n in refused.most_common(4):
    print(f"declined: {stage} {n} times: {reason[:90]}")
if not refused:
    print("declined: nothing")

# %% [markdown]
# ## Where next
#
# - [What a schedule is](2-what-a-schedule-is.ipynb): what a family does.
# - [Reading a roofline](5-reading-a-roofline.ipynb): where the time goes.
# - [Deploy with Python](../docs/how-to/deploy-python.md) or [with C++](../docs/how-to/deploy-cpp.md).
