"""Decoders beside an encoder as optimum writes them: are the tokens those of the network in float64?

    python benchmarks/decoder_pairs.py --optimum /path/to/python --output pairs.jsonl   # Whisper, Marian, T5, TrOCR
    python benchmarks/decoder_pairs.py Marian --optimum /path/to/python --form two-files

Networks of transformers in the shape of models that people use (Whisper tiny, Marian and T5 of 0.06 to 0.07 B
parameters, TrOCR small), with random weights. `--optimum` names a Python that has `optimum-onnx`, which wants an older
transformers than this one may have; it exports the network and computes the oracle: 128 greedy tokens in float64,
whatever type parts of the network ask for. tvmopt compiles the encoder and the decoder, gets the oracle's tokens one
by one, and each of its highest scores is compared: "departures" counts those that are another token, "margins" how far
apart the two are in float64, "error" and "onnxruntime's error" are the largest distances from float64 - all relative
to the largest score.

`--form` merged takes the one file with an `If`, two-files the steps and the first call. A line is "agrees", "departs"
or "refused" with the message.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TOKENS = 128
HIDDEN, MASK = "encoder_hidden_states", "encoder_attention_mask"
TEXT, SPEECH, PICTURE = "text2text-generation", "automatic-speech-recognition", "image-to-text"
TASKS = {"Whisper": SPEECH, "Marian": TEXT, "T5": TEXT, "TrOCR": PICTURE}
START = 1
"""The token that a text begins with; random weights know no other meaning of it."""


# -- in the Python that has optimum -----------------------------------------------------------------------------


def network(name: str) -> Any:
    """The network with random weights, the same for the same name."""
    import torch
    import transformers as t

    torch.manual_seed(zlib.crc32(name.encode()))
    ends = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": 2, "decoder_start_token_id": START}
    if name == "Whisper":
        sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (
            ("layers", 4), ("attention_heads", 6), ("ffn_dim", 1536))}  # fmt: skip
        config = t.WhisperConfig(
            d_model=384, **sizes, vocab_size=51865, init_std=0.08, begin_suppress_tokens=None, **ends
        )
        return t.WhisperForConditionalGeneration(config).eval()
    if name == "Marian":
        sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (
            ("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))}  # fmt: skip
        words = {"vocab_size": 58101, "max_position_embeddings": 512}
        config = t.MarianConfig(d_model=512, **sizes, **words, init_std=0.07, **ends)
        return t.MarianMTModel(config).eval()
    if name == "T5":
        return t.T5ForConditionalGeneration(t.T5Config(initializer_factor=2.0, **ends)).eval()
    vision = t.DeiTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, image_size=384)
    text = t.TrOCRConfig(
        vocab_size=64044, d_model=256, decoder_layers=6, decoder_attention_heads=8, decoder_ffn_dim=1024,
        cross_attention_hidden_size=384, init_std=0.09, is_decoder=True, add_cross_attention=True, **ends,
    )  # fmt: skip
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = START, 0, 2
    return t.VisionEncoderDecoderModel(config).eval()


def inputs_of(name: str) -> dict[str, Any]:
    """What the encoder reads."""
    rng = np.random.default_rng(0)
    if TASKS[name] == SPEECH:
        return {"input_features": rng.standard_normal((1, 80, 3000)).astype(np.float32)}
    if TASKS[name] == PICTURE:
        return {"pixel_values": rng.standard_normal((1, 3, 384, 384)).astype(np.float32)}
    ids = rng.integers(3, 30000, (1, 24))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def make(name: str, folder: Path) -> None:
    """Export the network into `folder`, and the oracle's tokens and scores as oracle.npz."""
    import torch
    from decoder_networks import in_float64
    from optimum.exporters.onnx import onnx_export_from_model

    torch.set_grad_enabled(False)
    model = network(name)
    onnx_export_from_model(model, folder, task=f"{TASKS[name]}-with-past", do_validation=False)
    given = {n: torch.from_numpy(a) for n, a in inputs_of(name).items()}
    model = model.double()
    given = {n: a.double() if a.is_floating_point() else a for n, a in given.items()}
    token, scores, past = torch.tensor([[START]]), [], None
    with in_float64():
        hidden = model.get_encoder()(**given)
        mask = {"attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
        while len(scores) < TOKENS:
            out = model(encoder_outputs=hidden, decoder_input_ids=token, past_key_values=past, use_cache=True, **mask)
            past, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
            scores.append(out.logits[0, -1].numpy())
    assert scores[0].dtype == np.float64
    np.savez(folder / "oracle.npz", scores=np.array(scores), parameters=sum(p.numel() for p in model.parameters()))


# -- here -------------------------------------------------------------------------------------------------------


def compile_(path: Path, *more: str) -> Path:
    """`tvmopt compile`; raises RuntimeError with what it printed."""
    out = path.with_suffix(".tvmopt")
    command = [sys.executable, "-m", "tvmopt", "compile", str(path), "-o", str(out), "--no-cache", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    return out


def of_onnxruntime(folder: Path, given: Mapping[str, Any], tokens: list[int]) -> np.ndarray:
    """Its scores behind each token: the first call's file, then the steps'."""
    import onnxruntime

    def session(file: str) -> Any:
        return onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])

    (hidden, *_) = session("encoder_model.onnx").run(None, dict(given))
    known = {HIDDEN: hidden, MASK: given.get("attention_mask")}
    run, caches, scores = session("decoder_model.onnx"), {}, []
    for token in tokens:
        values = {"input_ids": np.array([[token]]), **known, **caches}
        wanted = [i.name for i in run.get_inputs()]
        names = [o.name for o in run.get_outputs()]
        found = dict(zip(names, run.run(None, {n: values[n] for n in wanted}), strict=True))
        scores.append(found.pop("logits")[0, -1])
        caches |= {n.replace("present", "past_key_values"): a for n, a in found.items() if n.startswith("present")}
        if len(scores) == 1:
            run = session("decoder_with_past_model.onnx")
    return np.array(scores)


def tried(name: str, form: str, folder: Path, optimum: str, verify: bool) -> dict[str, Any]:
    """Export, compile and compare one pair."""
    from decoders import errors

    import tvmopt
    from tvmopt.errors import TvmoptError
    from tvmopt.generation import encoded

    record: dict[str, Any] = {"decoder": name, "exporter": "optimum", "form": form}
    done = subprocess.run([optimum, __file__, "--make", name, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        return record | {"verdict": "not exported", "message": done.stderr.strip()[-300:]}
    oracle = np.load(folder / "oracle.npz")
    right = oracle["scores"]
    record["parameters"] = int(oracle["parameters"])
    flags = () if verify else ("--no-verify",)
    try:
        given = inputs_of(name)
        side = [f"--shape={n}:{'x'.join(map(str, a.shape))}" for n, a in given.items() if a.ndim == 4]  # its own alone
        encoder = tvmopt.load(compile_(folder / "encoder_model.onnx", *flags, *side))
        first = ("--first", str(folder / "decoder_model.onnx"))
        merged = form == "merged"
        steps = "decoder_model_merged.onnx" if merged else "decoder_with_past_model.onnx"
        model = tvmopt.load(compile_(folder / steps, *flags, *(() if merged else first)))
        decoder = model.decoder(TOKENS + 1, **encoded(encoder, given))
    except (RuntimeError, TvmoptError) as error:
        return record | {"verdict": "refused", "message": str(error)}
    record["verified"] = model.manifest.accuracy.get("verified")
    tokens = [START, *right.argmax(1)[:-1].tolist()]
    ours = np.array([decoder.step(token) for token in tokens])
    departures = int((ours.argmax(1) != right.argmax(1)).sum())
    theirs = of_onnxruntime(folder, given, tokens)
    record |= {"departures": departures, "different tokens": len(set(tokens))}
    record["onnxruntime's departures"] = int((theirs.argmax(1) != right.argmax(1)).sum())
    record["verdict"] = "departs" if departures else "agrees"
    return record | errors(right, ours, theirs) | ({"margins": margins(right, ours)} if departures else {})


def margins(right: np.ndarray, ours: np.ndarray) -> list[float]:
    """How much lower the oracle's scores of other tokens are than its highest, relative to the largest score."""
    rows = np.flatnonzero(ours.argmax(1) != right.argmax(1))
    apart = right[rows].max(1) - right[rows, ours[rows].argmax(1)]
    return [float(f"{value:.2g}") for value in apart / np.abs(right).max()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAIR", help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--optimum", help="a Python that has optimum-onnx (default: this one)", default=sys.executable)
    parser.add_argument("--form", choices=("merged", "two-files"), action="append", help="default: merged")
    parser.add_argument("--output", type=Path, help="a file to which the lines are added")
    parser.add_argument("--folder", type=Path, help="where files lie while they are used (default: the system's)")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="compile without verification")
    parser.add_argument("--make", nargs=2, metavar=("PAIR", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make(args.make[0], Path(args.make[1]))
        return 0
    if unknown := set(args.names) - set(TASKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    verdicts = []
    for name in args.names or TASKS:
        for form in args.form or ["merged"]:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                record = tried(name, form, Path(folder), args.optimum, args.verify)
            verdicts.append(record["verdict"])
            print(json.dumps(record), flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    return int(any(v != "agrees" for v in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
