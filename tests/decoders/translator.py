"""The decoder of a translator beside its encoder, as exporters write it, with random weights: a file for the first
call, one for the steps behind it, and both in one `If`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN, HEADS, DEPTH, POSITIONS = 37, 32, 4, 8, 48
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = [helper.make_opsetid("", 18)]


class _Graph:
    """Nodes of one of the two forms; weights have the same names and values in both."""

    def __init__(self, step: bool, layers: int, causal: bool) -> None:
        self.step, self.layers, self.causal = step, layers, causal
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.outputs: list[str] = []
        self._logits()

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"{'step' if self.step else 'first'}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.5) -> str:
        seed = zlib.crc32(name.encode())
        array = np.random.default_rng(seed).standard_normal(shape) * scale
        self.weights[name] = numpy_helper.from_array(array.astype(np.float32), name)
        return name

    def number(self, value: Any) -> str:
        array = np.asarray(value)
        name = f"c_{array.dtype}_{'_'.join(map(str, array.reshape(-1)))}_{array.ndim}"
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def _logits(self) -> None:
        first = "past_key_values.0.decoder.key"
        two = self.number(np.int64(2))
        past = self.op("Gather", self.op("Shape", first), two) if self.step else self.number(np.int64(0))
        new = self.op("Gather", self.op("Shape", "input_ids"), self.number(np.int64(1)))
        total, one = self.op("Add", past, new), self.number(np.int64(1))
        places = self.op("Range", past, total, one)
        x = self.op("Gather", self.weight("embedding", VOCABULARY, HIDDEN, scale=1.0), "input_ids")
        x = self.op("Add", x, self.op("Gather", self.weight("places", POSITIONS, HIDDEN, scale=2.0), places))
        keys = self.op("Range", self.number(np.int64(0)), total, one)
        seen = self.op("LessOrEqual", keys, self.op("Unsqueeze", places, self.number([1])))
        zero, low = self.number(np.float32(0)), self.number(np.float32(-3e38))
        order = self.op("Where", seen, zero, low) if self.causal else ""
        counts = self.op("Cast", "encoder_attention_mask", to=BOOL)
        there = self.op("Where", self.op("Unsqueeze", counts, self.number([1, 2])), zero, low)
        for layer in range(self.layers):
            x = self.op("Add", x, self._own(x, layer, order))
            x = self.op("Add", x, self._other(x, layer, there))
        self.op("MatMul", x, self.weight("head", HIDDEN, VOCABULARY, scale=1.0), out="logits")
        self.outputs.insert(0, "logits")

    def _own(self, x: str, layer: int, order: str) -> str:
        caches = []
        for kind in ("key", "value"):
            rows, out = self._heads(x, f"own_{kind}{layer}"), f"present.{layer}.decoder.{kind}"
            past = f"past_key_values.{layer}.decoder.{kind}"
            self.op("Concat", past, rows, out=out, axis=2) if self.step else self.op("Identity", rows, out=out)
            self.outputs.append(out)
            caches.append(out)
        return self._attended(x, f"own{layer}", *caches, order)

    def _other(self, x: str, layer: int, there: str) -> str:
        caches = [f"past_key_values.{layer}.encoder.{kind}" for kind in ("key", "value")]
        if not self.step:
            caches = [f"present.{layer}.encoder.{kind}" for kind in ("key", "value")]
            for kind, out in zip(("key", "value"), caches, strict=True):
                self._heads("encoder_hidden_states", f"other_{kind}{layer}", out)
            self.outputs += caches
        return self._attended(x, f"other{layer}", *caches, there)

    def _heads(self, x: str, name: str, out: str = "") -> str:
        rows = self.op("MatMul", x, self.weight(name, HIDDEN, HEADS * DEPTH))
        split = self.op("Reshape", rows, self.number([0, 0, HEADS, DEPTH]))
        return self.op("Transpose", split, out=out, perm=[0, 2, 1, 3])

    def _attended(self, x: str, name: str, keys: str, values: str, mask: str) -> str:
        query = self.op("Mul", self._heads(x, f"{name}_query"), self.number(np.float32(DEPTH**-0.5)))
        scores = self.op("MatMul", query, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.op("Add", scores, mask) if mask else scores
        rows = self.op("Transpose", self.op("MatMul", self.op("Softmax", scores), values), perm=[0, 2, 1, 3])
        flat = self.op("Reshape", rows, self.number([0, 0, HEADS * DEPTH]))
        return self.op("MatMul", flat, self.weight(f"{name}_out", HEADS * DEPTH, HIDDEN))


def _value(name: str) -> onnx.ValueInfoProto:
    kinds = {
        "input_ids": (INT, ["batch", "new"]),
        "encoder_attention_mask": (INT, ["batch", "encoder_length"]),
        "encoder_hidden_states": (FLOAT, ["batch", "encoder_length", HIDDEN]),
        "logits": (FLOAT, ["batch", "new", VOCABULARY]),
        "use_cache_branch": (BOOL, [1]),
    }
    length = "encoder_length" if "encoder" in name else "past_length" if name.startswith("past") else "total"
    return helper.make_tensor_value_info(name, *kinds.get(name, (FLOAT, ["batch", HEADS, length, DEPTH])))


def _model(nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str], weights: Mapping[str, Any]) -> Any:
    values = [*map(_value, inputs)], [*map(_value, outputs)]
    graph = helper.make_graph(list(nodes), "translator", *values, list(weights.values()))
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def _caches(layers: int) -> list[str]:
    return [
        f"past_key_values.{layer}.{side}.{kind}"
        for layer in range(layers)
        for side in ("decoder", "encoder")
        for kind in ("key", "value")
    ]


def step_model(layers: int = 2, causal: bool = True) -> onnx.ModelProto:
    """Tokens and caches of both kinds in, scores and longer caches out.

    Args:
        causal: a mask tells the order of new tokens; without it the model is right for one of them at a time.
    """
    made = _Graph(True, layers, causal)
    inputs = ["input_ids", "encoder_attention_mask", *_caches(layers)]
    return _model(made.nodes, inputs, made.outputs, made.weights)


def first_model(layers: int = 2) -> onnx.ModelProto:
    """Tokens and the encoder's output in, scores and caches of both kinds out."""
    made = _Graph(False, layers, True)
    inputs = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    return _model(made.nodes, inputs, made.outputs, made.weights)


def merged_model(layers: int = 2) -> onnx.ModelProto:
    """Both in one: `use_cache_branch` decides which; the branch of steps gives empty caches of the encoder's output."""
    first, step = _Graph(False, layers, True), _Graph(True, layers, True)
    nothing = numpy_helper.from_array(np.zeros((0, HEADS, 1, DEPTH), np.float32))
    missing = [name for name in first.outputs if name not in step.outputs]
    empty = [helper.make_node("Constant", [], [name], name=f"step/{name}", value=nothing) for name in missing]
    branches = {}
    for name, nodes in (("then", [*step.nodes, *empty]), ("else", first.nodes)):
        values = [_value(o) for o in first.outputs]
        branches[f"{name}_branch"] = helper.make_graph(list(nodes), name, [], values)
    choice = helper.make_node("If", ["use_cache_branch"], first.outputs, name="choice", **branches)
    inputs = ["input_ids", "encoder_attention_mask", "encoder_hidden_states", *_caches(layers), "use_cache_branch"]
    return _model([choice], inputs, first.outputs, first.weights | step.weights)


def encoder_model() -> onnx.ModelProto:
    """An encoder of one function."""
    value = helper.make_tensor_value_info
    sides = [value(n, FLOAT, ["batch", "length", HIDDEN]) for n in ("features", "last_hidden_state")]
    node = helper.make_node("Tanh", ["features"], ["last_hidden_state"])
    graph = helper.make_graph([node], "encoder", sides[:1], sides[1:])
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def encoder_output(length: int, seed: int = 0) -> np.ndarray:
    """What an encoder might give."""
    return np.random.default_rng(seed).standard_normal((1, length, HIDDEN)).astype(np.float32)


def greedy(hidden: np.ndarray, prompt: Sequence[int], count: int, mask: np.ndarray | None = None) -> list[int]:
    """The tokens that follow by the highest score, as onnxruntime computes them: the first file, then the other."""
    import onnxruntime

    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (first_model(), step_model())
    ]
    mask = np.ones(hidden.shape[:2], np.int64) if mask is None else mask
    kept = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
    ids, tokens = np.array([list(prompt)]), []
    for index in range(count):
        session = sessions[index > 0]
        names = [i.name for i in session.get_inputs()]
        found = session.run(None, {name: {**kept, "input_ids": ids}[name] for name in names})
        outputs = dict(zip([o.name for o in session.get_outputs()], found, strict=True))
        kept |= {n.replace("present", "past_key_values"): a for n, a in outputs.items() if n.startswith("present")}
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        ids = np.array([tokens[-1:]])
    return tokens


def caches_of(hidden: np.ndarray) -> dict[str, np.ndarray]:
    """The caches of an encoder's output, as onnxruntime computes them, by the inputs of the step."""
    import onnxruntime

    model = first_model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {"encoder_hidden_states": hidden, "encoder_attention_mask": np.ones(hidden.shape[:2], np.int64)}
    names = [o.name for o in session.get_outputs() if ".encoder." in o.name]
    found = session.run(names, {**given, "input_ids": np.zeros((1, 1), np.int64)})
    return {n.replace("present", "past_key_values"): a for n, a in zip(names, found, strict=True)}
