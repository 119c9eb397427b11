"""Decoders of today's families as exporters write them: are the tokens those of onnxruntime on the same file?

    python benchmarks/decoders.py                              # every family by every exporter
    python benchmarks/decoders.py Llama Qwen3 --exporter torch --output decoders.jsonl
    python benchmarks/decoders.py Qwen2 --size base            # 0.05 to 0.6 B parameters: minutes, and 12 GB of memory
    python benchmarks/decoders.py --table decoders.jsonl       # the lines of a file as a table

The networks are those of transformers with random weights (decoder_networks.py), by default small enough to compile in
seconds; each file has caches as inputs and outputs whose length is open. onnxruntime computes 128 tokens by the highest
score; tvmopt is given the same tokens one by one, and each of its highest scores is compared: "departures" counts those
that are another token. Where a file allows rows rounded to 8 bits (`accuracy_level` 4), onnxruntime computes the file
without that leave. Where the weights are the network's own, torch computes all scores in float64, too: "error" and
"onnxruntime's error" are the largest distances from them relative to the largest score, and "margins" tells of each
departure how far apart the two tokens' scores are in float64, relative to the same.

Exporters are those that are installed: torch (`torch.onnx.export`), torchscript (its older form, `dynamo=False`),
genai (`onnxruntime-genai`, float32 and, as "genai-int4" and "genai-int8", weights of 4 and 8 bits), mobius
(`mobius-onnx`, whose files have Attention of opset 24). A line is "agrees", "departs", "refused" with the message, or
"not exported"; "together" tells whether texts of several lengths may be computed in one step, and whether 4 of them
have the tokens of each alone. "seconds" of a processor and "gigabytes" are what `tvmopt compile` took, verification
included.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from decoder_networks import DECODERS, SIZES, config_of, depth_of, exact, network

EXPORTERS = ("torch", "torchscript", "genai", "genai-int4", "genai-int8", "mobius")
TOKENS, PROMPT = 128, 16
FEW = 10
"""Different tokens below which a text says little: some random weights repeat one for ever."""


def export_torch(name: str, path: Path, size: str = "tiny", dynamo: bool = True) -> None:
    """By `torch.onnx.export`, with caches as inputs and outputs."""
    import torch
    from transformers import DynamicCache

    model = network(name, size)
    config = model.config
    layers, heads = config.num_hidden_layers, getattr(config, "num_key_value_heads", config.num_attention_heads)
    depth = depth_of(config)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key_values: Any) -> Any:
            cache = DynamicCache([(past_key_values[2 * i], past_key_values[2 * i + 1]) for i in range(layers)])
            out = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            kept = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
            return (out.logits, *kept)

    past, new = 5, 3
    caches = [torch.randn(1, heads, past, depth) for _ in range(2 * layers)]
    ids, mask = torch.randint(3, 300, (1, new)), torch.ones(1, past + new, dtype=torch.int64)
    values = (ids, mask, torch.arange(past, past + new)[None], caches)
    pairs = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    pasts, presents = ([f"{word}.{p}" for p in pairs] for word in ("past_key_values", "present"))
    options: dict[str, Any] = {"external_data": size != "tiny"}
    if dynamo:
        open_size = torch.export.Dim.DYNAMIC
        options["dynamic_shapes"] = ({1: open_size}, {1: open_size}, {1: open_size}, [{2: open_size} for _ in caches])
    else:
        names = {"input_ids": "sequence_length", "position_ids": "sequence_length", "attention_mask": "total_length"}
        options["dynamic_axes"] = {n: {1: size} for n, size in names.items()} | {
            n: {2: length} for names, length in ((pasts, "past_length"), (presents, "total_length")) for n in names
        }
    torch.onnx.export(
        Step().eval(), values, path, dynamo=dynamo, verbose=False, input_names=[
            "input_ids", "attention_mask", "position_ids", *pasts],
        output_names=["logits", *presents], **options,
    )  # fmt: skip


def save(name: str, folder: Path, size: str) -> None:
    """The network as transformers saves it, with a tokenizer that exporters ask for."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import PreTrainedTokenizerFast

    network(name, size).save_pretrained(folder)
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.train_from_iterator(["once upon a time"], trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def export(name: str, exporter: str, folder: Path, size: str = "tiny") -> Path:
    """One file; raises what the exporter raises, or RuntimeError with what it printed last."""
    if exporter.startswith("torch"):
        export_torch(name, folder / "model.onnx", size, dynamo=exporter == "torch")
        return folder / "model.onnx"
    saved, out = folder / "saved", folder / "out"
    save(name, saved, size)
    if exporter == "mobius":
        command = [sys.executable, "-m", "mobius", "build", "--config", str(saved), str(out)]
    else:
        precision = exporter.removeprefix("genai").removeprefix("-") or "fp32"
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(saved), "-o", str(out)]
        command += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(out.rglob("*.onnx"))
    if done.returncode or not found:
        raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
    return found[0]


class Oracle:
    """onnxruntime on the file, without leave to round rows, as a decoder."""

    def __init__(self, path: Path, folder: Path, depth: int) -> None:
        import onnxruntime

        from tvmopt.analysis.rounds import may_round
        from tvmopt.bench.decode import _unrounded
        from tvmopt.importer.decoder import find

        model = onnx.load(path, load_external_data=False)
        self.rounds = sum(map(may_round, model.graph.node))
        stored = {t.name for t in model.graph.initializer}
        self.roles = find([i for i in model.graph.input if i.name not in stored], model.graph.output)
        if not self.roles:
            raise RuntimeError("the file has no caches that are found")
        used = _unrounded(path, folder) if self.rounds else str(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(used, options, providers=["CPUExecutionProvider"])
        self.depth = depth  # which some files leave open
        self.types = {i.name: (i.shape, i.type) for i in self.session.get_inputs()}
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self.past = 0
        self.caches = {}
        for cache in self.roles.caches:
            heads = self.types[cache.past][0][1]
            self.caches[cache.past] = np.zeros((1, heads, 0, self.depth), np.float32)

    def put(self, ids: list[int]) -> np.ndarray:
        """The scores behind the last token."""
        roles, total = self.roles, self.past + len(ids)
        given = {roles.ids: np.array([ids]), **self.caches}
        if roles.mask:
            given[roles.mask] = np.ones((1, total), np.int64)
        if roles.positions:
            given[roles.positions] = np.arange(self.past, total)[None]
        names = [roles.logits, *(c.present for c in roles.caches)]
        logits, *kept = self.session.run(names, given)
        self.caches = {c.past: array for c, array in zip(roles.caches, kept, strict=True)}
        self.past = total
        return logits[0, -1]

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
        """The tokens of the highest scores, and all scores."""
        self.reset()
        scores = [self.put(prompt)]
        while len(scores) < count:
            scores.append(self.put([int(scores[-1].argmax())]))
        return np.argmax(scores, axis=1).tolist(), np.array(scores)


def compiled(path: Path, folder: Path, verify: bool) -> dict[str, Any]:
    """What `tvmopt compile` took, if this process starts nothing else; raises RuntimeError with what it printed."""
    command = [sys.executable, "-m", "tvmopt", "compile", str(path), "-o", str(folder / "m.tvmopt"), "--no-cache"]
    done = subprocess.run(command + ["--no-verify"] * (not verify), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": round(used.ru_utime + used.ru_stime, 1), "gigabytes": round(used.ru_maxrss / 2**20, 1)}


def apart(function: Any, *arguments: Any) -> Any:
    """The result of a function in a process of its own, whose memory is free behind it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def tried(
    name: str, exporter: str, verify: bool = True, size: str = "tiny", folder: Path | None = None
) -> dict[str, Any]:
    """Export, compile and compare one decoder."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        return {"decoder": name, "exporter": exporter, "size": size} | _tried(
            name, exporter, verify, size, Path(temporary)
        )


def _tried(name: str, exporter: str, verify: bool, size: str, folder: Path) -> dict[str, Any]:
    import tvmopt
    import tvmopt.errors

    depth = depth_of(config_of(name, size))
    try:
        path = apart(export, name, exporter, folder, size)
        stored = onnx.load(path, load_external_data=False).graph.initializer
        record: dict[str, Any] = {"parameters": sum(int(np.prod(t.dims)) for t in stored)}
    except Exception as error:  # of torch, transformers, a builder
        return {"verdict": "not exported", "message": f"{type(error).__name__}: {error}"[:300]}
    try:
        record |= apart(compiled, path, folder, verify)
        model = tvmopt.load(folder / "m.tvmopt")
        decoder = model.decoder(PROMPT + TOKENS)
    except (RuntimeError, tvmopt.errors.TvmoptError) as error:
        return record | {"verdict": "refused", "message": str(error)}
    record["verified"] = model.manifest.accuracy.get("verified")
    oracle = Oracle(path, folder, depth)
    prompt = np.random.default_rng(0).integers(3, 300, PROMPT).tolist()
    tokens, theirs = oracle.greedy(prompt, TOKENS)
    ours = np.array([decoder.prefill(prompt), *(decoder.step(token) for token in tokens[:-1])])
    other = ours.argmax(1) != np.array(tokens)
    record |= {"rounded": oracle.rounds, "departures": int(other.sum()), "different tokens": len(set(tokens))}
    record["verdict"] = "departs" if other.any() else "agrees"
    record["together"] = together(model) if model.manifest.decoder.placed else "no"
    del oracle, model, decoder
    gc.collect()
    return (
        record
        if exporter.startswith("genai-")
        else record | errors(apart(exact, name, size, prompt, tokens), ours, theirs)
    )


def errors(right: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Both engines' largest errors, and the margins of departures, relative to the largest score."""
    largest, rows = np.abs(right).max(), np.flatnonzero(ours.argmax(1) != theirs.argmax(1))
    apart = [right[row, theirs[row].argmax()] - right[row, ours[row].argmax()] for row in rows]
    found = {"error": np.abs(ours - right).max(), "onnxruntime's error": np.abs(theirs - right).max()}
    told: dict[str, Any] = {name: float(f"{value / largest:.2g}") for name, value in found.items()}
    return told | ({"margins": [float(f"{value / largest:.2g}") for value in apart]} if apart else {})


def together(model: Any) -> str:
    """Whether texts of 1 to 33 tokens have in a batch the tokens of each alone."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 300, n).tolist() for n in (1, 9, 33, 16, 2, 17)]
    found: list[list[int]] = [[] for _ in prompts]
    for number, token in model.decoder(128, sequences=4).generate(prompts, max_new_tokens=32):
        found[number].append(token)
    alone = [list(model.decoder(128).generate(prompt, max_new_tokens=32)) for prompt in prompts]
    return "yes" if found == alone else "other tokens"


def table(lines: list[dict[str, Any]]) -> str:
    """The records in Markdown: a row for each decoder, a column for each exporter."""
    cells = {(r["decoder"], r["exporter"]): cell(r) for r in lines}
    columns = [e for e in EXPORTERS if any(r["exporter"] == e for r in lines)]
    rows = [f"| decoder | {' | '.join(columns)} | together |", "|---|" + "---|" * (len(columns) + 1)]
    for name in dict.fromkeys(r["decoder"] for r in lines):
        told = sorted({r["together"] for r in lines if r["decoder"] == name and "together" in r})
        row = [cells.get((name, e), "") for e in columns]
        rows.append(f"| {name} | {' | '.join(row)} | {', '.join(told)} |")
    return "\n".join(rows)


def cell(record: dict[str, Any]) -> str:
    """What a table says of one file."""
    if "departures" not in record:
        return str(record["verdict"])
    words = f"{TOKENS - record['departures']} of {TOKENS}" + (", rounded" if record["rounded"] else "")
    return words + (" (few tokens)" if record["different tokens"] < FEW else "")


def _child(pipe: Any, *arguments: Any) -> None:
    pipe.send(tried(*arguments))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="DECODER", help=f"of {', '.join(DECODERS)} (default: all)")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append")
    parser.add_argument("--output", type=Path, help="a file to which the lines are added")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the networks (default: tiny)")
    parser.add_argument("--folder", type=Path, help="where files lie while they are used (default: the system's)")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="compile without verification")
    parser.add_argument("--table", type=Path, help="print the lines of a file as a table, and end")
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return 0
    unknown = set(args.names) - set(DECODERS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(DECODERS)}")
    records = []
    spawn = multiprocessing.get_context("spawn")
    for exporter in args.exporter or EXPORTERS:
        for name in args.names or DECODERS:
            ours, theirs = spawn.Pipe()
            child = spawn.Process(target=_child, args=(theirs, name, exporter, args.verify, args.size, args.folder))
            child.start()
            theirs.close()
            try:
                records.append(ours.recv())
            except EOFError:
                records.append({"decoder": name, "exporter": exporter, "verdict": "died"})
            child.join()
            line = json.dumps(records[-1])
            print(line, flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(line + "\n")
    print(table(records), file=sys.stderr)
    wrong = [r for r in records if r["verdict"] == "died" or (r["verdict"] == "departs" and not r["rounded"])]
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
