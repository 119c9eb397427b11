"""Attention as torch's exporters, BERT, GPT-2, Llama and T5 spell it: one operator, no transposes left."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

import tvmopt
from tests.passes.helpers import build, ops, rand, random_inputs, run, same_numbers
from tvmopt.passes import (
    CancelReshapes,
    EliminateIdentities,
    FoldConstant,
    FuseAttention,
    FuseSoftmax,
    PropagateReshapes,
    PropagateTransposes,
)
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
F = np.float32
B, S, N, H = 2, 7, 3, 8
LOWEST = np.finfo(F).min
CAUSAL = np.where(np.tril(np.ones((S, S), bool)), F(0), F(LOWEST)).reshape(1, 1, S, S)


def fuse(mod, expected, *, tol=1e-5, reasons=None, **inputs):
    """The passes around FuseAttention as the pipeline has them; checks operators and numbers."""
    before, log = mod, DecisionLog()
    for make in (FoldConstant, EliminateIdentities, FuseSoftmax, PropagateReshapes, PropagateTransposes):
        mod = make(DecisionLog())(mod)
    for make in (CancelReshapes, FuseAttention, PropagateTransposes, CancelReshapes, FoldConstant):
        mod = make(log)(mod)
    relax.analysis.well_formed(mod)
    found = dict(ops(mod))
    assert all(found.get(k, 0) == n for k, n in expected.items()), mod.script()
    args = random_inputs(before)
    for i, p in enumerate(before["main"].params):
        args[i] = inputs.get(p.name, args[i])
    for a, b in zip(run(mod, args), run(before, args), strict=True):
        same_numbers(a, b, tol)
    if reasons is not None:
        declined = [d.reason[0] for d in log if d.stage == "tvmopt.FuseAttention" and d.verdict == "declined"]
        assert declined == reasons
    return mod


def heads(bb, x, n=N):
    """[B, S, N * H] to [B, N, S, H]."""
    b, s, w = (int(d) for d in x.ty.shape)
    return bb.emit(op.permute_dims(bb.emit(op.reshape(x, (b, s, n, w // n))), [0, 2, 1, 3]))


def merge(bb, x):
    """[B, N, S, H] to [B, S, N * H]."""
    b, n, s, h = (int(d) for d in x.ty.shape)
    return bb.emit(op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1, 3])), (b, s, n * h)))


def torch_key(bb, k):
    """K transposed as torch's dynamo exporter does it: through [B * N, S, H]."""
    b, n, s, h = (int(d) for d in k.ty.shape)
    flat = bb.emit(op.permute_dims(bb.emit(op.reshape(k, (b * n, s, h))), [0, 2, 1]))
    return bb.emit(op.reshape(flat, (b, n, h, s)))


def guard(bb, p):
    """torch's safe softmax."""
    return bb.emit(op.where(bb.emit(op.isnan(p)), c(F(0)), p))


QKV = {"q": (B, S, N * H), "k": (B, S, N * H), "v": (B, S, N * H)}
CLEAN = {"permute_dims": 0, "nn.softmax": 0, "matmul": 0}
CHOSEN = {**CLEAN, "tvmopt.masked_attention": 1}
PLAIN, BIASED = {**CLEAN, "nn.attention": 1}, {**CLEAN, "nn.attention_bias": 1}


def test_torch_sdpa_with_both_operands_scaled():
    def body(bb, q, k, v):
        q, k, v = (heads(bb, t) for t in (q, k, v))
        r = c(F(H**-0.25))
        s = bb.emit(op.matmul(bb.emit(op.multiply(q, r)), bb.emit(op.multiply(torch_key(bb, k), r))))
        return merge(bb, bb.emit(op.matmul(guard(bb, bb.emit(nn.softmax(s))), v)))

    fuse(build(QKV, body), {**PLAIN, "reshape": 4, "multiply": 0})


@pytest.mark.parametrize("where", ["before", "after"])
def test_bert_with_a_divided_score_and_an_added_mask(where):
    def body(bb, q, k, v, m):
        q, v = heads(bb, q), heads(bb, v)
        k = bb.emit(op.permute_dims(bb.emit(op.reshape(k, (B, S, N, H))), [0, 2, 3, 1]))
        s, d = bb.emit(op.matmul(q, k)), c(F(H**0.5))
        if where == "before":
            s = bb.emit(op.add(m, bb.emit(op.divide(s, d))))
        else:
            s = bb.emit(op.divide(bb.emit(op.add(s, m)), d))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), v)))

    fuse(build({**QKV, "m": (B, 1, 1, S)}, body), BIASED)


@pytest.mark.parametrize("fill", [LOWEST, -1e9, -1e4, -np.inf, 0.5])
@pytest.mark.parametrize("turned", [False, True])
def test_a_boolean_mask_by_where(fill, turned):
    """The fill takes the place of scores, whatever they are; a row that is masked altogether is all fill."""

    def body(bb, q, k, v, m):
        q, k, v = (heads(bb, t) for t in (q, k, v))
        s = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        s = bb.emit(op.where(m, c(F(fill)), s) if turned else op.where(m, s, c(F(fill))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), v)))

    rng = np.random.default_rng(0)
    keep = rng.random((B, 1, S, S)) < 0.5
    keep[..., 0] = True
    keep[1, 0, 2] = fill == -np.inf  # else: a row without a key
    large = (rng.standard_normal(QKV["q"]) * 300).astype(F)
    infinite = large / 300
    infinite[1, 3], keep[1, :, :, 3] = np.inf, False
    module = build({**QKV, "m": ((B, 1, S, S), "bool")}, body)
    fuse(module, CHOSEN, q=large, k=large[::-1].copy(), m=keep ^ turned)
    fuse(module, CHOSEN, k=infinite, m=keep ^ turned)


def test_a_causal_constant_is_not_read():
    def body(bb, q, k, v):
        q, k, v = (heads(bb, t) for t in (q, k, v))
        s = bb.emit(op.multiply(bb.emit(op.matmul(q, torch_key(bb, k))), c(F(0.3))))
        p = bb.emit(nn.softmax(bb.emit(op.add(s, c(CAUSAL)))))
        return merge(bb, bb.emit(op.matmul(guard(bb, p), v)))

    after = fuse(build(QKV, body), PLAIN)
    call = next(b.value for b in after["main"].body.blocks[0].bindings if "attention" in str(b.value))
    assert call.attrs.causal_mask == "TopLeft" and abs(float(call.attrs.scale) - 0.3) < 1e-6


def test_gpt2_eager_where_and_causal():
    def body(bb, q, k, v):
        q, k, v = (heads(bb, t) for t in (q, k, v))
        s = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        s = bb.emit(op.where(c(CAUSAL == 0), bb.emit(op.divide(s, c(F(2)))), c(F(LOWEST))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), v)))

    fuse(build(QKV, body), PLAIN)


@pytest.mark.parametrize("how", ["add", "where"])
def test_a_causal_constant_that_large_scores_pass_is_read(how):
    """-1e4 hides a key only from scores that are much smaller."""
    fill = np.where(CAUSAL == 0, F(0), F(-1e4))

    def body(bb, q, k, v):
        q, k, v = (heads(bb, t) for t in (q, k, v))
        s = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        s = bb.emit(op.add(s, c(fill)) if how == "add" else op.where(c(CAUSAL == 0), s, c(F(-1e4))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), v)))

    large = (np.random.default_rng(0).standard_normal(QKV["q"]) * 300).astype(F)
    fuse(build(QKV, body), BIASED if how == "add" else CHOSEN, q=large, k=large)


def test_softmax_from_its_pieces_and_three_axes():
    def body(bb, q, k, v):
        e = bb.emit
        flat = [e(op.reshape(heads(bb, t), (B * N, S, H))) for t in (q, k, v)]
        s = e(op.matmul(flat[0], e(op.permute_dims(flat[1], [0, 2, 1]))))
        x = e(op.exp(e(op.subtract(s, e(op.max(s, [-1], keepdims=True))))))
        p = e(op.divide(x, e(op.sum(x, [-1], keepdims=True))))
        return merge(bb, e(op.reshape(e(op.matmul(p, flat[2])), (B, N, S, H))))

    fuse(build(QKV, body), PLAIN)


@pytest.mark.parametrize("how", ["added", "chosen"])
@pytest.mark.parametrize("dims", [(S, S), (1, S, S), (B, 1, S), (S,)])
def test_a_mask_that_is_broadcast_over_three_axes(dims, how):
    def body(bb, q, k, v, m):
        s = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 2, 1]))))
        keep = bb.emit(op.greater(m, c(F(0.5)))) if how == "chosen" else None
        s = bb.emit(op.add(s, m) if keep is None else op.where(keep, s, c(F(-1e4))))
        return bb.emit(op.matmul(bb.emit(nn.softmax(s)), v))

    inputs = {"q": (B, S, H), "k": (B, S, H), "v": (B, S, H), "m": dims}
    mask = np.random.default_rng(0).uniform(size=dims).astype(F)
    fused = "nn.attention_bias" if how == "added" else "tvmopt.masked_attention"
    fuse(build(inputs, body), {"nn.softmax": 0, "matmul": 0, fused: 1}, m=mask)


def test_grouped_queries_repeat_keys_and_values():
    def body(bb, q, k, v):
        def repeat(t):
            five = bb.emit(op.expand_dims(heads(bb, t, 2), [2]))
            return bb.emit(op.reshape(bb.emit(op.broadcast_to(five, (B, 2, N, S, H))), (B, 2 * N, S, H)))

        s = bb.emit(op.matmul(heads(bb, q, 2 * N), torch_key(bb, repeat(k))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), repeat(v))))

    fuse(build({"q": (B, S, 2 * N * H), "k": (B, S, 2 * H), "v": (B, S, 2 * H)}, body), PLAIN)


@pytest.mark.parametrize("length", [1, 8, 9, 17])
def test_cross_attention_with_other_widths(length):
    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v))))

    fuse(build({"q": (B, S, N * H), "k": (B, length, N * H), "v": (B, length, N * 5)}, body), PLAIN)


def test_a_relative_position_bias_and_a_mask():
    def body(bb, q, k, v, m):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        s = bb.emit(op.add(bb.emit(op.add(s, c(rand(1, N, S, S)))), m))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v))))

    fuse(build({**QKV, "m": (B, 1, 1, S)}, body), BIASED)


KEPT = {"nn.softmax": 1, "matmul": 2, "nn.attention": 0, "nn.attention_bias": 0}


def test_probabilities_that_are_an_output_stay():
    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        p = bb.emit(nn.softmax(s))
        return merge(bb, bb.emit(op.matmul(p, heads(bb, v)))), p

    fuse(build(QKV, body), KEPT, reasons=["1"])


def test_scores_that_are_an_output_stay():
    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v)))), s

    fuse(build(QKV, body), KEPT, reasons=["1"])


def test_softmax_over_another_axis_is_not_attention():
    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s, axis=2)), heads(bb, v))))

    fuse(build(QKV, body), KEPT, reasons=[])


def test_softmax_of_something_else_is_not_attention():
    def body(bb, q, k, v):
        s = bb.emit(op.tanh(bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v))))

    fuse(build(QKV, body), KEPT, reasons=["2"])


def test_a_guard_over_rows_that_may_be_masked_whole_chooses_by_row():
    def body(bb, q, k, v, m):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        s = bb.emit(op.add(s, bb.emit(op.where(m, c(F(0)), c(F(-np.inf))))))
        return merge(bb, bb.emit(op.matmul(guard(bb, bb.emit(nn.softmax(s))), heads(bb, v))))

    masked = np.ones((B, 1, 1, S), bool)
    masked[1] = False  # the second image attends to nothing: torch gives zeros
    expected = {**BIASED, "isnan": 0, "where": 2, "max": 1}
    fuse(build({**QKV, "m": ((B, 1, 1, S), "bool")}, body), expected, m=masked)


def by_mask(bb, m, p):
    """The importer's guard: a row whose keys are all hidden gives zeros."""
    most = bb.emit(op.max(m, -1, True))
    return bb.emit(op.where(bb.emit(op.less(most, c(F(-3.4e38)))), c(F(0)), p))


@pytest.mark.parametrize(("low", "fused"), [(-np.inf, True), (LOWEST, True), (-1e38, False)])
def test_the_importers_guard_chooses_by_row(low, fused):
    def body(bb, q, k, v, m):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        mask = bb.emit(op.where(m, c(F(0)), c(F(low))))
        p = bb.emit(nn.softmax(bb.emit(op.add(s, mask))))
        return merge(bb, bb.emit(op.matmul(by_mask(bb, mask, p), heads(bb, v))))

    masked = np.ones((B, 1, S, S), bool)
    masked[1, 0, 2], masked[0, 0, 3, 4:] = False, False
    expected = {**BIASED, "where": 2, "max": 1} if fused else {"nn.attention_bias": 0}
    module = build({**QKV, "m": ((B, 1, S, S), "bool")}, body)
    fuse(module, expected, m=masked)
    huge = rand(*QKV["q"], seed=3, scale=1e18)  # scores of 1e36: a masked key weighs nothing beside them either
    fuse(module, expected, m=masked, q=huge, k=huge[::-1].copy())


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
@pytest.mark.parametrize("first", ["where", "add"])
def test_a_key_that_a_where_and_an_infinite_mask_hide_is_hidden(first, fill):
    """Plus infinity, which stands for the where, and minus infinity of the other mask are NaN together."""

    def body(bb, q, k, v, m, a):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        for step in (first, "add" if first == "where" else "where"):
            s = bb.emit(op.where(m, s, c(F(fill))) if step == "where" else op.add(s, a))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v))))

    keep = np.random.default_rng(0).random((B, 1, S, S)) < 0.5
    keep[..., 0] = True
    added = np.where(np.tril(np.ones((S, S), bool)), F(0), F(-np.inf)).reshape(1, 1, S, S)
    fuse(build({**QKV, "m": ((B, 1, S, S), "bool"), "a": (1, 1, S, S)}, body), CHOSEN, m=keep, a=added)


def test_a_guard_by_another_mask_stays():
    def body(bb, q, k, v, m, o):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        mask, other = (bb.emit(op.where(x, c(F(0)), c(F(-np.inf)))) for x in (m, o))
        p = bb.emit(nn.softmax(bb.emit(op.add(s, mask))))
        return merge(bb, bb.emit(op.matmul(by_mask(bb, other, p), heads(bb, v))))

    flags = {"m": np.ones((B, 1, S, S), bool), "o": np.ones((B, 1, S, S), bool)}
    flags["o"][1, 0, 2] = False
    made = build({**QKV, "m": ((B, 1, S, S), "bool"), "o": ((B, 1, S, S), "bool")}, body)
    fuse(made, {"nn.attention_bias": 0}, **flags)


def test_a_mask_that_is_not_quite_causal_is_read():
    mask = CAUSAL.copy()
    mask[0, 0, -1, 0] = -1.0

    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        p = bb.emit(nn.softmax(bb.emit(op.add(s, c(mask)))))
        return merge(bb, bb.emit(op.matmul(p, heads(bb, v))))

    fuse(build(QKV, body), BIASED)


@pytest.mark.parametrize("scale", [1e38, -1e38, 1e-40])
def test_a_scale_that_single_products_do_not_bear_stays(scale):
    """Kernels multiply q by the scale first: 4 * 1e38 is infinite, though the scores are not."""

    def body(bb, q, k, v):
        s = bb.emit(op.matmul(heads(bb, q), bb.emit(op.permute_dims(heads(bb, k), [0, 1, 3, 2]))))
        s = bb.emit(op.multiply(s, c(F(scale))))
        return merge(bb, bb.emit(op.matmul(bb.emit(nn.softmax(s)), heads(bb, v))))

    q = np.tile(F([4, -4]), (B, S, N * H // 2))
    k = F(1) + np.arange(S, dtype=F).reshape(1, S, 1) * np.tile(F([0.01, 0]), N * H // 2)
    fuse(build(QKV, body), KEPT, reasons=["5"], q=q, k=np.tile(k, (B, 1, 1)))


@pytest.mark.parametrize("size", [1.0, 1e14, 1e18])
def test_attention_of_doubles_keeps_huge_scores(size):
    """TVM's loops round the scaled scores for the maximum and not for the difference: exp of what is left was inf."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) * size for shape in ((2, 2, 9, 8), (2, 2, 8, 17), (2, 2, 17, 8)))
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["a"]), helper.make_node("Mul", ["a", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"]), helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    scale = helper.make_tensor("scale", TensorProto.DOUBLE, [], [8**-0.5])
    sides = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, a.shape) for n, a in (("q", q), ("k", k), ("v", v))]
    out = helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 2, 9, 8])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", sides, [out], [scale]), opset_imports=opset, ir_version=9)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"q": q, "k": k, "v": v})["y"]
    scores = q @ k * 8**-0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(found, (p / p.sum(-1, keepdims=True)) @ v, rtol=1e-12)


def attention(shapes: dict[str, list[int | str]], out: list[int | str]):
    """softmax(q @ k.T) @ v, written out."""
    axes = [*range(len(shapes["k"]) - 2), len(shapes["k"]) - 1, len(shapes["k"]) - 2]
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=axes),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("few", ["q and k", "v", "none"])
def test_operands_of_fewer_axes_stay_apart(few: str) -> None:
    """[2, 5, 8] of v is spread over the first axis of [2, 2, 5, 5]: it was read as [2, 2, 5, 8]."""
    shapes = {name: [2, 5, 8] if name in few.split() else [2, 2, 5, 8] for name in "qkv"}
    compiled = tvmopt.compile(attention(shapes, [2, 2, 5, 8]))  # verified
    assert any("attention" in kernel.name for kernel in compiled.report.kernels) == (few == "none")


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("broadcast", ["q", "k", "v", "none"])
def test_a_batch_that_is_broadcast_stays_apart(broadcast: str, batch: int | str, tmp_path) -> None:
    shapes = {name: [1 if name == broadcast else batch, 3, 5, 8] for name in "qkv"}
    model = attention(shapes, [batch, 3, 5, 8])
    tvmopt.compile(model, output=tmp_path / "m.tvmopt")  # verified
    kernels = tvmopt.load(tmp_path / "m.tvmopt").manifest.report["kernels"]
    assert any("attention" in kernel["name"] for kernel in kernels) == (broadcast == "none")


@pytest.mark.parametrize("longer", ["all", "v"])
def test_vectors_of_open_length_stay_apart(longer: str) -> None:
    """As where channels attend to each other over an open picture: q, k and v are [B, N, H, S]."""
    model = attention({n: [2, 3, 5, "d" if longer in ("all", n) else 8] for n in "qkv"}, [2, 3, 5, "d"])
    compiled = tvmopt.compile(model, shape={"d": "1..40"})  # verified
    assert not any("attention" in kernel.name for kernel in compiled.report.kernels)


def test_channels_that_attend_to_each_other_over_an_open_picture() -> None:
    """DaViT's do; TVM's own kernel took the lengths of q and of k, both rows times columns, for two."""
    graph = attention({n: [1, 2, 4, None] for n in "qkv"}, [1, 2, 4, None]).graph
    made = [
        helper.make_node("MaxPool", ["x"], [f"{n}x"], kernel_shape=[k, k], strides=[4, 4], pads=[k // 2] * 4)
        for k, n in zip((1, 3, 5), "qkv", strict=True)
    ]
    lines = [helper.make_node("Reshape", [f"{n}x", "shape"], [n]) for n in "qkv"]
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [1, 2, 4, -1])
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, "H", "W"])
    whole = helper.make_graph([*made, *lines, *graph.node], "g", [picture], graph.output, [shape])
    opset = [helper.make_opsetid("", 17)]
    tvmopt.compile(helper.make_model(whole, opset_imports=opset, ir_version=9), shape={"H": "1..20", "W": "1..20"})
