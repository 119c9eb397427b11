"""The benchmark suite's models as ONNX files with seeded random weights - for bench, tests and demos.

Nine classic networks come from the graphs that ship inside the ``onnx`` package (their weights there are
`ConstantOfShape` nodes, all alike, which make every output the same and hide every error); eight more are
exported from ``transformers`` configurations with ``torch`` (extra ``models``). Nothing is downloaded.

    python benchmarks/models.py                      # all of them, into benchmarks/models/
    python benchmarks/models.py resnet50 bert_base   # some
    python benchmarks/models.py resnet50 --batch 8   # resnet50_b8.onnx
    python benchmarks/models.py --list

Weights are drawn so that the numbers mean something: a convolution's or GEMM's output keeps unit scale, a
BatchNormalization's mean and variance are the statistics of what reaches it, the last layer's logits have a
spread of about 3. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from classic import classic, shrunk

FOLDER = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Sizes:
    """What an exported model is made for.

    Attributes:
        batch: leading dimension.
        image: pixels along a side of a picture.
        tokens: of a text; None: as many as the suite has for the model.
    """

    batch: int = 1
    image: int = 224
    tokens: int | None = None


@dataclass(frozen=True)
class Entry:
    """One model of the suite.

    Attributes:
        name: file stem.
        origin: ``"light"`` (a graph of the onnx package) or ``"torch"`` (exported here).
        gmacs: published multiply-adds of one inference at batch 1, in 1e9, where there is such a figure.
        source: the light file, or the name of the maker function.
        side: of the pictures of its small form, see :func:`write`; 0 where it has none.
    """

    name: str
    origin: str
    source: str
    gmacs: float | None = None
    side: int = 0


SUITE: tuple[Entry, ...] = (
    Entry("alexnet", "light", "bvlc_alexnet", 0.655),
    Entry("zfnet512", "light", "zfnet512", None, 96),
    Entry("vgg19", "light", "vgg19", 19.6, 64),
    Entry("squeezenet", "light", "squeezenet", 0.352),
    Entry("inception_v1", "light", "inception_v1", 1.43, 96),
    Entry("inception_v2", "light", "inception_v2", 2.02, 96),
    Entry("resnet50_caffe2", "light", "resnet50", 4.09, 96),
    Entry("densenet121", "light", "densenet121", 2.83, 96),
    Entry("shufflenet", "light", "shufflenet", 0.125),
    Entry("resnet50", "torch", "resnet50", 4.09, 96),
    Entry("mobilenet_v2", "torch", "mobilenet_v2", 0.301, 96),
    Entry("efficientnet_b0", "torch", "efficientnet_b0", 0.386, 96),
    Entry("convnext_tiny", "torch", "convnext_tiny", 4.46, 96),
    Entry("vit_base", "torch", "vit_base", 17.6, 32),
    Entry("bert_base", "torch", "bert_base", 11.2, 96),
    Entry("gpt2", "torch", "gpt2", None, 96),
    Entry("llama_12l", "torch", "llama_12l", None, 96),
)
BY_NAME = {entry.name: entry for entry in SUITE}


def write(
    name: str,
    folder: Path = FOLDER,
    *,
    batch: int = 1,
    seed: int = 0,
    force: bool = False,
    torchscript: bool = False,
    small: bool = False,
) -> Path:
    """Write one model of the suite (once; `force` writes it again) and return its path.

    Args:
        name: a name of :data:`SUITE`.
        batch: leading dimension; other than 1 only for the exported models.
        seed: of the weights.
        torchscript: export with torch's older exporter instead, as ``NAME_ts.onnx``.
        small: as ``NAME_small.onnx``, for pictures of 96x96 (VGG-19: 64x64, ViT: 32x32) and texts of 4 tokens: for
            processors that are emulated. Only the fully connected layer behind a classic network's pictures becomes
            smaller, too. A small network stays as it is.

    Raises:
        KeyError: no such model. ValueError: a batch for a classic network.
    """
    entry = BY_NAME[name]
    small = small and entry.side > 0
    stem = name + (f"_b{batch}" if batch != 1 else "") + ("_ts" if torchscript else "") + ("_small" if small else "")
    path = folder / f"{stem}.onnx"
    if path.exists() and not force:
        return path
    if entry.origin == "light" and (batch != 1 or torchscript):
        raise ValueError(f"{name}: a classic network is not exported; batch 1 is written into its graph")
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    if entry.origin == "light":
        model = classic(entry.source, seed)
        onnx.save(shrunk(model, entry.side) if small else model, part)
    else:
        export(entry.source, part, batch, seed, torchscript=torchscript, side=entry.side if small else 0)
    part.replace(path)  # whole, or not there
    return path


def write_open(name: str, folder: Path = FOLDER, *, seed: int = 0) -> Path:
    """Write an exported text model with an open batch and length (once), as ``NAME_open.onnx``, and return its path."""
    import torch

    path = folder / f"{name}_open.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    model, inputs = MAKERS[BY_NAME[name].source](Sizes(batch=2))
    _randomise(model, torch.Generator().manual_seed(seed))
    model.eval()
    axes = tuple(dict.fromkeys((0, 1), torch.export.Dim.AUTO) for _ in inputs)
    part, options = path.with_suffix(".part"), {"input_names": list(inputs), "output_names": ["output"]}
    torch.onnx.export(
        model, tuple(inputs.values()), part, dynamo=True, dynamic_shapes=(axes,), external_data=False, verbose=False,
        **options,
    )  # fmt: skip
    _scrub(part)
    part.replace(path)
    return path


# -- the exported networks -------------------------------------------------------------------------


def export(source: str, path: Path, batch: int = 1, seed: int = 0, *, torchscript: bool = False, side: int = 0) -> None:
    """Export one torch model to `path`, and check onnxruntime's outputs against torch's.

    Args:
        torchscript: use the older exporter, which leaves Shape/Gather/Concat chains in the graph.
        side: of the pictures of a small network, whose texts have 4 tokens; 0: those of the full one.
    """
    import torch

    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    model, inputs = MAKERS[source](Sizes(batch, image=side, tokens=4) if side else Sizes(batch))
    _randomise(model, torch.Generator().manual_seed(seed))
    _calibrate_batchnorm(model, inputs)
    model.eval()
    expected = model(*inputs.values())
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": ["output"]}
    if torchscript:
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=False, opset_version=17, **options)
    else:
        torch.onnx.export(
            model, tuple(inputs.values()), path, dynamo=True, external_data=False, verbose=False, **options
        )  # fmt: skip
    _scrub(path)
    found = _onnxruntime(path, {name: t.numpy() for name, t in inputs.items()})[0]
    error = float(np.abs(found - expected.numpy()).max() / np.abs(expected.numpy()).max())
    if not error < 1e-4:
        raise RuntimeError(f"{path}: onnxruntime differs from torch by {error:.1e} of the largest output")


def _scrub(path: Path) -> None:
    """Drop the exporter's metadata: stack traces with local paths, which differ from machine to machine."""
    model = onnx.load(path)
    graph = model.graph
    for item in [
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ]:
        del item.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    onnx.save(model, path)


def _randomise(model: Any, generator: Any) -> None:
    """Weights of unit gain, biases, norms and layer scales around 1: no branch may vanish from a check."""
    import torch
    from torch import nn

    def normal(tensor: Any, std: float, mean: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                normal(tensor, 0.1)
            elif tensor.dim() >= 2 and name == "weight":
                conv1d = type(module).__name__ == "Conv1D"  # GPT-2 keeps its weights as (in, out)
                fan_in = tensor.shape[0] if conv1d else tensor[0].numel()
                normal(tensor, (2.0 if isinstance(module, nn.Conv2d) else 1.0) ** 0.5 / fan_in**0.5)
            elif "bias" in name:
                normal(tensor, 0.05)
            elif tensor.dim() == 1:  # norm weights, layer scale
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            else:  # class token, position embedding
                normal(tensor, 0.1)
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def _calibrate_batchnorm(model: Any, inputs: dict[str, Any]) -> None:
    """Set each BatchNorm's running statistics to those of the activations that reach it."""
    from torch import nn

    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    for norm in norms:
        norm.momentum = 1.0
    model(*inputs.values())


def _wrap(model: Any, pick: Callable[[Any], Any], names: tuple[str, ...]) -> Any:
    """A module of positional tensors in, one tensor out, as the exporters like it."""
    from torch import nn

    class OneOutput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return pick(self.model(**dict(zip(names, tensors, strict=True))))

        def tie_weights(self) -> None:
            self.model.tie_weights()

    return OneOutput()


def _image(sizes: Sizes) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(sizes.batch, 3, sizes.image, sizes.image)}


def _classifier(kind: str, sizes: Sizes, **options: Any) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_labels=1000, **options)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    return _wrap(model, lambda out: out.logits, ("pixel_values",)), _image(sizes)


def _text(model: Any, batch: int, length: int, pick: Callable[[Any], Any], *names: str) -> tuple[Any, dict[str, Any]]:
    import torch

    tensors = {
        "input_ids": torch.randint(0, model.config.vocab_size, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
        "token_type_ids": torch.zeros(batch, length, dtype=torch.int64),
    }
    return _wrap(model, pick, names), {name: tensors[name] for name in names}


def _bert(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    import transformers

    model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return _text(model, sizes.batch, sizes.tokens or 128, lambda out: out.last_hidden_state, *names)


def _gpt2(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return _text(model, sizes.batch, sizes.tokens or 64, lambda out: out.logits, "input_ids")


def _llama(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, max_position_embeddings=1024, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return _text(model, sizes.batch, sizes.tokens or 64, lambda out: out.logits, "input_ids")


MAKERS: dict[str, Callable[[Sizes], tuple[Any, dict[str, Any]]]] = {
    "resnet50": lambda sizes: _classifier("ResNet", sizes),
    "mobilenet_v2": lambda sizes: _classifier("MobileNetV2", sizes, image_size=sizes.image),
    "efficientnet_b0": lambda sizes: _classifier(
        "EfficientNet", sizes, width_coefficient=1.0, depth_coefficient=1.0, image_size=sizes.image, hidden_dim=1280
    ),
    "convnext_tiny": lambda sizes: _classifier("ConvNext", sizes, image_size=sizes.image),
    "vit_base": lambda sizes: _classifier("ViT", sizes, image_size=sizes.image),
    "bert_base": _bert,
    "gpt2": _gpt2,
    "llama_12l": _llama,
}


# -- the check and the command ---------------------------------------------------------------------


def _onnxruntime(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def sample_inputs(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs of a suite model: unit normals for images, token numbers, all-ones masks."""
    model = onnx.load(path, load_external_data=False)
    weights = {t.name for t in model.graph.initializer}
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for item in model.graph.input:
        if item.name in weights:
            continue
        dims = [d.dim_value for d in item.type.tensor_type.shape.dim]
        if "mask" in item.name:
            feeds[item.name] = np.ones(dims, np.int64)
        elif item.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            feeds[item.name] = rng.integers(0, 2 if "type" in item.name else 30000, dims)
        else:
            feeds[item.name] = rng.standard_normal(dims, dtype=np.float32)
    return feeds


def check(path: Path) -> str:
    """Run a model in onnxruntime on two inputs; a line about its output.

    Raises:
        RuntimeError: the output is not finite, constant, or does not depend on the input.
    """
    first, second = (_onnxruntime(path, sample_inputs(path, seed))[0] for seed in (0, 1))
    if not np.isfinite(first).all():
        raise RuntimeError(f"{path}: the output is not finite")
    change = float(np.abs(first - second).max() / np.abs(first).max())
    if first.std() == 0 or change < 1e-2:
        raise RuntimeError(f"{path}: degenerate output (std {first.std():.2g}, change {change:.2g})")
    size = path.stat().st_size / 1e6
    return f"{size:7.1f} MB  output {first.shape}, largest {np.abs(first).max():.3g}, changes by {change:.0%}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the benchmark suite's ONNX models.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torchscript", action="store_true", help="torch's older exporter: NAME_ts.onnx")
    parser.add_argument("--force", action="store_true", help="write a model that exists again")
    parser.add_argument("--list", action="store_true", help="the names, and nothing else")
    args = parser.parse_args(arguments)
    if args.list:
        print("\n".join(f"{entry.name:18}{entry.origin}" for entry in SUITE))
        return 0
    unknown = sorted(set(args.names) - set(BY_NAME))
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    failed = 0
    for name in args.names or list(BY_NAME):
        start = time.perf_counter()
        try:
            path = write(
                name,
                args.folder,
                batch=args.batch,
                seed=args.seed,
                force=args.force,
                torchscript=args.torchscript,
            )
            print(f"{name:18}{check(path)}  ({time.perf_counter() - start:.0f} s)", flush=True)
        except (RuntimeError, ValueError, ImportError) as error:
            failed += 1
            print(f"{name:18}{type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
