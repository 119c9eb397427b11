"""Steps and prompts of one decoder by several engines in turns, within a minute or two of a quiet machine.

    tvmopt compile model.onnx -o model.tvmopt --threads 1+2 --no-verify       # beforehand
    python benchmarks/decoder_turns.py model.tvmopt model.onnx --threads 2 --gguf q4_0.gguf --output turns.jsonl

`tvmopt bench --decode` compiles, compares scores token by token and times many rounds; this script only times what is
made already. Each engine has a process of its own and keeps its caches as its users would
(`tvmopt.bench.runners.decoder`), and stands still while others have their turns, as some engines' threads go on
looking for work: tvmopt, onnxruntime and onnxruntime-genai on the same file, llama.cpp on a GGUF file
of the same shape by the package `xllamacpp`, whose server tells the times of a prompt and of a token. With `--texts 8`
tvmopt and onnxruntime go on with so many texts at once, too; `--also int8=other.tvmopt` adds another artifact of the
same file, "tvmopt, int8". A round is a read of memory, then each engine's prompt
and steps, in an order that turns round; its figures are the prompt's time and the median of its steps.

A line of the output has all of them in milliseconds, "GB/s" that as many threads read, the median and the range over
the rounds of tvmopt's time over each engine's, and, with `--weights MB`, the share of the bandwidth: the bytes a step
reads over its time and over what was read in the same round. "error" is the largest distance of the scores behind the
prompt from onnxruntime's, relative to the largest of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FED = 128
"""Tokens that there is room for behind the prompt."""
RUNNERS = {"tvmopt": "TvmoptDecoder", "onnxruntime": "OnnxRuntimeDecoder", "onnxruntime-genai": "OnnxRuntimeGenai"}
LLAMA = "llama.cpp"
TEXTS = "tvmopt, texts", "onnxruntime, texts"


def job_of(name: str, args: argparse.Namespace) -> Any:
    """What a runner is told."""
    import onnx

    from tvmopt.bench.records import Job
    from tvmopt.importer.decoder import find, onnx_interface

    roles = find(*onnx_interface(args.model))
    graph = onnx.load(args.model, load_external_data=False).graph
    known = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input}
    shapes = {c.past: (1, known[c.past][1], 0, known[c.past][3] or args.depth) for c in roles.caches}
    phase = "together" if name in TEXTS else "step"
    artifact = also(args).get(name, args.artifact)
    return Job(name.partition(",")[0], args.model, artifact, args.threads, shapes=shapes, phase=phase)


def also(args: argparse.Namespace) -> dict[str, str]:
    """Further artifacts by the names of their engines."""
    pairs = (word.partition("=") for word in args.also)
    return {f"tvmopt, {name}": artifact for name, _, artifact in pairs}


class Fed:
    """An engine by its runner: a prompt, and tokens that are known."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        from tvmopt.bench.runners import decoder as runners

        rng = np.random.default_rng(0)
        prompt, self.fed = rng.integers(3, 300, args.prompt), rng.integers(3, 300, FED)
        job = job_of(name, args)
        self.runner = getattr(runners, RUNNERS[job.engine])(job)
        self.runner.load()
        self.one = name not in TEXTS
        texts = np.array([1 if self.one else args.texts])
        self.runner.bind({"prompt": prompt, "fed": self.fed, "texts": texts})
        self.scores = np.array(self.runner.scores, np.float32).reshape(-1)

    def round(self, steps: int) -> dict[str, Any]:
        """Seconds of the prompt, unless it is several texts', and of a step."""
        found: dict[str, Any] = {}
        if self.one:
            begin = time.perf_counter()
            self.runner.begin()
            found["prompt"] = time.perf_counter() - begin
        self.runner.step(int(self.fed[0]))
        times = []
        for token in self.fed[:steps]:
            begin = time.perf_counter()
            self.runner.step(int(token))
            times.append(time.perf_counter() - begin)
        self.runner.rewind()
        return found | {"step": float(np.median(times))}


class Llama:
    """llama.cpp's server, asked in this process; every prompt begins with another token, so that nothing is kept."""

    scores = None

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel = str(args.gguf), args.prompt + FED, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
        self.server, self.asked = xllamacpp.Server(params), 0
        self.prompt = np.random.default_rng(0).integers(3, 300, args.prompt).tolist()
        self.round(1)

    def round(self, steps: int) -> dict[str, Any]:
        """Seconds of the prompt and of a step, as the server tells them."""
        self.asked += 1
        request = {"prompt": [3 + self.asked, *self.prompt[1:]], "max_tokens": steps + 1, "temperature": 0.0}
        answer = self.server.handle_completions(request | {"cache_prompt": False, "ignore_eos": True})
        told = answer["timings"]
        return {"prompt": told["prompt_ms"] / 1e3, "step": told["predicted_ms"] / told["predicted_n"] / 1e3}


def serve(name: str, args: argparse.Namespace, pipe: Any) -> None:
    """The process of an engine."""
    try:
        engine = (Llama if name == LLAMA else Fed)(name, args)
    except Exception as error:  # an engine that is not installed, or refuses the file
        pipe.send(f"{type(error).__name__}: {error}"[:300])
        return
    pipe.send({"scores": engine.scores})
    while (steps := pipe.recv()) is not None:
        pipe.send(engine.round(steps))


class Process:
    """An engine's process, stopped but in its turn."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(name, args, theirs), daemon=True)
        self.process.start()
        self.told = self.pipe.recv()
        self._signal(signal.SIGSTOP)

    def round(self, steps: int) -> dict[str, Any]:
        """Its turn: what the engine's own `round` tells."""
        self._signal(signal.SIGCONT)
        self.pipe.send(steps)
        found: dict[str, Any] = self.pipe.recv()
        self._signal(signal.SIGSTOP)
        return found

    def end(self) -> None:
        self._signal(signal.SIGCONT)
        self.pipe.send(None)

    def _signal(self, number: int) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)


def started(names: list[str], args: argparse.Namespace) -> dict[str, Process]:
    """The processes of the engines that are ready; what the others said goes to stderr."""
    ready = {}
    for name in names:
        process = Process(name, args)
        if isinstance(process.told, str):
            print(f"{name}: {process.told}", file=sys.stderr)
        else:
            ready[name] = process
    return ready


def errors(scores: dict[str, Any]) -> dict[str, float]:
    """Each engine's distance from onnxruntime's scores behind the prompt."""
    right = scores.get("onnxruntime")
    if right is None:
        return {}
    others = {n: s for n, s in scores.items() if s is not None and n not in (*TEXTS, "onnxruntime")}
    return {n: float(f"{np.abs(s - right).max() / np.abs(right).max():.2g}") for n, s in others.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", help="compiled beforehand")
    parser.add_argument("model", help="the ONNX file that it was made of")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--texts", type=int, default=1, help="time steps of so many texts at once, too")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=ARTIFACT", help="another artifact of it")
    parser.add_argument("--gguf", type=Path, help="add llama.cpp on this file")
    parser.add_argument("--without", action="append", default=[], choices=tuple(RUNNERS), help="leave an engine out")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12, help=f"of a round, {FED - 1} at most")
    parser.add_argument("--weights", type=float, help="megabytes that a step reads")
    parser.add_argument("--depth", type=int, default=64, help="numbers of a head, where the file leaves it open")
    parser.add_argument("--output", type=Path, help="a file to which the line is added")
    args = parser.parse_args()
    from tvmopt.analysis.peaks import read_bandwidth

    names = [*(name for name in RUNNERS if name not in args.without), *also(args)]
    names += [name for name in TEXTS if args.texts > 1 and name.partition(",")[0] in names]
    names += [LLAMA] if args.gguf else []
    engines = started(names, args)
    scores = {name: engine.told["scores"] for name, engine in engines.items()}
    rounds: list[dict[str, Any]] = []
    rates = []
    try:
        for number in range(args.rounds):
            rates.append(read_bandwidth(args.threads))
            order = list(engines)[:: 1 if number % 2 == 0 else -1]
            rounds.append({name: engines[name].round(args.steps) for name in order})
    finally:
        for engine in engines.values():
            engine.end()
    line: dict[str, Any] = {"file": Path(args.artifact).name, "threads": args.threads, "prompt tokens": args.prompt}
    line["GB/s"] = [round(rate / 1e9, 1) for rate in rates]
    for what in ("prompt", "step"):
        timed = [n for n in engines if what in rounds[0][n]]
        line[what] = {n: [round(r[n][what] * 1e3, 2) for r in rounds] for n in timed}
        ratios = {n: [r["tvmopt"][what] / r[n][what] for r in rounds] for n in timed if n != "tvmopt"}
        line[f"{what}, tvmopt's time over"] = {
            n: [round(float(f(v)), 3) for f in (np.median, np.min, np.max)] for n, v in ratios.items()
        }
    if args.weights:
        shares = [args.weights * 1e6 / r["tvmopt"]["step"] / b for r, b in zip(rounds, rates, strict=True)]
        line["share of the bandwidth"] = [round(float(f(shares)), 3) for f in (np.median, np.min, np.max)]
    line["error"] = errors(scores)
    print(json.dumps(line))
    if args.output:
        with args.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
