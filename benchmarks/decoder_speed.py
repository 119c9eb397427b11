"""Tokens a second of a decoder, and the share of the memory's bandwidth that a step uses - for a quiet machine.

    python benchmarks/decoder_speed.py --output benchmarks/results/MACHINE/decoders  # 0.5 B: an hour or two
    python benchmarks/decoder_speed.py --size small --rounds 1 --launches 1 --output /tmp/d  # does it work here?

onnxruntime-genai's builder writes a Llama with random weights, in float32 and in 4 bits. Each file is given to
`tvmopt bench --decode` with onnxruntime and onnxruntime-genai, for prompts of 128 and of 512 tokens, one thread and
two, and steps of 8 texts. Scores are compared before anything is timed. The tables are printed and kept with all
samples: tokens a second, tvmopt's time over the engine's with its interval, and "of floor", which for a step is the
weights' bytes times the tokens a second over the bandwidth that as many threads read just before.

`--gguf int4=FILE.gguf` adds llama.cpp on a file of the same weights. The builder has no weights of 8 bits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import decoder_networks
import decoders

SIZES = {
    "0.5B": {
        "hidden_size": 1280, "num_hidden_layers": 24, "num_attention_heads": 20, "num_key_value_heads": 5,
        "intermediate_size": 3456, "vocab_size": 32000, "max_position_embeddings": 1024, "initializer_range": 0.02,
    },
    "small": {"num_hidden_layers": 2, "max_position_embeddings": 256},
}  # fmt: skip
EXPORTERS = {"fp32": "genai", "int4": "genai-int4"}


def timed(path: Path, prompt: int, engines: str, args: argparse.Namespace, out: Path) -> int:
    """Run `tvmopt bench --decode` on one file and length of a prompt; its tables become OUT.md, all of it OUT.json."""
    command = [
        sys.executable, "-m", "tvmopt", "bench", str(path), "--decode", "--json", "--threads", args.threads,
        "--prompt-tokens", str(prompt), "--new-tokens", str(args.new_tokens), "--sequences", str(args.sequences),
        "--against", engines, "--rounds", str(args.rounds), "--launches", str(args.launches),
        "--markdown", str(out.with_suffix(".md")),
    ]  # fmt: skip
    with out.with_suffix(".json").open("w") as file:
        return subprocess.run(command, stdout=file, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.5B")
    parser.add_argument("--weights", choices=EXPORTERS, action="append", help="default: all")
    parser.add_argument("--prompts", default="128,512", help="lengths of prompts (default: 128,512)")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--gguf", action="append", default=[], metavar="WEIGHTS=FILE")
    parser.add_argument("--output", type=Path, required=True, help="a folder for the tables and the JSON of each run")
    args = parser.parse_args()
    files = dict(word.split("=", 1) for word in args.gguf)
    decoder_networks.SMALL.update(SIZES[args.size])
    args.output.mkdir(parents=True, exist_ok=True)
    codes = []
    for weights in args.weights or EXPORTERS:
        with tempfile.TemporaryDirectory() as folder:
            path = decoders.export("Llama", EXPORTERS[weights], Path(folder))
            engines = "onnxruntime,onnxruntime-genai"
            engines += f",llama-cpp:gguf={files[weights]}" if weights in files else ""
            for prompt in map(int, args.prompts.split(",")):
                out = args.output / f"llama-{args.size.replace('.', '_')}-{weights}-{prompt}"
                codes.append(timed(path, prompt, engines, args, out))
                told = out.with_suffix(".md").read_text() if not codes[-1] else f"ended with {codes[-1]}"
                print(f"{weights}, a prompt of {prompt} tokens\n\n{told}", flush=True)
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
