"""What quantising costs each layer: the float and the quantised model side by side, and each layer by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tvmopt.errors import ModelError, first_line, reason
from tvmopt.quantization.data import Array, Feeds
from tvmopt.quantization.records import Layer

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
BINS = 64
OWN = "::own"
"""Follows the name of a layer's result where it is computed from exact inputs."""


def session(model: onnx.ModelProto) -> Any:
    """onnxruntime's session of a model, quiet and as the file says.

    Raises:
        ModelError: onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever onnxruntime raises
        told = f"onnxruntime cannot load the model: {first_line(reason(error))}"
        raise ModelError(told, fix="try the other --method, or --exclude the nodes that it names") from error


class Ratio:
    """Signal and noise, added up over samples."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0

    def add(self, exact: Array, found: Array) -> None:
        wide = exact.astype(np.float64)
        self.signal += float(np.square(wide).sum())
        self.noise += float(np.square(found.astype(np.float64) - wide).sum())

    @property
    def decibels(self) -> float | None:
        """``10 log10(signal / noise)``; None where there is no noise."""
        if self.noise == 0 or not math.isfinite(self.noise):
            return None
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


def layers_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The convolutions and products of a model."""
    return [n for n in model.graph.node if n.op_type in PRODUCTS and not n.domain]


def measure(
    exact: onnx.ModelProto, quantised: onnx.ModelProto, feeds: Iterable[Feeds]
) -> tuple[list[Layer], dict[str, float | None]]:
    """The layers with what they lose, and what the outputs lose; both models are run on each sample."""
    nodes = layers_of(exact)
    outputs = [o.name for o in exact.graph.output]
    computed = {o for n in quantised.graph.node for o in n.output}
    shared = [n for n in nodes if n.output[0] in computed]
    alone, needed, quantised_layers = _layers_alone(exact, quantised, shared)
    inside = [n.output[0] for n in shared]
    float_session = session(_with_outputs(exact, [*needed, *(n.output[0] for n in nodes)]))
    whole_session = session(_with_outputs(quantised, inside))
    alone_session = session(alone) if shared else None  # onnxruntime takes no model without nodes
    given = {i.name for i in exact.graph.input}
    own, total = ({n.output[0]: Ratio() for n in nodes} for _ in range(2))
    ends = {name: Ratio() for name in outputs}
    ranges: dict[str, _Range] = {n.output[0]: _Range() for n in nodes}
    for sample in feeds:
        real = run(float_session, sample)
        found = run(whole_session, sample)
        single = run(alone_session, {n: sample[n] if n in given else real[n] for n in needed}) if shared else {}
        for name in inside:
            total[name].add(real[name], found[name])
            own[name].add(real[name], single[name + OWN])
        for name in outputs:
            ends[name].add(real[name], found[name])
        for name, seen in ranges.items():
            seen.add(real[name])
    layers = []
    for node in nodes:
        name, seen = node.output[0], ranges[node.output[0]]
        quantized = name in quantised_layers
        loss = own[name].decibels if quantized else None
        low, high = seen.bounds
        layers.append(Layer(node.name, node.op_type, quantized, loss, total[name].decibels, low, high, seen.counts))
    return layers, {name: ratio.decibels for name, ratio in ends.items()}


class _Range:
    """The least and the largest value of a tensor over samples, and how often values between them occur."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.counted = np.zeros(BINS, np.int64)

    def add(self, values: Array) -> None:
        low, high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        if (low, high) != (self.low, self.high):
            if self.counted.any():  # the counts so far move to the steps of the wider range
                middles = self.low + (np.arange(BINS) + 0.5) * (self.high - self.low) / BINS
                self.counted = np.histogram(middles, BINS, (low, high), weights=self.counted)[0].astype(np.int64)
            self.low, self.high = low, high
        self.counted += np.histogram(values, BINS, (low, high))[0]

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(int(c) for c in self.counted)


def run(made: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of a session, by name."""
    names = [o.name for o in made.get_outputs()]
    return dict(zip(names, made.run(names, dict(feeds)), strict=True)) if names else {}


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with more outputs; inputs are none."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {o.name for o in copy.graph.output} | {i.name for i in copy.graph.input}
    for name in dict.fromkeys(names):
        if name not in known:
            copy.graph.output.append(helper.make_empty_tensor_value_info(name))
    return copy


def _layers_alone(
    exact: onnx.ModelProto, quantised: onnx.ModelProto, layers: Sequence[onnx.NodeProto]
) -> tuple[onnx.ModelProto, list[str], set[str]]:
    """A model of all quantised layers, each computed from tensors of the float model; the names of these; and the
    results whose layer quantises something.

    What a layer reads is followed back to the nearest tensor that the float model has too.
    """
    borders = {o for n in exact.graph.node for o in n.output} | {i.name for i in exact.graph.input}
    weights = {t.name: t for t in quantised.graph.initializer}
    borders -= weights.keys()
    producer = {o: n for n in quantised.graph.node for o in n.output}
    kept: dict[str, onnx.NodeProto] = {}
    needed: dict[str, None] = {}
    used: dict[str, None] = {}

    def follow(name: str) -> bool:
        """Keep what computes a tensor; whether anything of it is quantised."""
        if not name:
            return False
        if name in weights:
            used[name] = None
            return False
        if name in borders:
            needed[name] = None
            return False
        node = producer[name]
        inner = [follow(i) for i in node.input]
        kept.setdefault(name, node)
        return any(inner) or node.op_type in ("QuantizeLinear", "DequantizeLinear")

    found, results = set(), []
    for layer in layers:
        name = layer.output[0]
        node = onnx.NodeProto()
        node.CopyFrom(producer[name])
        if any([follow(i) for i in node.input]) or node.op_type == "MatMulNBits":
            found.add(name)
        node.output[0] = name + OWN
        results.append(node)
    types = {v.name: v.type for v in [*exact.graph.input, *exact.graph.value_info]}
    inputs = [
        helper.make_value_info(n, types.get(n) or helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
        for n in needed
    ]
    ends = [helper.make_empty_tensor_value_info(n.output[0]) for n in results]
    order = {id(n): i for i, n in enumerate(quantised.graph.node)}
    nodes = sorted({id(n): n for n in kept.values()}.values(), key=lambda n: order[id(n)])
    graph = helper.make_graph([*nodes, *results], "layers", inputs, ends, [weights[n] for n in used])
    alone = helper.make_model(graph, opset_imports=quantised.opset_import, ir_version=quantised.ir_version)
    return alone, list(needed), found
