"""Decoders of today's families as exporters write them: are the tokens those of onnxruntime on the same file?

    python benchmarks/decoders.py                              # every family by every exporter
    python benchmarks/decoders.py Llama Qwen3 --exporter torch --output decoders.jsonl
    python benchmarks/decoders.py --table decoders.jsonl       # the lines of a file as a table

The networks are those of transformers with random weights, small enough to compile in seconds; each file has caches as
inputs and outputs whose length is open. onnxruntime computes 128 tokens by the highest score; tvmopt is given the same
tokens one by one, and each of its highest scores is compared: "departures" counts those that are another token. Where a
file allows rows rounded to 8 bits (`accuracy_level` 4), onnxruntime computes the file without that leave.

Exporters are those that are installed: torch (`torch.onnx.export`), genai (`onnxruntime-genai`, float32 and, as
"genai-int4", weights of 4 bits), mobius (`mobius-onnx`, whose files have Attention of opset 24). A line is "agrees",
"departs", "refused" with the message, or "not exported"; "together" tells whether texts of several lengths may be
computed in one step, and whether 4 of them have the tokens of each alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 384, "max_position_embeddings": 256, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
FEWER = {"num_key_value_heads": 1, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": None, "head_dim": 16},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Gemma": FEWER,
    "Gemma2": FEWER | {"sliding_window": 4096, "query_pre_attn_scalar": 16},
    "Gemma3": FEWER | {"sliding_window": 4096, "query_pre_attn_scalar": 16},
    "Phi": {"num_key_value_heads": 4},
    "Phi3": {"num_key_value_heads": 4, "sliding_window": None},
    "GPT2": {"num_key_value_heads": 4},
    "GPTNeoX": {"num_key_value_heads": 4},
    "Qwen3Moe": EXPERTS | {"head_dim": 16, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "head_dim": 16},
}
"""The configurations, beside :data:`SMALL`."""

EXPORTERS = ("torch", "genai", "genai-int4", "mobius")
TOKENS, PROMPT = 128, 16
FEW = 10
"""Different tokens below which a text says little: some random weights repeat one for ever."""


def config_of(name: str) -> Any:
    """The configuration of a family."""
    import transformers

    options = SMALL | DECODERS[name]
    if name == "GPT2":
        options |= {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_inner": 160}
    kind = {"Gemma3": "Gemma3Text"}.get(name, name)
    return getattr(transformers, f"{kind}Config")(**options)


def depth_of(config: Any) -> int:
    """Numbers of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def network(name: str) -> Any:
    """A family's network with random weights, the same for the same name."""
    import torch
    import transformers

    torch.set_grad_enabled(False)
    torch.manual_seed(zlib.crc32(name.encode()))
    kind = {"GPT2": "GPT2LMHead"}.get(name, f"{name}ForCausalLM").removesuffix("Model")
    kind = kind if kind.endswith("ForCausalLM") else f"{kind}Model"
    made = getattr(transformers, kind)(config_of(name)).eval()
    if hasattr(made.config, "num_experts_per_tok"):  # a loop over the experts that have tokens is not exported
        made.set_experts_implementation("batched_mm")
    return made


def export_torch(name: str, path: Path) -> None:
    """By `torch.onnx.export`, with caches as inputs and outputs."""
    import torch
    from transformers import DynamicCache

    model = network(name)
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
    open_size = torch.export.Dim.DYNAMIC
    shapes = ({1: open_size}, {1: open_size}, {1: open_size}, [{2: open_size} for _ in caches])
    torch.onnx.export(
        Step().eval(), values, path, dynamo=True, dynamic_shapes=shapes, verbose=False, external_data=False,
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{p}" for p in pairs)],
        output_names=["logits", *(f"present.{p}" for p in pairs)],
    )  # fmt: skip


def save(name: str, folder: Path) -> None:
    """The network as transformers saves it, with a tokenizer that exporters ask for."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import PreTrainedTokenizerFast

    network(name).save_pretrained(folder)
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.train_from_iterator(["once upon a time"], trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def export(name: str, exporter: str, folder: Path) -> Path:
    """One file; raises what the exporter raises, or RuntimeError with what it printed last."""
    if exporter == "torch":
        export_torch(name, folder / "model.onnx")
        return folder / "model.onnx"
    saved, out = folder / "saved", folder / "out"
    save(name, saved)
    if exporter == "mobius":
        command = [sys.executable, "-m", "mobius", "build", "--config", str(saved), str(out)]
    else:
        precision = "int4" if exporter == "genai-int4" else "fp32"
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

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The tokens of the highest scores."""
        self.reset()
        tokens = [int(self.put(prompt).argmax())]
        while len(tokens) < count:
            tokens.append(int(self.put(tokens[-1:]).argmax()))
        return tokens


def tried(name: str, exporter: str, verify: bool = True) -> dict[str, Any]:
    """Export, compile and compare one decoder."""
    import tvmopt

    record: dict[str, Any] = {"decoder": name, "exporter": exporter}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            path = export(name, exporter, folder)
            oracle = Oracle(path, folder, depth_of(config_of(name)))
        except Exception as error:  # of torch, transformers, onnxruntime, a builder
            return record | {"verdict": "not exported", "message": f"{type(error).__name__}: {error}"[:300]}
        record["parameters"] = sum(
            int(np.prod(t.dims)) for t in onnx.load(path, load_external_data=False).graph.initializer
        )
        start = time.perf_counter()
        try:
            made = tvmopt.compile(path, output=folder / "m.tvmopt", cache=False, verify=verify)
            model = tvmopt.load(folder / "m.tvmopt")
            decoder = model.decoder(PROMPT + TOKENS)
        except tvmopt.errors.TvmoptError as error:
            return record | {"verdict": "refused", "message": str(error)[:400]}
        record["seconds"] = round(time.perf_counter() - start, 1)
        record["verified"] = made.report.accuracy.get("verified")
        prompt = np.random.default_rng(0).integers(3, 300, PROMPT).tolist()
        tokens = oracle.greedy(prompt, TOKENS)
        scores = [decoder.prefill(prompt), *(decoder.step(token) for token in tokens[:-1])]
        departures = sum(int(s.argmax()) != token for s, token in zip(scores, tokens, strict=True))
        record |= {"rounded": oracle.rounds, "departures": departures, "different tokens": len(set(tokens))}
        record["verdict"] = "agrees" if not departures else "departs"
        return record | {"together": together(model) if model.manifest.decoder.placed else "no"}


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
            child = spawn.Process(target=_child, args=(theirs, name, exporter, args.verify))
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
