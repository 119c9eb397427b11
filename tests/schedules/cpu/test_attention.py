"""Attention against float64: edges, masks of every shape, causal, grouped heads, other depths; through the pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvmopt import pipeline
from tvmopt.operators import masked
from tvmopt.schedules.cpu._attention_plan import plan
from tvmopt.targets import Machine


def reference(q, k, v, scale, mask):
    q, k, v = (a.astype("float64").swapaxes(1, 2) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    s = q @ k.swapaxes(2, 3) * scale + mask
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def check(batch, heads, queries, keys, depth, *, kv_heads=None, depth_v=None, causal=None, mask=None,
          constant=False, scale=None, epilogue=False):  # fmt: skip
    rng = np.random.default_rng(0)
    kv_heads, depth_v = kv_heads or heads, depth_v or depth
    shapes = [
        (batch, queries, heads, depth),
        (batch, keys, kv_heads, depth),
        (batch, keys, kv_heads, depth_v),
    ]
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes]
    additive = np.zeros((1, 1, queries, keys)) if mask is None else (rng.standard_normal(mask) * 3).astype("float32")
    if mask is not None and not constant:
        arrays.append(additive)
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arrays)]
    bias = relax.const(additive) if constant else params[3] if mask is not None else None
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            factor = None if scale is None else tirx.FloatImm("float32", scale)
            out = bb.emit(relax.op.nn.attention(*params[:3], bias, scale=factor, causal_mask=causal))
            out = bb.emit(relax.op.nn.relu(out)) if epilogue else out
            out = bb.emit_output(out)
        bb.emit_func_output(relax.Tuple([out]))
    machine = Machine.load("cpu").with_cores(2)
    lowered = pipeline.lower(bb.get(), machine)
    assert "attention" in [k.family for k in lowered.kernels]
    vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
    got = vm["main"](*[tvm.runtime.tensor(a) for a in arrays])[0].numpy()
    if causal:
        shift = 0 if causal == "TopLeft" else abs(keys - queries)
        visible = np.tril(np.ones((queries, keys)), shift) > 0
        additive = np.where(visible, additive, -np.inf)
    want = reference(*arrays[:3], depth**-0.5 if scale is None else scale, additive)
    np.testing.assert_allclose(got, np.maximum(want, 0) if epilogue else want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
def test_sizes(size):
    check(1, 2, size, size, 16)
    check(2, 2, size, 40, 8, causal="BottomRight" if size <= 40 else None)
    check(1, 2, 3, size, 16)


@pytest.mark.parametrize("causal", ["TopLeft", "BottomRight"])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (33, 50), (20, 9), (1, 30)])
def test_causal(causal, queries, keys):
    check(1, 3, queries, keys, 32, causal=causal)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("mask", [(2, 1, 1, 17), (1, 3, 1, 17), (1, 1, 33, 17), (2, 3, 33, 17)])
def test_masks(mask, constant):
    check(2, 3, 33, 17, 16, mask=mask, constant=constant)


def test_mask_and_causal_and_scale_and_epilogue():
    check(1, 2, 48, 48, 16, mask=(1, 1, 48, 48), causal="TopLeft", scale=0.5, epilogue=True)


@pytest.mark.parametrize(
    ("depth", "depth_v"),
    [(24, 24), (20, 12), (5, 7), (48, 64), (128, 128), (80, 80), (26, 26), (7, 13), (9, 33), (3, 31), (40, 100), (1, 1),
     (2, 3), (17, 50)],
)  # fmt: skip
def test_depths(depth, depth_v):
    check(1, 2, 20, 20, depth, depth_v=depth_v)


def test_grouped_heads():
    check(1, 8, 16, 16, 16, kv_heads=2)


def test_many_heads_use_threads():
    check(1, 12, 64, 64, 64)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("keys", [1, 5, 64, 128, 197, 1000])
def test_tiles_fit_the_registers(registers, keys):
    p = plan(1, 8, 128, keys, 64, lanes=8, registers=registers)
    mo, no = p.output_tile
    assert p.mk * p.nq + p.nq + 1 <= registers and mo * no + no + 1 <= registers and p.strip % mo == 0


def test_chunks_divide_the_strips():
    for cores in (1, 2, 16, 64):
        p = plan(1, 2, 1000, 1000, 64, cores=cores)
        assert p.strips % p.chunks == 0
    assert plan(1, 12, 128, 128, 64, cores=2).chunks == 1


def chosen(bias, fill, arrays):
    """`tvmopt.masked_attention` through the pipeline: (its kernels' families, the result)."""
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate([*arrays, bias])]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(masked.masked_attention(*params, 0.3, fill)))
        bb.emit_func_output(relax.Tuple([out]))
    machine = Machine.load("cpu").with_cores(2)
    lowered = pipeline.lower(bb.get(), machine)
    vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
    got = vm["main"](*[tvm.runtime.tensor(a) for a in [*arrays, bias]])[0].numpy()
    return [k.family for k in lowered.kernels], got


@pytest.mark.parametrize("fill", [-3.4028235e38, -1e4, 2.0, -np.inf])
@pytest.mark.parametrize("mask", [(2, 1, 1, 17), (1, 3, 1, 17), (1, 1, 33, 17), (2, 3, 33, 17)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_fill_takes_the_place_of_scores(mask, fill, dtype):
    """Also of infinite scores and NaN, and of all scores of a row; float16 is computed in float32."""
    rng = np.random.default_rng(1)
    shapes = [(2, 33, 3, 16), (2, 17, 3, 16), (2, 17, 3, 24)]
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    arrays[0] *= 9 if fill == -1e4 else 1
    gone = rng.random(mask) < 0.4
    gone[..., 3], gone[..., 5] = True, False
    if fill != -np.inf:
        gone[-1, -1, -1] = True
    arrays[1][:, 3] = rng.choice([np.inf, np.nan], arrays[1][:, 3].shape)
    bias = np.where(gone, masked.GONE, rng.standard_normal(mask)).astype(dtype)
    families, got = chosen(bias, fill, arrays)
    assert "attention" in families
    q, k, v = (a.astype("float64").swapaxes(1, 2) for a in arrays)
    s = np.where(gone, fill, q @ np.nan_to_num(k).swapaxes(2, 3) * 0.3 + np.where(gone, 0, bias.astype("float64")))
    e = np.exp(s - s.max(-1, keepdims=True))
    want = (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2)
    tolerance = 1e-5 if dtype == "float32" else 5e-3
    np.testing.assert_allclose(got, want, rtol=10 * tolerance, atol=tolerance)
