"""Attention with an open number of queries, keys and samples: every mask, causal, and a decoder's step."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax, tirx

import tvmopt
from tests.schedules.harness import Open, close, machines, open_module
from tvmopt.operators.caches import Scores, cached_attention, placed_attention
from tvmopt.schedules.cpu._attention_plan import heads_together, run_of

LENGTHS = (1, 2, 7, 8, 13, 14, 15, 16, 17, 31, 32, 33, 64, 101, 511)


def random(*shape, seed=0):
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype("float32")


def attention(q, k, v, mask=None, offset=None):
    """[B, S, N, H] in float64; a query i sees keys up to i + offset."""
    heads, shared = q.shape[2], k.shape[2]
    q, k, v = (x.astype("float64").transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, heads // shared, 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    if offset is not None:
        i, j = np.ogrid[: scores.shape[2], : scores.shape[3]]
        scores = np.where(j <= i + offset, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


def build(causal=None):
    def of(bb, q, k, v, *mask):
        return relax.op.nn.attention(q, k, v, mask[0] if mask else None, causal_mask=causal)

    return of


def kernel(model):
    return [how for how, _ in model.how.values() if how not in ("generic", "elementwise")]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("causal", [None, "TopLeft", "BottomRight"])
def test_as_many_queries_as_keys(machine, causal):
    shape = ("batch", "seq", 3, 20)
    model = Open(open_module(build(causal), [shape] * 3), machine)
    assert kernel(model) == ["attention"]
    for seq in LENGTHS if machine == "avx512" else (1, 7, 8, 9, 17, 33):
        batch = 2 if seq < 40 else 1
        q, k, v = (random(batch, seq, 3, 20, seed=s) for s in range(3))
        close(model.guarded([q, k, v], q.shape), attention(q, k, v, offset=None if causal is None else 0), 64)


@pytest.mark.parametrize(
    "mask",
    [("batch", 1, 1, "keys"), (1, 1, 1, "keys"), ("batch", 3, "seq", "keys"), (1, 1, "seq", "keys"), (1, 1, "seq", 1)],
)
def test_masks(mask):
    shapes = [("batch", "seq", 3, 16), ("batch", "keys", 3, 16), ("batch", "keys", 3, 16), mask]
    model = Open(open_module(build(), shapes))
    assert kernel(model) == ["attention"]
    for seq, keys in [(1, 1), (7, 5), (16, 13), (17, 14), (33, 15), (5, 64), (40, 29)]:
        known = {"batch": 2, "seq": seq, "keys": keys}
        q, k, v, m = (random(*(known.get(d, d) for d in s), seed=i) for i, s in enumerate(shapes))
        m[..., -1] = -np.inf if keys > 1 and m.shape[-1] > 1 else 0
        close(model(q, k, v, m)[0], attention(q, k, v, m), 64)


def test_a_step_of_a_decoder_reads_the_past():
    shapes = [("batch", 1, 4, 16), ("batch", "past + 1", 2, 16), ("batch", "past + 1", 2, 16), ("past", 1)]
    model = Open(open_module(lambda bb, q, k, v, past: build()(bb, q, k, v), shapes))
    assert kernel(model) == ["attention"]
    for past in (1, 6, 7, 12, 13, 14, 15, 16, 500):
        q, k, v = random(2, 1, 4, 16), random(2, past + 1, 2, 16), random(2, past + 1, 2, 16, seed=1)
        close(model(q, k, v, random(past, 1))[0], attention(q, k, v), 64)


def test_several_new_tokens_see_the_past_and_themselves():
    shapes = [("seq", 8), ("past", 8), (1, "seq", 2, 8), (1, "past", 2, 8)]

    def steps(bb, a, b, new, old):
        keys = bb.emit(relax.op.concat([old, new], 1))
        return relax.op.nn.attention(new, keys, keys, causal_mask="BottomRight")

    model = Open(open_module(steps, shapes))
    assert kernel(model) == ["attention"]
    for seq, past in [(1, 1), (3, 5), (16, 1), (17, 40), (2, 500)]:
        new, old = random(1, seq, 2, 8), random(1, past, 2, 8, seed=1)
        keys = np.concatenate([old, new], 1)
        close(model(random(seq, 8), random(past, 8), new, old)[0], attention(new, keys, keys, offset=past), 64)


def test_huge_scores_and_nan_stay_in_their_rows():
    model = Open(open_module(build(), [(1, "seq", 1, 8)] * 3))
    q, k, v = random(1, 21, 1, 8), random(1, 21, 1, 8, seed=1), random(1, 21, 1, 8, seed=2)
    q[0, 3] *= 1e4
    expected = attention(q, k, v)
    close(model(q, k, v)[0], expected, 1000)
    q[0, 5, 0, 0] = np.nan
    y = model(q, k, v)[0]
    assert np.isnan(y[0, 5]).all() and np.isfinite(np.delete(y, 5, 1)).all()


@pytest.mark.parametrize("mask", [("batch", 1, 1, "seq"), (1, 3, "seq", "seq"), None])
def test_attention_spelt_out_is_put_together(mask):
    def spelt(bb, q, k, v, *added):
        op = relax.op
        q, v = (bb.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (q, v))
        scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 2, 3, 1]))))
        scores = bb.emit(op.multiply(scores, relax.const(0.25, "float32")))
        if added:
            scores = bb.emit(op.add(scores, added[0]))
        out = bb.emit(op.matmul(bb.emit(op.nn.softmax(scores, -1)), v))
        return op.permute_dims(out, [0, 2, 1, 3])

    shapes = [("batch", "seq", 3, 16)] * 3 + ([mask] if mask else [])
    model = Open(open_module(spelt, shapes))
    assert kernel(model) == ["attention"]
    for batch, seq in [(1, 1), (2, 7), (1, 16), (3, 17), (1, 33), (2, 64)]:
        known = {"batch": batch, "seq": seq}
        q, k, v, *m = (random(*(known.get(d, d) for d in s), seed=i) for i, s in enumerate(shapes))
        close(model(q, k, v, *m)[0], attention(q, k, v, *m), 64)


def cached(scores, seq="seq", mask=None):
    """Attention to the first rows of caches; the last tensor tells how many there are."""

    def of(bb, q, k, v, *more):
        bias, known = (more[0], more[1]) if mask else (None, more[0])
        return cached_attention(q, k, v, next(iter(known.ty.shape)), bias, scores)

    return of


CACHES = [  # heads of queries and of keys, depths, mask
    (6, 2, 16, 48, (1, 6, 1, "keys")),
    (8, 2, 64, 64, (1, 1, "seq", "keys")),
    (8, 1, 20, 24, (1, 1, "seq", 1)),
    (4, 2, 128, 80, None),
    (2, 1, 6, 7, None),
]


@pytest.mark.parametrize(
    ("machine", "heads", "kv_heads", "depth", "depth_v", "mask"),
    [(m, *case) for m in machines() for case in (CACHES if m == "avx512" else CACHES[:1])],
)
def test_one_query_reads_the_first_rows_of_caches(machine, heads, kv_heads, depth, depth_v, mask):
    """Rows behind those that count are NaN; two queries take the other loops of the same kernel. Of the most
    keys the mask hides all of the first run."""
    shapes = [(1, "seq", heads, depth), (1, kv_heads, "capacity", depth), (1, kv_heads, "capacity", depth_v)]
    shapes += [mask, ("keys", 1)] if mask else [("keys", 1)]
    model = Open(open_module(cached(Scores(depth**-0.5, causal=mask is None), mask=mask), shapes), machine)
    assert kernel(model) == ["attention"]
    run = run_of(heads // heads_together(heads, kv_heads))
    for keys in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 255, 256, 257, run - 1, run, run + 1, run + 44):
        for queries in (1, 2) if keys > 1 else (1,):
            capacity = keys + (3 if keys % 2 else 0)
            known = {"seq": queries, "keys": keys, "capacity": capacity}
            q, k, v, *more = (random(*(known.get(d, d) for d in s), seed=keys + i) for i, s in enumerate(shapes))
            k[:, :, keys:], v[:, :, keys:] = np.nan, np.nan
            bias = more[0] if mask else None
            if mask and keys > 1 and bias.shape[-1] > 1:
                bias[..., : run + 4 if keys == run + 44 else 1] = -np.inf
            rows = (x[:, :, :keys].transpose(0, 2, 1, 3) for x in (k, v))
            expected = attention(q, *rows, bias, offset=keys - queries if mask is None else None)
            close(model(q, k, v, *more)[0], expected, 64)


def test_one_known_query_and_a_fill():
    shapes = [(2, 1, 4, 32), (2, 2, "capacity", 32), (2, 2, "capacity", 32), (2, 1, 1, "keys"), ("keys", 1)]
    model = Open(open_module(cached(Scores(0.25, fill=-3.0), mask=True), shapes))
    for keys in (1, 5, 16, 40):
        q, k, v = random(2, 1, 4, 32), random(2, 2, keys + 1, 32), random(2, 2, keys + 1, 32, seed=1)
        bias = np.where(random(2, 1, 1, keys) > 0, np.inf, 0).astype("float32")
        both = (np.repeat(x[:, :, :keys], 2, 1).astype("float64") for x in (k, v))
        keys_of, values = both
        scores = q.transpose(0, 2, 1, 3).astype("float64") @ keys_of.swapaxes(2, 3) * 0.25
        e = np.exp(np.where(np.isinf(bias), -3.0, scores))
        expected = (e / e.sum(-1, keepdims=True) @ values).transpose(0, 2, 1, 3)
        close(model(q, k, v, bias, random(keys, 1))[0], expected, 64)


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_heads_of_a_group_share_a_task_and_none_is_left_out(cores):
    shapes = [(1, 1, 12, 16), (1, 3, "capacity", 16), (1, 3, "capacity", 16), ("keys", 1)]
    model = Open(open_module(cached(Scores(0.25)), shapes), cores=cores)
    q, k, v = random(1, 1, 12, 16), random(1, 3, 600, 16), random(1, 3, 600, 16, seed=1)
    q[0, 0, 5] *= 1e4  # one head's huge scores, and another's NaN, stay there
    k[0, 2, 7, 3] = np.nan
    y = model(q, k, v, random(600, 1))[0]
    expected = attention(q, *(x.transpose(0, 2, 1, 3) for x in (k, v)))
    close(y[:, :, :8], expected[:, :, :8], 1000)
    assert np.isnan(y[:, :, 8:]).all()


def test_bits_do_not_depend_on_the_number_of_cores():
    shapes = [(1, 1, 4, 64), (1, 1, "capacity", 64), (1, 1, "capacity", 64), ("keys", 1)]
    given = [random(1, 1, 4, 64), random(1, 1, 1000, 64), random(1, 1, 1000, 64, seed=1), random(1000, 1)]
    found = [Open(open_module(cached(Scores(0.125)), shapes), cores=cores)(*given)[0] for cores in (1, 2, 16)]
    close(found[0], attention(given[0], *(x.transpose(0, 2, 1, 3) for x in given[1:3])), 64)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def of_texts(apart):
    """Attention of tokens with places to caches; a tensor of `keys` rows tells how many there are at most."""

    def of(bb, q, k, v, places, known):
        scores = Scores(int(q.ty.shape[3]) ** -0.5, causal=True)
        return placed_attention(q, k, v, next(iter(known.ty.shape)), tirx.const(apart, "int64"), places, scores)

    return of


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize(("heads", "kv_heads", "depth"), [(6, 2, 16), (4, 4, 20)])
@pytest.mark.parametrize("apart", [1, 0])
def test_tokens_see_their_own_text(machine, heads, kv_heads, depth, apart):
    """Of several texts, each at a place of its own; or consecutive ones of one text. What they must not see is NaN."""
    caches = ("texts", kv_heads, "capacity", depth)
    shapes = [(1, "seq", heads, depth), caches, caches, (2, "seq"), ("keys", 1)]
    kinds = ["float32"] * 3 + ["int64", "float32"]
    model = Open(open_module(of_texts(apart), shapes, kinds), machine)
    assert kernel(model) == ["attention"]
    generator, texts = np.random.default_rng(0), 5
    capacity = run_of(heads // heads_together(heads, kv_heads)) + 44
    for seq in (1, 2, 7, 8, 9, 33):
        if apart:
            places = np.stack([generator.integers(0, texts, seq), generator.integers(0, capacity, seq)])
        else:
            places = np.stack([np.full(seq, 3), 4 + np.arange(seq)])
        q = random(1, seq, heads, depth)
        k, v = (random(texts, kv_heads, capacity, depth, seed=s) for s in (1, 2))
        seen = np.zeros((texts, capacity), bool)
        for text, position in places.T:
            seen[text, : position + 1] = True
        k[~np.repeat(seen[:, None], kv_heads, 1)] = np.nan
        v[~np.repeat(seen[:, None], kv_heads, 1)] = np.nan
        found = model(q, k, v, places.astype("int64"), random(int(places[1].max()) + 1, 1))[0]
        for i, (text, position) in enumerate(places.T):
            rows = (x[text : text + 1, :, : position + 1].transpose(0, 2, 1, 3) for x in (k, v))
            close(found[:, i : i + 1], attention(q[:, i : i + 1], *rows), 64)


@pytest.mark.parametrize("huge", [1.0, 1e9])
def test_values_of_an_open_depth(huge):
    """No family has them. The largest score is what is subtracted from it, however large it is."""
    sizes = {"q": [2, 3, 6], "k": [2, 6, 6], "v": [2, 6, "depth"], "y": [2, 3, "depth"]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], kv_num_heads=3, q_num_heads=3)
    graph = helper.make_graph([node], "g", [infos[n] for n in "qkv"], [infos["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    compiled = tvmopt.compile(model, shape={"v": (2, 6, "3..99@33")}, verify=False).model
    q, k = (np.float32(huge) * random(2, length, 6) for length in (3, 6))
    for depth in (3, 33, 99):
        v = random(2, 6, depth)
        found = compiled.run({"q": q, "k": k, "v": v})["y"]
        assert np.isfinite(found).all()
        if huge == 1.0:
            heads = (x.reshape(2, -1, 3, x.shape[2] // 3) for x in (q, k, v))
            close(found, attention(*heads).reshape(2, 3, depth), 64)
