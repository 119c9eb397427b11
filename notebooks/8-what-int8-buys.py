# %% [markdown]
# # What int8 buys
#
# Eight bits in place of thirty-two: a quarter of the bytes, and four multiplications where there was one. The price is that a number
# is one of 256. This notebook quantises a network that reads drawn digits, looks at the inner loop that multiplies bytes, at the
# numbers that are rounded, at what is still computed in floats, and measures what it costs and what it buys.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from looking import command, inner_loop, seconds
from making import digits, reader
from onnx import numpy_helper
from tvm import relax

import tvmopt
from tvmopt import pipeline
from tvmopt.analysis.peaks import measure_peaks
from tvmopt.targets import Machine

os.chdir(tempfile.mkdtemp())
machine = Machine.load("cpu").with_cores(1).without_tiles()
pictures, labels = digits(2000, seed=0)
onnx.save(reader(pictures, labels), "reader.onnx")
unseen, truth = digits(500, seed=1)

figure, axes = plt.subplots(1, 10, figsize=(9, 1.2), dpi=110)
for axis, picture, label in zip(axes, unseen, truth, strict=False):
    axis.imshow(picture[0], cmap="gray")
    axis.set_title(str(label)), axis.axis("off")
figure.tight_layout()

# %% [markdown]
# ## The inner loop
#
# A processor with VNNI has one instruction, `vpdpbusd`, that multiplies four unsigned bytes by four signed ones in each lane, adds the
# four products up, and adds the sum to an int32. Without it the bytes are widened to 16 bits, and `vpmaddwd` multiplies two at a
# time. Either way the sum is exact: nothing is rounded until the result is.
#
# So the loop over K takes four numbers a step. The tile in registers, and the packing of weights in panels, are those of fp32:
# the family `gemm` has one schedule for both.

# %%
M, N, K = 128, 512, 512
rng = np.random.default_rng(0)
operands = {
    "fp32": (rng.standard_normal((M, K), dtype="float32"), rng.standard_normal((K, N), dtype="float32"), "float32"),
    "int8": (rng.integers(0, 256, (M, K)).astype("uint8"), rng.integers(-128, 128, (K, N)).astype("int8"), "int32"),
}
for name, (rows, weight, out) in operands.items():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(rows.shape, str(rows.dtype)))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(weight), out_dtype=out))
        builder.emit_func_output(y)
    lowered = pipeline.lower(builder.get(), machine)
    (kernel,) = (k for k in lowered.kernels if k.family == "gemm")
    built = pipeline.build(lowered, machine)
    assembly = "".join(m.inspect_source("asm") for m in built.mod.imports if m.kind == "llvm")
    print(f"{name}: knobs {kernel.knobs}\n{inner_loop(assembly, 10)}\n")

# %% [markdown]
# ## The roofs
#
# What the processor can do at most, measured: independent multiply-adds in registers, one thread.

# %%
peaks = measure_peaks(1)
for kind in ("fp32", "int8"):
    print(f"{kind}: {peaks.flops[kind] / 1e9:.0f} GOP/s, {peaks.flops[kind] / peaks.flops['fp32']:.1f} times fp32's")

# %% [markdown]
# ## Quantise
#
# A number becomes `round(x / scale) + zero`, and the scale has to be known before: *calibration* runs the float model on inputs like
# those to come and keeps the ranges it sees. `tvmopt quantize` does so by NNCF, or by onnxruntime where NNCF is not installed, and writes
# a file with QuantizeLinear and DequantizeLinear pairs, which other engines read, too. Its table says what each layer loses by
# itself, as a signal-to-noise ratio: 20 dB more is a tenth of the error.

# %%
np.savez("seen.npz", picture=pictures[:64])
print(command("tvmopt quantize reader.onnx --data seen.npz --method onnxruntime -o reader.int8.onnx"))

# %% [markdown]
# What that means for the numbers of one layer: of a histogram with thousands of places, 256 steps are left. A range
# that a few large numbers stretch leaves few of them for all others. The preset `performance` makes ranges symmetric about zero; behind
# a Relu half of the steps are never used then, and `--preset mixed` gives such tensors a zero point of their own.

# %%
quantised = onnx.load("reader.int8.onnx")
constants = {t.name: numpy_helper.to_array(t) for t in quantised.graph.initializer}
(pair,) = (n for n in quantised.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "r1")
scale, zero = float(constants[pair.input[1]]), int(constants[pair.input[2]])

floats = onnx.load("reader.onnx")
floats.graph.output.append(onnx.helper.make_tensor_value_info("r1", onnx.TensorProto.FLOAT, None))
session = onnxruntime.InferenceSession(floats.SerializeToString(), providers=["CPUExecutionProvider"])
values = np.concatenate([session.run(["r1"], {"picture": p[None]})[0].ravel() for p in unseen[:20]])
low, high = np.iinfo(constants[pair.input[2]].dtype).min, np.iinfo(constants[pair.input[2]].dtype).max
stepped = (np.clip(np.rint(values / scale) + zero, low, high) - zero) * scale
print(f"scale {scale:.4f}, zero point {zero}: from {(low - zero) * scale:.2f} to {(high - zero) * scale:.2f}")
print(f"{np.mean(values > (high - zero) * scale):.3%} of the numbers are cut off; "
      f"signal to noise {10 * np.log10(np.sum(values**2) / np.sum((values - stepped) ** 2)):.0f} dB")

figure, axis = plt.subplots(figsize=(7, 3), dpi=110)
axis.hist(values, bins=400, color="#bbbbbb", label="float32")
axis.hist(stepped, bins=np.arange(low, high + 2) * scale - (zero + 0.5) * scale, histtype="step", color="#4477aa", label="256 steps")
axis.set_yscale("log"), axis.set_xlabel("output of the second convolution, behind its Relu"), axis.set_ylabel("numbers")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## Compile
#
# Nothing has to be asked for: what is in bytes in the file is multiplied in bytes, where that is faster on the machine (`--int8
# auto`). The pairs melt away. `explain` says of each product what became of it, and of each pair that is left why.

# %%
compiled = {name: tvmopt.compile(f"{name}.onnx", output=f"{name}.tvmopt", threads=1, records=False)
            for name in ("reader", "reader.int8")}
for name, one in compiled.items():
    print(f"{name:12} weights {one.report.weight_bytes / 1e6:.2f} MB, activations {one.report.activation_bytes / 1e6:.2f} MB, "
          f"right: {one.report.accuracy['verified']}")
print(command("tvmopt explain reader.int8.tvmopt"))

# %% [markdown]
# ## Accuracy
#
# Two questions. *Does the compiled model compute what the file says?* Every kernel that ends in a quantisation is compared
# with integers, step by step; that is the check which every compile makes. *Is what the file says good enough?* Only the task can
# tell: here digits that neither the last layer nor the calibration has seen.

# %%
models = {name: one.model for name, one in compiled.items()}
scores = {name: np.concatenate([np.asarray(m(p[None])) for p in unseen]) for name, m in models.items()}
for name, found in scores.items():
    print(f"{name:12} reads {np.mean(found.argmax(1) == truth):.1%} of {len(truth)} digits")
same = np.mean(scores["reader"].argmax(1) == scores["reader.int8"].argmax(1))
print(f"both read the same in {same:.1%}")
assert same > 0.95

# %% [markdown]
# ### Calibrate on what will come
#
# The ranges are those of the data that calibration saw. Dim pictures have small activations; ordinary ones are cut off then.

# %%
np.savez("dim.npz", picture=pictures[:64] * 0.1)
command("tvmopt quantize reader.onnx --data dim.npz --method onnxruntime -o dim.int8.onnx")
dim = tvmopt.compile("dim.int8.onnx", threads=1, records=False).model
wrong = np.concatenate([np.asarray(dim(p[None])) for p in unseen]).argmax(1)
print(f"calibrated on dim pictures: {np.mean(wrong == truth):.1%}")
assert np.mean(wrong == truth) < np.mean(scores["reader.int8"].argmax(1) == truth)

# %% [markdown]
# ## Speed
#
# In turn, round after round, one thread; beside each its floor: operations over the measured peak.

# %%
loaded = {name: tvmopt.load(f"{name}.tvmopt", threads=1) for name in compiled}
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
peers = {name: onnxruntime.InferenceSession(f"{name}.onnx", options, providers=["CPUExecutionProvider"]) for name in compiled}
feed = {"picture": unseen[:1]}
calls = {("tvmopt", name): (lambda m=m: m.run(feed)) for name, m in loaded.items()}
calls |= {("onnxruntime", name): (lambda s=s: s.run(None, feed)) for name, s in peers.items()}

rounds = [{key: seconds(call, least=0.02) for key, call in calls.items()} for _ in range(15)]
milliseconds = {key: 1e3 * float(np.median([r[key] for r in rounds])) for key in calls}
operations = 2 * 9 * (48 * 48 * 64 + 24 * 24 * 64 * 128 + 12 * 12 * 128 * 256)
for (engine, name), time in milliseconds.items():
    floor = 1e3 * operations / peaks.flops["int8" if "int8" in name else "fp32"]
    print(f"{engine:12} {name:12} {time:.3f} ms, floor {floor:.3f} ms ({floor / time:.0%})")
ratio = np.median([r["tvmopt", "reader.int8"] / r["tvmopt", "reader"] for r in rounds])
print(f"tvmopt: int8 takes {ratio:.2f} of fp32's time")

figure, axis = plt.subplots(figsize=(6, 2.4), dpi=110)
for place, (key, time) in enumerate(reversed(milliseconds.items())):
    axis.barh(place, time, color="#4477aa" if "int8" in key[1] else "#bbbbbb")
    axis.annotate(f"{key[0]}, {'int8' if 'int8' in key[1] else 'fp32'}", (0, place), xytext=(4, -4), textcoords="offset points")
axis.set_yticks([]), axis.set_xlabel("ms a picture")
figure.tight_layout()

# %% [markdown]
# ## When it pays
#
# Products and convolutions that are bound by arithmetic gain most; a layer that only moves or adds numbers gains by its bytes; one between two
# floats pays for its quantisation. Models that make one token at a time wait for their weights: there `--weights int4` rounds these
# alone. [How to quantise](../docs/how-to/quantize.md) and [what becomes of a quantised model](../docs/explanation/int8.md) say more.
