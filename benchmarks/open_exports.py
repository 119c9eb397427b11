"""Networks exported with open dimensions, compiled without --shape, beside onnxruntime at random sizes.

    python benchmarks/open_exports.py                    # every network, by both of torch's exporters
    python benchmarks/open_exports.py Bert Swin --exporter torchscript
    python benchmarks/open_exports.py --output open.jsonl --sizes 20

The networks are those of transformers at sizes that compile in seconds, with random weights; batch, length and, where
the network takes any picture, height and width are open. Each is a line of JSON: what was asked, "agrees", "differs",
"refused" with the message, or "not exported"; the ranges that were chosen; and the largest error over the largest value
of onnxruntime's output, over all sizes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from exports import DECODER, IMAGE, TEXT
from models import _calibrate_batchnorm, _randomise, _scrub, _wrap

from tvmopt.errors import InputError

Config = tuple[str, str, dict[str, Any]]
AUDIO = TEXT | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
WHISPER = {
    "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_layers": 1, "decoder_attention_heads": 4, "max_source_positions": 64,
}  # fmt: skip
SWIN = {"image_size": 64, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
PICTURE = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}

LIMIT = 5e-4
"""Of the largest value. MobileNetV2 amplifies rounding: at 171x171 ours and onnxruntime's output are both 1.1e-4 from
that in float64."""

NETWORKS: dict[str, Config] = {
    "Bert": ("Model", "text", TEXT),
    "GPT2": ("Model", "masked", {"n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}),
    "Llama": ("Model", "masked", DECODER),
    "T5": ("EncoderModel", "text", {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 128, "d_kv": 16}),
    "ViT": ("Model", "batch", IMAGE),
    "ResNet": ("Model", "image", PICTURE | {"embedding_size": 16}),
    "MobileNetV2": ("Model", "image", {"depth_multiplier": 0.35}),
    "Swin": ("Model", "batch", SWIN),
    "Segformer": ("Model", "image", PICTURE),
    "ConvNext": ("Model", "image", PICTURE),
    "Whisper": ("Model.encoder", "mel", WHISPER),
    "Wav2Vec2": ("Model", "audio", AUDIO),
}  # fmt: skip
AXES = {
    "text": {0: "batch", 1: "length"},
    "masked": {0: "batch", 1: "length"},
    "batch": {0: "batch"},
    "image": {0: "batch", 2: "height", 3: "width"},
    "mel": {0: "batch"},
    "audio": {0: "batch", 1: "samples"},
}


def export(name: str, path: Path, exporter: str) -> None:
    """Write one network with open dimensions; the same name gives the same weights."""
    import torch
    import transformers

    torch.set_grad_enabled(False)
    torch.manual_seed(zlib.crc32(name.encode()))
    which, kind, options = NETWORKS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    if exporter == "torchscript":
        config._attn_implementation = "eager"
    first, _, rest = which.partition(".")
    model = getattr(transformers, f"{name}{first}")(config)
    model = getattr(model, rest) if rest else model
    inputs = _inputs(kind, config)
    wrapped = _wrap(model, lambda out: out.last_hidden_state, tuple(inputs))
    _randomise(wrapped, torch.Generator().manual_seed(1))
    _calibrate_batchnorm(wrapped, inputs)
    wrapped.eval()
    values = tuple(inputs.values())
    shared = {"input_names": list(inputs), "output_names": ["output"], "verbose": False, "external_data": False}
    if exporter == "dynamo":
        axes = tuple({axis: torch.export.Dim.AUTO for axis in AXES[kind]} for _ in inputs)
        torch.onnx.export(wrapped, values, path, dynamo=True, dynamic_shapes=(axes,), **shared)
    else:
        named = dict.fromkeys(inputs, AXES[kind])
        torch.onnx.export(wrapped, values, path, dynamo=False, dynamic_axes=named, opset_version=17, **shared)
    _scrub(path)


def _inputs(kind: str, config: Any) -> dict[str, Any]:
    """An example of each input, as torch's tensors."""
    import torch

    if kind == "mel":
        return {"input_features": torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)}
    if kind == "audio":
        return {"input_values": torch.randn(2, 4000)}
    if kind in ("image", "batch"):
        return {"pixel_values": torch.randn(2, 3, 64, 64)}
    ids = {"input_ids": torch.randint(0, config.vocab_size, (2, 17))}
    return ids if kind == "text" else ids | {"attention_mask": torch.ones(2, 17, dtype=torch.int64)}


def tried(name: str, exporter: str, count: int, seed: int) -> dict[str, Any]:
    """Export, compile and compare one network."""
    import onnxruntime

    import tvmopt

    record: dict[str, Any] = {"network": name, "exporter": exporter}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            export(name, path, exporter)
        except Exception as error:
            return record | {"verdict": "not exported", "message": f"{type(error).__name__}: {error}"[:300]}
        start = time.perf_counter()
        try:
            compiled = tvmopt.compile(path, output=path.with_suffix(".tvmopt"), cache=False)
        except tvmopt.errors.TvmoptError as error:
            return record | {
                "verdict": "refused",
                "seconds": round(time.perf_counter() - start, 1),
                "message": str(error),
            }
        record["seconds"] = round(time.perf_counter() - start, 1)
        record["verified"] = compiled.report.accuracy.get("verified")
        model = tvmopt.load(path.with_suffix(".tvmopt"))
        record["shapes"] = {i.name: [str(size) for size in i.shape] for i in model.inputs}
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return record | compared(model, session, np.random.default_rng(seed), count)


def compared(model: Any, session: Any, rng: np.random.Generator, count: int) -> dict[str, Any]:
    """The largest error at `count` random sizes."""
    worst, sizes, done = 0.0, None, 0
    for _ in range(50 * count):
        try:
            feeds = drawn(model, rng)
            ours = model.run(feeds)
        except InputError:  # a condition of the model's sizes does not hold
            continue
        try:
            theirs = session.run(list(ours), feeds)
        except Exception as error:  # onnxruntime raises a class of its own for each status code
            return {"verdict": "onnxruntime refuses", "message": str(error)[:300], "at": str(_shapes(feeds))}
        for mine, reference in zip(ours.values(), theirs, strict=True):
            if mine.shape != reference.shape:
                return {"verdict": "differs", "sizes": str(_shapes(feeds)), "message": "shapes"}
            scale = float(np.abs(reference).max()) or 1.0
            error = float(np.abs(mine - reference).max()) / scale
            if not error <= worst:
                worst, sizes = error, _shapes(feeds)
        done += 1
        if done == count:
            break
    verdict = "agrees" if done == count and worst < LIMIT else "differs"
    return {"verdict": verdict, "sizes tried": done, "worst": worst, "at": str(sizes)}


def _shapes(feeds: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in feeds.items()}


def drawn(model: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs at random sizes within the ranges, small enough to be quick."""
    sizes = {}
    for name, known in model.symbols.items():
        limit = min(known.max, max(4 * known.min, 6 if known.opt == 1 else 200))
        sizes[name] = int(rng.integers(known.min, limit + 1))
    feeds = {}
    for info in model.inputs:
        shape = [size if isinstance(size, int) else size.at(sizes) for size in info.shape]
        if info.name == "attention_mask":
            feeds[info.name] = np.ones(shape, info.dtype)
        elif np.issubdtype(info.dtype, np.integer):
            feeds[info.name] = rng.integers(0, 500, shape).astype(info.dtype)
        else:
            feeds[info.name] = rng.standard_normal(shape).astype(info.dtype)
    return feeds


def _child(pipe: Any, *arguments: Any) -> None:
    pipe.send(tried(*arguments))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), action="append")
    parser.add_argument("--sizes", type=int, default=20, help="random sizes of each network (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a file to which the lines are added")
    args = parser.parse_args()
    unknown = set(args.names) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    verdicts: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    for name in args.names or NETWORKS:
        for exporter in args.exporter or ("dynamo", "torchscript"):
            ours, theirs = spawn.Pipe()
            child = spawn.Process(target=_child, args=(theirs, name, exporter, args.sizes, args.seed))
            child.start()
            theirs.close()
            try:
                record = ours.recv()
            except EOFError:
                record = {"network": name, "exporter": exporter, "verdict": "died"}
            child.join()
            verdicts[record["verdict"]] += 1
            line = json.dumps(record)
            print(line, flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(line + "\n")
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()), file=sys.stderr)
    return int(set(verdicts) != {"agrees"})


if __name__ == "__main__":
    raise SystemExit(main())
