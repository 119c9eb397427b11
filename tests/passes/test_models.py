"""Operator counts of whole models after the graph passes: a rewrite that quietly stops applying fails here.

The networks of the onnx package need nothing else; those marked `models` are exported here, tiny, by both of
torch's exporters, and their numbers checked against onnxruntime.
"""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.passes.helpers import ops, run
from tvmopt.importer import import_model
from tvmopt.pipeline import graph_passes
from tvmopt.report import DecisionLog
from tvmopt.targets import Machine

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
ALWAYS_GONE = ("nn.batch_norm", "nn.dropout", "broadcast_to", "stack", "divide", "power", "nn.pad", "squeeze")


def optimised(source, **shapes) -> tuple[tvm.IRModule, Counter[str]]:
    """A model after the graph passes, and its operators."""
    module = import_model(source, **shapes).module
    for graph_pass in graph_passes(Machine.load("cpu"), DecisionLog()):
        module = graph_pass(module)
    relax.analysis.well_formed(module)
    return module, ops(module)


# name: transposes, convolutions, multiplies, reshapes. ShuffleNet's sixteen are its channel shuffles.
LIGHT_COUNTS = {
    "squeezenet": (1, 26, 0, 2),
    "shufflenet": (17, 49, 0, 33),
    "resnet50": (1, 53, 0, 1),
    "inception_v1": (1, 57, 4, 1),
    "inception_v2": (1, 69, 0, 1),
    "densenet121": (1, 121, 62, 1),
}


@pytest.mark.parametrize("name", LIGHT_COUNTS)
def test_classic_networks(name):
    _, found = optimised(LIGHT / f"light_{name}.onnx")
    counts = tuple(found[k] for k in ("permute_dims", "nn.conv2d", "multiply", "reshape"))
    assert counts == LIGHT_COUNTS[name], dict(found)
    kept = {k for k in ALWAYS_GONE if found[k]}
    assert kept <= ({"power", "divide", "nn.pad"} if name == "inception_v1" else set()), dict(found)  # LRN


def _exports():
    """name: (maker of a torch model and its inputs, operators expected)."""
    import torch
    import transformers as T

    torch.manual_seed(0)
    size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100)
    ids = torch.randint(0, 100, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 10:] = 0
    text = {"input_ids": ids}
    image = {"pixel_values": torch.randn(1, 3, 64, 64)}
    small = {"pixel_values": torch.randn(1, 3, 32, 32)}
    gpt2 = T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64, use_cache=False)
    llama = T.LlamaConfig(**size, num_key_value_heads=2, max_position_embeddings=64, use_cache=False)
    vit = T.ViTConfig(**{**size, "vocab_size": None}, image_size=32, patch_size=8, num_labels=10)
    t5 = T.T5Config(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64, vocab_size=100)
    mobile = T.MobileNetV2Config(num_labels=10, depth_multiplier=0.35)
    convnext = T.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10)
    masked = {**text, "attention_mask": mask}
    return {
        "bert": (
            T.BertModel(T.BertConfig(**size), add_pooling_layer=False),
            masked,
            {"nn.attention_bias": 2, "nn.layer_norm": 5, "nn.gelu": 2, "permute_dims": 0, "nn.softmax": 0},
        ),
        "gpt2": (
            T.GPT2LMHeadModel(gpt2),
            text,
            {"nn.attention": 2, "nn.gelu_tanh": 2, "nn.layer_norm": 5, "permute_dims": 0, "split": 0},
        ),
        "llama": (
            T.LlamaForCausalLM(llama),
            text,
            {"nn.attention": 2, "nn.rms_norm": 5, "nn.silu": 2, "permute_dims": 0, "nn.softmax": 0},
        ),
        "t5": (
            T.T5EncoderModel(t5),
            masked,
            {"nn.attention_bias": 2, "nn.rms_norm": 5, "permute_dims": 0, "nn.softmax": 0},
        ),
        "vit": (
            T.ViTForImageClassification(vit),
            small,
            {"nn.attention": 2, "nn.layer_norm": 5, "nn.gelu": 2, "permute_dims": 1, "nn.conv2d": 1},
        ),
        "mobilenet_v2": (
            T.MobileNetV2ForImageClassification(mobile),
            image,
            {"nn.conv2d": 52, "permute_dims": 1, "mean": 1, "nn.pad": 0, "multiply": 0},
        ),
        "convnext": (
            T.ConvNextForImageClassification(convnext),
            image,
            {
                "nn.conv2d": 9,
                "permute_dims": 1,
                "nn.layer_norm": 10,
                "nn.gelu": 5,
                "multiply": 0,
                "reshape": 0,
            },
        ),
    }


NAMES = ("bert", "gpt2", "llama", "t5", "vit", "mobilenet_v2", "convnext")
UNEXPORTABLE = {("gpt2", "torchscript"), ("llama", "torchscript")}  # aten::diff has no symbolic


@pytest.mark.models
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", NAMES)
def test_exported_networks(name, exporter):
    if (name, exporter) in UNEXPORTABLE:
        pytest.skip("torch's older exporter cannot export it")
    import torch

    model, inputs, expected = _exports()[name]
    data, feeds = _export(torch, model, inputs, exporter)
    module, found = optimised(data)
    assert {k: found[k] for k in expected} == expected, dict(found)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    reference = session.run(None, {n: feeds[n] for n in names})
    for a, b in zip(run(module, [feeds[n] for n in names]), reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(np.abs(b).max()))


def _export(torch, model, inputs, exporter) -> tuple[bytes, dict[str, np.ndarray]]:
    """The model's first output as ONNX bytes, and the inputs as arrays."""

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model.eval()

        def forward(self, *tensors):
            return self.model(**dict(zip(inputs, tensors, strict=True)))[0]

    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:  # scales and biases that hide nothing
                p.add_(torch.rand_like(p) * 0.5)
        buffer = io.BytesIO()
        options = dict(input_names=list(inputs), output_names=["y"])
        arguments = tuple(inputs.values())
        if exporter == "dynamo":
            program = torch.onnx.export(First(), arguments, dynamo=True, verbose=False, **options)
            program.save(buffer)
        else:
            torch.onnx.export(First(), arguments, buffer, dynamo=False, opset_version=17, **options)
    return buffer.getvalue(), {k: v.numpy() for k, v in inputs.items()}
