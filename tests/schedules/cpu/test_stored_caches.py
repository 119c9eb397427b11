"""Caches that store their rows rounded: what is written is the rule of `tvmopt.operators.stored` to the bit, and
attention is that of the rounded rows."""

import numpy as np
import pytest
from tvm import tirx

from tests.schedules.cpu.test_open_attention import attention, kernel, random
from tests.schedules.harness import Open, close, machines, open_module
from tvmopt.operators.caches import (
    Scores,
    append_placed,
    append_rows,
    cached_attention,
    cached_rows,
    placed_attention,
)
from tvmopt.operators.stored import CARRIERS, elements, load, store
from tvmopt.schedules.cpu._attention_plan import heads_together, run_of

ROUNDED = ("bfloat16", "int8")


def rows_of(*shape, seed=0):
    """Rows of all sizes, some of them zeros, tiny, or as large as float32 goes."""
    rows = random(*shape, seed=seed)
    flat = rows.reshape(-1, shape[-1])
    flat *= np.exp(np.random.default_rng(seed).uniform(-20, 20, (len(flat), 1))).astype("float32")
    for i, scale in enumerate((0.0, 1e-30, 1e-37, 1e38)):
        flat[i % len(flat)] = random(shape[-1], seed=seed) * np.float32(scale)
    return rows


def same(found, kind, rows):
    """Whether a buffer holds these rows to the bit; of bfloat16 numbers below the smallest normal one may be 0."""
    if kind == "int8":
        np.testing.assert_array_equal(found, store(rows, kind))
    else:
        tiny = np.abs(rows) < np.finfo("float32").tiny
        np.testing.assert_array_equal(
            np.where(tiny, 0, load(found, kind)), np.where(tiny, 0, load(store(rows, kind), kind))
        )


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("depth", [4, 12, 16, 20, 64, 128])
def test_rows_are_stored_to_the_bit(machine, kind, depth):
    """Behind those of the past, which stay."""
    last = elements(depth, kind)
    shapes = [(1, 2, "capacity", last), (1, "new", 2, depth), ("past", 1)]
    model = Open(
        open_module(
            lambda bb, k, new, past: append_rows(k, new, next(iter(past.ty.shape))),
            shapes,
            [CARRIERS[kind], *["float32"] * 2],
        ),
        machine,
    )
    for past, new in ((1, 1), (3, 1), (5, 7), (8, 33)):
        before, rows = store(random(1, 2, past + new + 2, depth, seed=past), kind), rows_of(1, new, 2, depth, seed=new)
        found = model(before.copy(), rows, random(past, 1))[0]
        same(found[:, :, past : past + new], kind, rows.transpose(0, 2, 1, 3))
        np.testing.assert_array_equal(
            np.delete(found, slice(past, past + new), 2), np.delete(before, slice(past, past + new), 2)
        )


@pytest.mark.parametrize("kind", ROUNDED)
def test_rows_of_several_texts(kind):
    last, texts = elements(16, kind), 5
    shapes = [("texts", 2, "capacity", last), (1, "new", 2, 16), (2, "new")]
    build = open_module(
        lambda bb, k, new, where: append_placed(k, new, where), shapes, [CARRIERS[kind], "float32", "int64"]
    )
    model = Open(build)
    for new in (1, 5):
        where = np.stack([np.arange(new), 3 + np.arange(new) % 4]).astype("int64")
        rows, before = rows_of(1, new, 2, 16), store(random(texts, 2, 9, 16), kind)
        found = model(before.copy(), rows, where)[0]
        same(found[where[0], :, where[1]], kind, rows[0])
        found[where[0], :, where[1]] = before[where[0], :, where[1]]
        np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("kind", ROUNDED)
def test_infinity_and_nan_are_read_as_nan_and_stay_in_their_rows(kind):
    shapes = [(1, 1, "capacity", elements(16, kind)), (1, "new", 1, 16), ("past", 1)]

    def written_and_read(bb, k, new, past):
        written = bb.emit(append_rows(k, new, next(iter(past.ty.shape))))
        return cached_rows(written, tirx.const(4, "int64"))

    model = Open(open_module(written_and_read, shapes, [CARRIERS[kind], "float32", "float32"]))
    rows = random(1, 3, 1, 16)
    rows[0, 0, 0, 3], rows[0, 1, 0, 5] = np.nan, np.inf
    found = model(store(random(1, 1, 4, 16, seed=3), kind), rows, random(1, 1))[0][0, 0]
    assert np.isnan(found[1, 3]) and not np.isfinite(found[2, 5])
    assert np.isfinite(found[0]).all() and np.isfinite(found[3]).all()
    np.testing.assert_array_equal(found[3], load(store(rows[0, 2], kind), kind)[0])


CACHES = [  # heads of queries and of keys, depths, mask
    (6, 2, 16, 48, (1, 6, 1, "keys")),
    (8, 2, 64, 64, (1, 1, "seq", "keys")),
    (8, 1, 20, 24, (1, 1, "seq", 1)),
    (4, 2, 128, 80, None),
    (2, 1, 4, 12, None),
]


def cached(scores, mask):
    def of(bb, q, k, v, *more):
        bias, known = (more[0], more[1]) if mask else (None, more[0])
        return cached_attention(q, k, v, next(iter(known.ty.shape)), bias, scores)

    return of


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize(
    ("machine", "heads", "kv_heads", "depth", "depth_v", "mask"),
    [(m, *case) for m in machines() for case in (CACHES if m == "avx512" else CACHES[:1])],
)
def test_attention_of_rounded_rows(machine, kind, heads, kv_heads, depth, depth_v, mask):
    """Of one query and of several; rows behind those that count are NaN."""
    capacities = [(1, kv_heads, "capacity", elements(d, kind)) for d in (depth, depth_v)]
    shapes = [(1, "seq", heads, depth), *capacities, *([mask] if mask else []), ("keys", 1)]
    kinds = ["float32", *[CARRIERS[kind]] * 2, *["float32"] * (len(shapes) - 3)]
    build = cached(Scores(depth**-0.5, causal=mask is None), mask)
    model = Open(open_module(build, shapes, kinds), machine)
    assert kernel(model) == ["attention"]
    run = run_of(heads // heads_together(heads, kv_heads))
    for keys in (1, 2, 7, 8, 9, 13, 14, 15, 16, 17, 31, 33, 257, run + 1):
        for queries in [n for n in (1, 2, 17) if n <= keys]:
            capacity = keys + (3 if keys % 2 else 0)
            known = {"seq": queries, "keys": keys, "capacity": capacity}
            q = random(1, queries, heads, depth)
            k, v = (random(1, kv_heads, capacity, d, seed=keys + d) for d in (depth, depth_v))
            k *= np.exp(np.random.default_rng(keys).uniform(-1, 1, (1, kv_heads, capacity, 1))).astype("float32")
            k[:, :, keys:], v[:, :, keys:] = np.nan, np.nan
            more = [random(*(known.get(d, d) for d in s), seed=keys) for s in shapes[3:]]
            bias = more[0] if mask else None
            stored = [store(x, kind) for x in (k, v)]
            rows = (load(x, kind)[:, :, :keys].transpose(0, 2, 1, 3) for x in stored)
            expected = attention(q, *rows, bias, offset=keys - queries if mask is None else None)
            close(model(q, *stored, *more)[0], expected, 64)


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("apart", [1, 0])
def test_tokens_see_their_own_text(kind, apart):
    """What they must not see is NaN."""
    heads, kv_heads, depth, texts = 6, 2, 16, 5
    caches = ("texts", kv_heads, "capacity", elements(depth, kind))

    def of(bb, q, k, v, places, known):
        keys, scores = next(iter(known.ty.shape)), Scores(depth**-0.5, causal=True)
        return placed_attention(q, k, v, keys, tirx.const(apart, "int64"), places, scores)

    shapes = [(1, "seq", heads, depth), caches, caches, (2, "seq"), ("keys", 1)]
    model = Open(open_module(of, shapes, ["float32", *[CARRIERS[kind]] * 2, "int64", "float32"]))
    generator, capacity = np.random.default_rng(0), run_of(heads // heads_together(heads, kv_heads)) + 44
    for seq in (1, 2, 8, 33):
        if apart:
            places = np.stack([generator.integers(0, texts, seq), generator.integers(0, capacity, seq)])
        else:
            places = np.stack([np.full(seq, 3), 4 + np.arange(seq)])
        q = random(1, seq, heads, depth)
        k, v = (random(texts, kv_heads, capacity, depth, seed=s) for s in (1, 2))
        seen = np.zeros((texts, capacity), bool)
        for text, position in places.T:
            seen[text, : position + 1] = True
        hidden = ~np.repeat(seen[:, None], kv_heads, 1)
        k[hidden], v[hidden] = np.nan, np.nan
        stored = [store(x, kind) for x in (k, v)]
        found = model(q, *stored, places.astype("int64"), random(int(places[1].max()) + 1, 1))[0]
        for i, (text, position) in enumerate(places.T):
            rows = (load(x, kind)[text : text + 1, :, : position + 1].transpose(0, 2, 1, 3) for x in stored)
            close(found[:, i : i + 1], attention(q[:, i : i + 1], *rows), 64)
