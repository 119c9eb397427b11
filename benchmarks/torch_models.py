"""PyTorch models under `torch.compile`: tvmopt's backend, inductor and PyTorch itself, each in processes of its own.

    python benchmarks/torch_models.py                       # all models: right or wrong, compile time, time of a call
    python benchmarks/torch_models.py bert resnet --rounds 3 --json build/torch.json
    python benchmarks/torch_models.py --engines tvmopt      # only compare with PyTorch's results
    python benchmarks/torch_models.py --rounds 3 --json build/torch.json --resume    # go on where a run was stopped

    python benchmarks/torch_models.py --keep build/kept --turns 0    # compile beforehand,
    python benchmarks/torch_models.py --keep build/kept --json build/torch.json    # and only measure later

Weights are random. Models of transformers are cut to few layers and small sizes; those of timm and torchvision are
taken where the package is installed. In each round every engine is started and compiles, with nothing kept of earlier
rounds (`TVMOPT_CACHE=off`, a new folder for inductor) unless `--keep` names a folder for it; then the engines take
turns, one at a time, while the others wait. A call's time is the median of its turns' medians, its ratio the median of
the ratios of turns that stand beside each other, its compile time the least of all first calls.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
CALLS, SECONDS, TURNS = 10, 0.2, 9
"""Of a turn: the least calls, and the seconds after which it ends; and how many turns an engine has in a round."""

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _text(name: str, inputs: str = "ids", **config: Any) -> Callable[[], Made]:
    """A transformer of `transformers`, two layers of 64 channels, unless `config` says otherwise."""

    def make() -> Made:
        import torch
        import transformers

        settings = transformers.AutoConfig.for_model(name)
        small = {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
            "vocab_size": 200, "use_cache": False, "return_dict": True,
        } | config  # fmt: skip
        made = type(settings)(**{k: v for k, v in small.items() if k in config or hasattr(settings, k)})
        model = transformers.AutoModel.from_config(made).eval()
        ids = torch.randint(5, 199, (1, 32))
        if inputs == "pixels":
            size = getattr(made, "image_size", 32)
            return model, (), {"pixel_values": torch.randn(1, 3, size, size)}
        if inputs == "pair":
            return model, (), {"input_ids": ids, "decoder_input_ids": ids[:, :8]}
        if inputs == "samples":
            return model, (), {"input_values": torch.randn(1, 4000)}
        return model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    return make


def _pictures(package: str, name: str, size: int = 96, **options: Any) -> Callable[[], Made]:
    """A model for pictures of `timm` or `torchvision`."""

    def make() -> Made:
        import torch

        if package == "timm":
            import timm

            model = timm.create_model(name, pretrained=False, **options)
        else:
            import torchvision

            model = torchvision.models.get_model(name, weights=None, **options)
        return model.eval(), (torch.randn(1, 3, size, size),), {}

    return make


PATCHES = {"image_size": 32, "patch_size": 8}
MODELS: dict[str, Callable[[], Made]] = {
    "bert": _text("bert"),
    "roberta": _text("roberta", max_position_embeddings=64),
    "distilbert": _text("distilbert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "albert": _text("albert", embedding_size=32),
    "electra": _text("electra", embedding_size=32),
    "mpnet": _text("mpnet"),
    "deberta-v2": _text("deberta-v2"),
    "gpt2": _text("gpt2", n_embd=64, n_layer=2, n_head=4),
    "gpt-neox": _text("gpt_neox"),
    "opt": _text("opt", ffn_dim=128, word_embed_proj_dim=64),
    "llama": _text("llama", num_key_value_heads=2),
    "mistral": _text("mistral", num_key_value_heads=2, head_dim=16),
    "qwen2": _text("qwen2", num_key_value_heads=2),
    "phi": _text("phi"),
    "gemma": _text("gemma", num_key_value_heads=2, head_dim=16),
    "t5": _text("t5", "pair", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4),
    "bart": _text("bart", "pair", d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128),
    "vit": _text("vit", "pixels", **PATCHES),
    "deit": _text("deit", "pixels", **PATCHES),
    "dinov2": _text("dinov2", "pixels", **PATCHES),
    "wav2vec2": _text("wav2vec2", "samples", conv_dim=(32, 32), conv_kernel=(10, 3), conv_stride=(5, 2),
                      num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
    "timm/resnet18": _pictures("timm", "resnet18"),
    "timm/convnext_atto": _pictures("timm", "convnext_atto"),
    "timm/mobilenetv3_small_100": _pictures("timm", "mobilenetv3_small_100"),
    "timm/efficientnet_lite0": _pictures("timm", "efficientnet_lite0"),
    "timm/mixer_s32_224": _pictures("timm", "mixer_s32_224", 224),
    "timm/regnety_002": _pictures("timm", "regnety_002"),
    "torchvision/squeezenet1_1": _pictures("torchvision", "squeezenet1_1"),
    "torchvision/shufflenet_v2_x0_5": _pictures("torchvision", "shufflenet_v2_x0_5"),
    "torchvision/mnasnet0_5": _pictures("torchvision", "mnasnet0_5"),
    "torchvision/densenet121": _pictures("torchvision", "densenet121"),
    "torchvision/googlenet": _pictures("torchvision", "googlenet", init_weights=False),
}  # fmt: skip


def tensors(result: Any) -> list[Any]:
    """The tensors in what a model returns."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if hasattr(result, "values") else result if isinstance(result, list | tuple) else ()
    return [t for value in values for t in tensors(value)]


def work(name: str, engine: str, calls: int) -> None:
    """One engine on one model, in this process: prints its error beside PyTorch and the seconds of the first call, then
    for each line of stdin the median seconds of a turn."""
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model, args, named = MODELS[name]()
    said: list[str] = []
    with torch.inference_mode():
        expected = tensors(model(*args, **named))
        run = model
        if engine == "tvmopt":
            from tvmopt.torch import backend, dynamo

            dynamo.tell = said.append
            options = {"threads": THREADS}
            run = torch.compile(model, backend=backend, options=options)
        elif engine == "inductor":
            run = torch.compile(model)
        begin = time.perf_counter()
        found = tensors(run(*args, **named))
        first = time.perf_counter() - begin
        errors = [
            float((a.double() - b.double()).abs().max() / max(1e-6, float(b.double().abs().max())))
            for a, b in zip(found, expected, strict=True)
        ]
        print(json.dumps({"error": max(errors), "first": first, "eager": said}), flush=True)
        for _ in sys.stdin:
            times: list[float] = []
            end = time.perf_counter() + SECONDS
            while len(times) < calls or time.perf_counter() < end:
                begin = time.perf_counter()
                run(*args, **named)
                times.append(time.perf_counter() - begin)
            print(statistics.median(times), flush=True)


class Apart:
    """:func:`work` in a process of its own, with empty caches, or those of the folder `keep`.

    Attributes:
        told: its error and first call, or why there is none; after :meth:`begin`.
    """

    told: dict[str, Any]

    def __init__(self, name: str, engine: str, calls: int, keep: Path | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        given = {"TVMOPT_CACHE": "off", "TORCHINDUCTOR_CACHE_DIR": self.folder.name, "TOKENIZERS_PARALLELISM": "false"}
        if keep is not None:
            given |= {"TVMOPT_CACHE": str(keep / "tvmopt"), "TORCHINDUCTOR_CACHE_DIR": str(keep / "inductor")}
        self.errors = (Path(self.folder.name) / "stderr").open("w+", encoding="utf-8")
        command = [sys.executable, __file__, "--one", name, engine, "--calls", str(calls)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | given,
        )

    def begin(self) -> None:
        """Wait for the first call."""
        self.told = self.answer() or {"failed": self.reason()}

    def answer(self) -> Any:
        """What the process prints next; None where it ended."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            try:
                return json.loads(text)
            except ValueError:  # a library's own word
                continue
        return None

    def reason(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        return ([text.strip() for text in self.errors if text.strip()] or [f"exit {code}"])[-1]

    def turn(self) -> float:
        """The median seconds of a call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds = self.answer()
        if seconds is None:
            raise RuntimeError(self.reason())
        return float(seconds)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()
        self.folder.cleanup()


def take_turns(engines: list[Apart], turns: int) -> list[list[float]]:
    """The seconds of each engine's turns; the first, in which all warm up, does not count."""
    found = [[engine.turn() for engine in engines] for _ in range(1 + turns)]
    return [list(times) for times in zip(*found[1:], strict=True)]


def compare(
    name: str, engines: list[str], rounds: int, calls: int, turns_each: int = TURNS, keep: Path | None = None
) -> dict[str, Any]:
    """All engines in turn; of each the median call, its ratio beside the first, the least first call, the largest
    error."""
    told: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    turns: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        started: dict[str, Apart] = {}
        for engine in engines:
            if not any("failed" in one for one in told[engine]):
                started[engine] = Apart(name, engine, calls, keep)
                if keep is None:  # first calls that are measured come one by one
                    started[engine].begin()
        for engine, one in started.items():
            if keep is not None:
                one.begin()
            told[engine].append(one.told)
        ready = {e: one for e, one in started.items() if "failed" not in one.told}
        try:
            for engine, times in zip(ready, take_turns([*ready.values()], turns_each), strict=False):
                turns[engine] += times
        finally:
            for one in started.values():
                one.end()
    row: dict[str, Any] = {"model": name}
    for engine, runs in told.items():
        if "failed" in runs[-1]:
            row[engine] = runs[-1]
            continue
        row[engine] = {
            "call": statistics.median(turns[engine] or [math.nan]), "first": min(r["first"] for r in runs),
            "error": max(r["error"] for r in runs), "eager": runs[0]["eager"],
        }  # fmt: skip
        if keep is not None:  # what was kept is no compile
            del row[engine]["first"]
        ours = turns[engines[0]]
        if engine != engines[0] and ours and len(ours) == len(turns[engine]):
            ratios = sorted(a / b for a, b in zip(ours, turns[engine], strict=True))
            row[engine]["ratio"] = [statistics.median(ratios), ratios[0], ratios[-1]]
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [f"{row['model']:32}"]
    for engine in (e for e in row if e != "model"):
        one = row[engine]
        if "failed" in one:
            cells.append(f"{engine}: {one['failed'][:90]}")
            continue
        eager = f", {len(one['eager'])} graphs in PyTorch" if one["eager"] else ""
        if "ratio" in one:
            eager += ", {:.2f} of its time ({:.2f} to {:.2f})".format(*one["ratio"])
        first = f"first {one['first']:5.1f} s, " if "first" in one else ""
        cells.append(f"{engine} {one['call'] * 1e3:8.3f} ms, {first}error {one['error']:.0e}{eager}")
    return " | ".join(cells)


def known(file: Path, engines: list[str]) -> list[dict[str, Any]]:
    """The models of an earlier run that measured the same engines; those that failed are measured again."""
    rows = json.loads(file.read_text(encoding="utf-8"))["models"]
    return [row for row in rows if {*row} == {"model", *engines} and not any("failed" in row[e] for e in engines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="models whose name contains one of these")
    parser.add_argument("--engines", default="tvmopt,inductor,eager")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--turns", type=int, default=TURNS, help="of each engine in a round")
    parser.add_argument("--keep", type=Path, help="a folder for what is compiled; a later run takes it from there")
    parser.add_argument("--json", type=Path, help="written after each model")
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, measure the rest")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "ENGINE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        work(*args.one, args.calls)
        return 0
    engines = args.engines.split(",")
    if args.resume and not args.json:
        parser.error("--resume goes on with the file of --json, which is not given")
    names = [name for name in MODELS if not args.words or any(word in name for word in args.words)]
    rows = known(args.json, engines) if args.resume and args.json.exists() else []
    for number, name in enumerate(names, 1):
        if any(row["model"] == name for row in rows):
            continue
        begin = time.monotonic()
        rows.append(compare(name, engines, args.rounds, args.calls, args.turns, args.keep))
        print(f"{number}/{len(names)} {line(rows[-1])} | {time.monotonic() - begin:.0f} s", flush=True)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps({"threads": THREADS, "load": os.getloadavg(), "models": rows}, indent=1))
    for other in engines[1:]:
        ratios = [r[other]["ratio"][0] for r in rows if "ratio" in r[other]]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"time of {engines[0]} over {other}: {mean:.2f} in the geometric mean of {len(ratios)} models")
    return int(any("failed" in r[engines[0]] or r[engines[0]]["error"] > 1e-3 for r in rows))


if __name__ == "__main__":
    sys.exit(main())
