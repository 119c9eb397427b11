"""Transformers as torch exports them: static after preparation, and right, by torch and onnxruntime."""

from __future__ import annotations

import contextlib
import io
import math
import warnings

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.importer.onnx_check import run_ort, run_relax
from tvmopt import pipeline
from tvmopt.importer import import_model, load, prepare
from tvmopt.importer.protos import static_shape
from tvmopt.targets import Machine

torch = pytest.importorskip("torch")

SHAPE_OPERATORS = {
    "Shape",
    "ConstantOfShape",
    "Range",
    "Expand",
    "Constant",
    "Identity",
    "If",
    "Where",
    "Equal",
}


class Transformer(torch.nn.Module):
    """Embeddings, a hand-written masked attention, a gated MLP: with the sizes read from the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(50, 32)
        self.positions = torch.nn.Embedding(64, 32)
        self.qkv = torch.nn.Linear(32, 96)
        self.norm = torch.nn.LayerNorm(32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, ids, mask):
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length)[None])
        bias = (1.0 - mask[:, None, None, :].float()) * -1e4
        causal = torch.full((length, length), -1e4).triu(1)
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias + causal
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = self.norm(x)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def export(path, dynamo: bool):
    torch.manual_seed(0)
    net = Transformer().eval()
    example = (torch.randint(0, 50, (2, 11)), torch.ones(2, 11, dtype=torch.int64))
    axes = {"ids": {0: "batch", 1: "sequence"}, "mask": {0: "batch", 1: "sequence"}}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            example,
            path,
            input_names=["ids", "mask"],
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=dynamo,
            opset_version=18 if dynamo else 17,
        )
    return net


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.models)], ids=["torchscript", "dynamo"])
def test_a_transformer_imports_static(tmp_path, dynamo):
    path = tmp_path / "t.onnx"
    net = export(path, dynamo)
    assert [str(size) for size in import_model(path).outputs[0].shape] == ["batch", "sequence", "32"]
    for batch, length in ((1, 1), (2, 7), (1, 17)):
        rng = np.random.default_rng(length)
        feeds = {"ids": rng.integers(0, 50, (batch, length)), "mask": rng.integers(0, 2, (batch, length))}
        made = load(path)
        prepared = prepare(made, {"batch": [batch], "sequence": [length]})
        assert not SHAPE_OPERATORS & {n.op_type for n in prepared.graph.node}
        assert static_shape(prepared.graph.output[0].type) == (batch, length, 32)
        np.testing.assert_array_equal(run_ort(prepared, feeds)[0], run_ort(made, feeds)[0])
        imported = import_model(path, {"ids": (batch, length), "mask": (batch, length)})
        with torch.no_grad():
            expected = net(*(torch.from_numpy(feeds[k]) for k in ("ids", "mask"))).numpy()
        np.testing.assert_allclose(run_relax(imported, feeds)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.models)], ids=["torchscript", "dynamo"])
def test_recurrent_layers_of_torch(tmp_path, cell, dynamo):
    """Two layers, both directions, batch first, states returned: each layer is one kernel."""
    torch.manual_seed(0)
    net = getattr(torch.nn, cell)(9, 17, num_layers=2, bidirectional=True, batch_first=True).eval()
    x, path = torch.randn(3, 12, 9), tmp_path / "net.onnx"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(path), input_names=["x"], opset_version=18, dynamo=dynamo)
        y, state = net(x)
    imported = import_model(path)
    machine = Machine.load("cpu").with_cores(2)
    lowered = pipeline.lower(imported.module, machine)
    decomposed = dynamo and cell == "RNN"  # torch's exporter writes its steps out itself
    assert sum(k.calls for k in lowered.kernels if k.family == "recurrent") == (0 if decomposed else 2)
    vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
    got = [t.numpy() for t in vm["main"](tvm.runtime.tensor(x.numpy()))]
    for mine, theirs in zip(got, [y, *(state if cell == "LSTM" else [state])], strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
