"""A small decoder as two exporters write it, with random weights - for the tests of every room."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN, HEADS, KV_HEADS, DEPTH, POSITIONS = 37, 32, 4, 2, 16, 48
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def small_decoder(
    style: str = "grouped", layers: int = 1, seed: int = 0, *, packed_table: bool = False, **attention: float
) -> onnx.ModelProto:
    """A decoder of one or more layers: attention with caches and a residual, then the scores.

    Args:
        style: "grouped": GroupQueryAttention with rotary embedding and a mask whose ones are counted, as
            onnxruntime-genai's builder writes it; "plain": Concat, MatMul and Softmax with a causal mask made of
            position_ids, keys repeated for the heads of a group, each length with a name of its own, as torch does;
            "standard": Attention of opset 24 with past and present, flags as its mask, RotaryEmbedding and
            RMSNormalization, as mobius writes it.
        packed_table: the embedding is in 4 bits. attention: more attributes of GroupQueryAttention.
    """
    made = _Made(np.random.default_rng(seed), attention)
    x = made.packed_rows() if packed_table else ""
    x = x or made.op("Gather", made.weight((VOCABULARY, HIDDEN), "embedding", 1.0), "input_ids")
    if style == "grouped":
        one = made.constant(np.array([1], np.int64))
        counted = made.op("ReduceSum", "attention_mask", one, keepdims=0)
        made.lengths = made.op("Cast", made.op("Sub", counted, one), to=TensorProto.INT32)
        total = made.op("Gather", made.op("Shape", "attention_mask"), made.constant(np.array(1, np.int64)), axis=0)
        made.total = made.op("Cast", total, to=TensorProto.INT32)
        made.angles = made.tables()
    elif style == "standard":
        made.begin_standard()
    else:
        places = made.op("Gather", made.weight((POSITIONS, HIDDEN), "places", 2.0), "position_ids")
        x = made.op("Add", x, places)
    for layer in range(layers):
        attended = {"grouped": made.grouped, "plain": made.plain, "standard": made.standard}[style](x, layer)
        x = made.op("Add", x, made.op("MatMul", attended, made.weight((HEADS * DEPTH, HIDDEN), f"o{layer}")))
    made.nodes.append(helper.make_node("MatMul", [x, made.weight((HIDDEN, VOCABULARY), "head", 1.0)], ["logits"]))
    return made.model(style, layers)


def merged_decoder() -> onnx.ModelProto:
    """The "plain" one in two forms, as optimum wrote GPT-2: `use_cache_branch` decides whether caches are read."""
    step, first = small_decoder("plain"), small_decoder("plain")
    for node in list(first.graph.node):
        if node.op_type == "Concat" and all(name.startswith("past") for name in node.input):
            first.graph.node.remove(node)
        elif node.op_type == "Concat" and node.output[0].startswith("present"):
            node.op_type = "Identity"
            del node.input[0], node.attribute[:]
    weights = {t.name: t for t in (*step.graph.initializer, *first.graph.initializer)}
    branches = {
        f"{name}_branch": helper.make_graph(list(m.graph.node), name, [], list(m.graph.output))
        for name, m in (("then", step), ("else", first))
    }
    names = [o.name for o in step.graph.output]
    choice = helper.make_node("If", ["use_cache_branch"], names, name="choice", **branches)
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    inputs, outputs = [*step.graph.input, flag], list(step.graph.output)
    graph = helper.make_graph([choice], "merged", inputs, outputs, list(weights.values()))
    return helper.make_model(graph, opset_imports=list(step.opset_import), ir_version=10)


class _Made:
    def __init__(self, generator: np.random.Generator, attention: dict[str, float]) -> None:
        self.generator, self.attention, self.nodes, self.weights = generator, attention, [], []
        self.lengths = self.total = self.flags = ""
        self.angles: list[str] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: object) -> str:
        names = [f"{kind}_{len(self.nodes)}" + f"_{i}" * (i > 0) for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], domain=domain, **attributes))
        return names[0]

    def weight(self, shape: tuple[int, ...], name: str, scale: float = 0.4) -> str:
        self.weights.append(numpy_helper.from_array((self.generator.standard_normal(shape) * scale).astype("f4"), name))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def packed_rows(self) -> str:
        """The embedding of the tokens, from a table in 4 bits with a scale and a zero point for 16 columns."""
        codes = self.generator.integers(0, 256, (VOCABULARY, HIDDEN // 2), np.uint8)
        zeros = self.generator.integers(0, 256, (VOCABULARY, HIDDEN // 32), np.uint8)
        scales = self.weight((VOCABULARY, HIDDEN // 16), "scales", 0.2)
        given = [self.constant(codes), "input_ids", scales, self.constant(zeros)]
        return self.op("GatherBlockQuantized", *given, domain="com.microsoft", bits=4, block_size=16)

    def grouped(self, x: str, layer: int) -> str:
        packed = self.op("MatMul", x, self.weight((HIDDEN, (HEADS + 2 * KV_HEADS) * DEPTH), f"qkv{layer}"))
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        name = f"attention{layer}"
        inputs = [packed, "", "", *past, self.lengths, self.total, *self.angles]
        outputs = [name, f"present.{layer}.key", f"present.{layer}.value"]
        given = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, **self.attention}
        self.nodes.append(
            helper.make_node("GroupQueryAttention", inputs, outputs, name=name, domain="com.microsoft", **given)
        )
        return name

    def tables(self) -> list[str]:
        """The cosines and sines of rotary embedding."""
        angles = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(DEPTH // 2) / (DEPTH // 2))
        return [self.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]

    def begin_standard(self) -> None:
        """The angles of the new tokens, and the flags [1, 1, S, T] of the keys that the mask leaves."""
        self.angles = [self.op("Gather", table, "position_ids") for table in self.tables()]
        flags = self.op("Unsqueeze", self.op("Cast", "attention_mask", to=TensorProto.BOOL), self._axis(1))
        sizes = [("input_ids", 0), ("input_ids", 1), ("attention_mask", 1)]
        shape = self.op("Concat", *(self.op("Shape", n, start=i, end=i + 1) for n, i in sizes), axis=0)
        self.flags = self.op("Unsqueeze", self.op("Expand", flags, shape), self._axis(1))

    def standard(self, x: str, layer: int) -> str:
        x = self.op("RMSNormalization", x, self.weight((HIDDEN,), f"norm{layer}"), axis=-1, epsilon=1e-6)
        q, k, v = (
            self.op("MatMul", x, self.weight((HIDDEN, n * DEPTH), f"{kind}{layer}"))
            for kind, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        q, k = (self.op("RotaryEmbedding", t, *self.angles, num_heads=n) for t, n in ((q, HEADS), (k, KV_HEADS)))
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        outputs = [f"attention{layer}", f"present.{layer}.key", f"present.{layer}.value"]
        given = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS, "is_causal": 1, **self.attention}
        self.nodes.append(
            helper.make_node("Attention", [q, k, v, self.flags, *past], outputs, name=outputs[0], **given)
        )
        return outputs[0]

    def plain(self, x: str, layer: int) -> str:
        q, k, v = (
            self._heads(self.op("MatMul", x, self.weight((HIDDEN, n * DEPTH), f"{kind}{layer}")), n)
            for kind, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        caches = []
        for kind, new in (("key", k), ("value", v)):
            out, past = f"present.{layer}.{kind}", f"past_key_values.{layer}.{kind}"
            past = self.op("Concat", past, axis=-2) if kind == "key" else past  # as torch's older exporter does
            self.nodes.append(helper.make_node("Concat", [past, new], [out], axis=2))
            caches.append(self._repeated(out))
        keys = self.op("Transpose", caches[0], perm=[0, 1, 3, 2])
        scores = self.op("Mul", self.op("MatMul", q, keys), self.constant(np.float32(DEPTH**-0.5)))
        weights = self.op("Softmax", self.op("Add", scores, self._mask(f"present.{layer}.key")), axis=-1)
        out = self.op("Transpose", self.op("MatMul", weights, caches[1]), perm=[0, 2, 1, 3])
        return self.op("Reshape", out, self.constant(np.array([0, 0, HEADS * DEPTH])))

    def _heads(self, x: str, heads: int) -> str:
        return self.op(
            "Transpose", self.op("Reshape", x, self.constant(np.array([0, 0, heads, DEPTH]))), perm=[0, 2, 1, 3]
        )

    def _repeated(self, cache: str) -> str:
        """[1, H, T, D] with each head twice."""
        shape = self.op("Shape", cache)
        batch, depth = (self.op("Slice", shape, *map(self._axis, ends)) for ends in ((0, 1), (3, 4)))
        length = self.op("Slice", shape, self._axis(2), self._axis(3))
        times = HEADS // KV_HEADS
        wide = self.op("Concat", batch, self._axis(KV_HEADS), self._axis(times), length, depth, axis=0)
        flat = self.op("Concat", batch, self._axis(HEADS), length, depth, axis=0)
        spread = self.op("Expand", self.op("Unsqueeze", cache, self._axis(2)), wide)
        return self.op("Reshape", spread, flat)

    def _axis(self, value: int) -> str:
        return self.constant(np.array([value]))

    def _mask(self, cache: str) -> str:
        """0 where a key stands at a position up to the query's, else far below 0: [1, 1, S, T]."""
        total = self.op("Gather", self.op("Shape", cache), self.constant(np.array(2)), axis=0)
        keys = self.op("Range", self.constant(np.array(0)), total, self.constant(np.array(1)))
        queries = self.op("Unsqueeze", "position_ids", self._axis(2))
        seen = self.op("LessOrEqual", keys, queries)
        mask = self.op("Where", seen, self.constant(np.float32(0)), self.constant(np.float32(-3.4e38)))
        return self.op("Unsqueeze", mask, self._axis(1))

    def model(self, style: str, layers: int) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        inputs = [value("input_ids", INT, ["batch", "sequence"])]
        if style != "plain":
            inputs.append(value("attention_mask", INT, ["batch", "total"]))
        if style != "grouped":
            inputs.append(value("position_ids", INT, ["batch", "sequence"]))
        outputs = [value("logits", FLOAT, ["batch", "sequence", VOCABULARY])]
        for layer in range(layers):
            for kind in ("key", "value"):
                length = "past_length" if style == "grouped" else f"s{len(inputs)}"
                inputs.append(value(f"past_key_values.{layer}.{kind}", FLOAT, ["batch", KV_HEADS, length, DEPTH]))
                outputs.append(value(f"present.{layer}.{kind}", FLOAT, ["batch", KV_HEADS, f"t{length}", DEPTH]))
        graph = helper.make_graph(self.nodes, f"{style} decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 24 if style == "standard" else 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11 if style == "standard" else 10)


def greedy(model: onnx.ModelProto, prompt: list[int], count: int) -> list[int]:
    """The tokens that follow by the highest score, as onnxruntime computes them with caches that are copied."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    caches = {n: np.zeros((1, KV_HEADS, 0, DEPTH), "f4") for n in names if n.startswith("past")}
    ids, tokens, past = np.array([prompt]), [], 0
    for _ in range(count):
        given = {"input_ids": ids, **caches}
        given["attention_mask"] = np.ones((1, past + ids.shape[1]), np.int64)
        given["position_ids"] = np.arange(past, past + ids.shape[1])[None]
        found = session.run(None, {name: array for name, array in given.items() if name in names})
        outputs = dict(zip([o.name for o in session.get_outputs()], found, strict=True))
        past += ids.shape[1]
        caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        ids = np.array([tokens[-1:]])
    return tokens
