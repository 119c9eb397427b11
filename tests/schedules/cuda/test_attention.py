"""Flash attention in the emulator: depths, masks, causal offsets, fewer key heads, sizes at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, close, families, run


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | None, causal: str | None) -> np.ndarray:
    """In float64; q, k, v are [B, S, N, H]."""
    q, k, v = (a.astype("float64").transpose(0, 2, 1, 3) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], 1) for a in (k, v))
    s = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if bias is not None:
        s = s + bias.astype("float64")
    if causal:
        offset = 0 if causal == "TopLeft" else abs(k.shape[2] - q.shape[2])
        s = np.where(np.arange(k.shape[2])[None] <= np.arange(q.shape[2])[:, None] + offset, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(((p / p.sum(-1, keepdims=True)) @ v).transpose(0, 2, 1, 3))


@pytest.mark.parametrize(
    ("b", "n", "kv", "queries", "keys", "depth", "depth_v", "dtype", "causal", "bias"),
    [
        (2, 3, 3, 17, 33, 32, 32, "float16", None, None),
        (1, 2, 1, 70, 130, 64, 64, "bfloat16", None, None),
        (1, 2, 2, 65, 65, 64, 64, "float16", "TopLeft", None),
        (1, 2, 2, 7, 33, 48, 48, "float16", "BottomRight", None),
        (1, 1, 1, 9, 15, 8, 8, "float16", None, None),
        (1, 1, 1, 16, 100, 80, 80, "float16", None, None),
        (1, 1, 1, 31, 64, 128, 128, "float16", "TopLeft", None),
        (1, 1, 1, 33, 70, 256, 256, "bfloat16", None, None),
        (2, 2, 2, 15, 31, 64, 64, "float16", None, (2, 1, 1, 31)),
        (2, 2, 2, 70, 66, 64, 64, "float16", None, (1, 2, 70, 66)),
        (1, 1, 1, 5, 9, 20, 12, "float16", None, None),
    ],
)
def test_attention(
    b: int, n: int, kv: int, queries: int, keys: int, depth: int, depth_v: int, dtype: str,
    causal: str | None, bias: tuple[int, ...] | None,
) -> None:  # fmt: skip
    q, k, v = (
        array((b, s, h, d), dtype, 1, seed)
        for seed, (s, h, d) in enumerate(((queries, n, depth), (keys, kv, depth), (keys, kv, depth_v)))
    )
    mask = None if bias is None else array(bias, "float32", 1, 9)
    inputs = [q, k, v] if mask is None else [q, k, v, mask]

    def build(bb: relax.BlockBuilder, *args: relax.Expr) -> relax.Expr:
        return relax.op.nn.attention(*args[:3], bias=args[3] if mask is not None else None, causal_mask=causal)

    out, how = run(build, inputs)
    close(out, reference(q, k, v, mask, causal))
    assert families(how) == ["attention"]


@pytest.mark.parametrize("knobs", [{"bm": 128, "bn": 64}, {"bm": 64, "bn": 32}])
def test_tiles(knobs: dict[str, int]) -> None:
    q = array((1, 150, 2, 64), "float16")
    out, _ = run(lambda bb, a: relax.op.nn.attention(a, a, a, causal_mask="TopLeft"), [q], knobs=knobs)
    close(out, reference(q, q, q, None, "TopLeft"))


def test_a_masked_key_weighs_nothing() -> None:
    q, mask = array((1, 20, 1, 32), "float16"), np.zeros((1, 1, 1, 20), "float32")
    mask[..., 5:] = -np.inf
    out, _ = run(lambda bb, a, m: relax.op.nn.attention(a, a, a, bias=m), [q, mask])
    close(out, reference(q, q[:, :5], q[:, :5], None, None))
