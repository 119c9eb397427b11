"""`tvmopt bench --decode` as a function: tokens a second of a prompt and of the steps behind it, each engine in turn.

A step reads every weight once, so its floor is the bytes of the weights over the bandwidth of memory; that is measured
with the same number of threads before every launch of the engines, so it saw the same machine as they did.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.amounts import check_seed
from tvmopt.analysis.comparator import Comparison, compare
from tvmopt.analysis.metrics import ModelMetrics, metrics
from tvmopt.analysis.peaks import Peaks, cache_sizes, measure_peaks, read_bandwidth
from tvmopt.analysis.rounds import LEVEL, may_round
from tvmopt.bench.machine import describe_machine
from tvmopt.bench.measure import Plan
from tvmopt.bench.records import BenchResult, Case, Job
from tvmopt.bench.run import Settings, Subject, run_case
from tvmopt.bench.runners import make, parse
from tvmopt.bench.runners.decoder import FED, PROMPT, SCORES, TEXTS, TOGETHER
from tvmopt.bench.stats import Rules
from tvmopt.children import Progress
from tvmopt.dims import PAST
from tvmopt.errors import InputError
from tvmopt.importer.protos import node_name

PHASES = ("prefill", "step")

EXACT, ROUNDED = 1e-3, 0.5
"""By how much scores may differ, relative to the largest: where `MatMulNBits` asks for `accuracy_level` 4, engines may
round the activations to 8 bits, and where caches are asked for that store their rows rounded. The first moved the
scores of random models by 1.6 to 15 %; those of another model differ by more than the largest."""


@dataclass(frozen=True)
class DecodingSubject(Subject):
    """A decoder with its prompt and the tokens behind it.

    Attributes:
        may_round: the products whose activations the file lets an engine round to 8 bits.
        head: the product that makes the scores; of a prompt it is needed for the last token alone.
        bandwidths: bytes a second from memory, as measured before each launch so far.
    """

    may_round: frozenset[str] = frozenset()
    head: str = ""
    bandwidths: list[float] = field(default_factory=list, compare=False)

    @property
    def batch(self) -> int:
        """Tokens of a call."""
        if self.phase == TOGETHER:
            return int(self.feeds[TEXTS][0])
        return len(self.feeds[PROMPT]) if self.phase == "prefill" else 1

    @property
    def reference_phase(self) -> str:
        """Of the reference, which computes the first text alone."""
        return "step"

    def judge(self, settings: Settings) -> Callable[..., Comparison]:
        """Scores against onnxruntime's, after the prompt and after each token behind it."""
        allowed = settings.tolerance
        stored = {parse(engine, "step")[1].get("kv_cache", "fp32") for engine in settings.engines}
        rounds = bool(self.may_round or stored - {"fp32"})
        allowed = (ROUNDED if rounds else EXACT) if allowed is None else allowed

        def judged(reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> Comparison:
            return compare(reference, outputs, rtol=allowed)

        return judged

    def reference(self, folder: Path) -> str:
        """The same model without leave to round: what the file means by definition."""
        return _unrounded(Path(self.onnx), folder) if self.may_round else self.onnx

    def told(self, reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, str]:
        """How many tokens are the same where all engines go on from the same ones."""
        mine, theirs = (np.asarray(o.get(SCORES, np.zeros((0, 1)))).argmax(-1) for o in (outputs, reference))
        same = int((mine == theirs).sum()) if mine.shape == theirs.shape else 0
        return {"tokens": f"{same} of {len(theirs)} as onnxruntime's"}

    def before_launch(self, threads: int) -> None:
        """Measure the bandwidth."""
        self.bandwidths.append(read_bandwidth(threads))

    def floor(self, peaks: Peaks, precision: str) -> tuple[float, str, str]:
        """Weights over the bandwidth just measured, or operations over the machine's peaks: products that may be
        rounded are products of bytes."""
        rate = float(np.median(self.bandwidths)) if self.bandwidths else peaks.bandwidth["dram"]
        tokens = self.batch if self.phase == "prefill" else 1
        flops = {op.name: op.flops // (tokens if op.name == self.head else 1) for op in self.cost.ops}
        of_bytes = sum(count for name, count in flops.items() if name in self.may_round)
        others = sum(flops.values()) - of_bytes
        compute = others / peaks.compute(precision) + of_bytes / peaks.compute("int8")
        read = self.cost.read_bytes / rate
        if compute > read:
            words = f"{others / 1e9:.2f} GFLOP at the measured peak"
            if of_bytes:
                words += f", {of_bytes / 1e9:.2f} GFLOP at that of products of bytes"
            return compute, "compute", words
        words = f"{self.cost.read_bytes / 1e6:.1f} MB of weights at {rate / 1e9:.1f} GB/s, read from memory meanwhile"
        if self.cost.read_bytes < cache_sizes()[1]:
            words += "; they fit into the last cache, so a step may take less"
        return read, "memory", words


def bench_decoders(
    models: Sequence[str | Path],
    settings: Settings | None = None,
    *,
    prompt_tokens: int = 128,
    new_tokens: int = 128,
    sequences: int = 1,
    plan: Plan | None = None,
    rules: Rules | None = None,
    source: str | Path | None = None,
    progress: Progress | None = None,
    finished: Callable[[Case], None] | None = None,
) -> BenchResult:
    """Time engines on decoders, interleaved, after comparing their scores.

    Args:
        models: ONNX files with caches as inputs and outputs, or tvmopt artifacts (then `source` is the ONNX file).
        prompt_tokens: of a prompt of random tokens, which is one call. new_tokens: behind it, one call each.
        sequences: times besides a step of so many texts together; tvmopt's have several lengths.
        finished: called with each case as soon as it is done.

    Returns:
        Two cases for each model and number of threads, ``phase`` "prefill" and "step", and "together" where there are
        several texts. Throughput is tokens a second; the floor of a step is the time in which memory delivers the
        weights.

    Raises:
        InputError: an unknown engine, a missing file, a model that is no decoder or is too short for so many tokens.
    """
    settings, plan, rules = settings or Settings(), plan or Plan(), rules or Rules()
    if settings.inputs:
        raise InputError(
            "inputs are not given to decoders.",
            where="-i",
            fix="--prompt-tokens and --new-tokens say how many are drawn",
        )
    for flag, count in (("--prompt-tokens", prompt_tokens), ("--new-tokens", new_tokens)):
        if count < 1:
            raise InputError(f"{count} tokens cannot be timed.", where=flag, fix="give 1 or more")
    if sequences < 1:
        raise InputError(f"{sequences} texts cannot be timed.", where="--sequences", fix="give 1 or more")
    phases = (*PHASES, TOGETHER) if sequences > 1 else PHASES
    for unusable, flag in (
        (settings.batches, "--batch"),
        (settings.shapes, "--shape"),
        (settings.streams > 1, "--streams"),
    ):
        if unusable:
            raise InputError(
                f"decoders are timed one text at a time, without {flag}.", where=flag, fix=f"leave out {flag}"
            )
    for spec in settings.engines:
        name, options = parse(spec, "step")
        make(Job(name, "", options=options, phase="step"))
    machine, cases, used = describe_machine(), [], {}
    with tempfile.TemporaryDirectory(prefix="tvmopt-bench-") as folder:
        kept = settings if settings.save else replace(settings, save=folder, reuse=True)  # both phases use one artifact
        for model in models:
            home = Path(tempfile.mkdtemp(dir=folder))
            subject = _subject(model, source, prompt_tokens, new_tokens, settings, home, sequences)
            for threads in settings.threads:
                peaks = measure_peaks(threads) if settings.floor else None
                if peaks:
                    used[str(threads)] = asdict(peaks)
                for phase in phases:
                    at = _at(subject, phase)
                    case = run_case(at, threads, kept, plan, rules, peaks, progress)
                    cases.append(case)
                    if finished:
                        finished(case)
    asked = asdict(settings) | {"plan": asdict(plan), "rules": asdict(rules)}
    asked |= {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "sequences": sequences}
    return BenchResult(machine, asked, tuple(cases), used)


@dataclass(frozen=True)
class _Decoder:
    """What both phases share: the subject without its phase, and the costs of a call of each."""

    subject: DecodingSubject
    costs: dict[str, ModelMetrics]


def _at(decoder: _Decoder, phase: str) -> DecodingSubject:
    return replace(decoder.subject, phase=phase, cost=decoder.costs[phase], bandwidths=[])


def _subject(
    model: str | Path, source: str | Path | None, prompt: int, new: int, settings: Settings, folder: Path,
    texts: int = 1,
) -> _Decoder:  # fmt: skip
    """Read a decoder, draw its tokens; `folder` is for a file that has to be written."""
    from tvmopt.api import is_artifact
    from tvmopt.importer import load, open_model, prepare
    from tvmopt.importer.decoder import OTHER_ATTENTION, find

    artifact = str(Path(model).resolve()) if is_artifact(model) else ""
    file = Path(source or "") if artifact else Path(model)
    if not file.is_file():
        what = f"{model} is an artifact; the other engines need its ONNX file" if artifact else f"no file {file}"
        raise InputError(
            what,
            where=str(model),
            fix="give the ONNX file, too: --model MODEL.onnx, or source='MODEL.onnx'" if artifact else "check the path",
        )
    file = _steps(file, folder)
    loaded = load(file)
    roles = find(loaded.graph.input, loaded.graph.output)
    prepared = prepare(loaded)
    ranges = open_model.read(prepared).ranges
    past = next((name for name in ranges if name.startswith(PAST)), "")
    others = [name for name in ranges if name != past]
    if roles and any(OTHER_ATTENTION.search(value.name) for value in loaded.graph.input):
        raise _looks_elsewhere(file)
    if not roles or not past or len(others) != 1:
        raise InputError(
            "the model is no decoder with open lengths.",
            where=str(file),
            fix="export it with past_key_values.* and present.*; `tvmopt inspect` shows what was found",
        )
    if prompt + new > ranges[past].max + 1:
        raise InputError(
            f"{prompt} and {new} tokens are more than the model takes, {ranges[past].max + 1}.",
            where=str(file),
            fix="give less to --prompt-tokens and --new-tokens",
        )
    sizes = {"prefill": {past: 0, others[0]: prompt}, "step": {past: prompt, others[0]: 1}}
    sizes |= {TOGETHER: {past: prompt, others[0]: texts}} if texts > 1 else {}
    costs = {phase: _cost(loaded, prepared, at, file.name) for phase, at in sizes.items()}
    caches = {t.name: t.shape for t in costs["prefill"].inputs}
    empty = {c.past: caches[c.past] for c in roles.caches}
    generator = np.random.default_rng(check_seed(settings.seed))
    vocabulary = _vocabulary(prepared, roles.logits)
    feeds = {name: generator.integers(0, vocabulary, n) for name, n in ((PROMPT, prompt), (FED, new))}
    feeds[TEXTS] = np.array([texts])
    rounded = frozenset(node_name(node) for node in loaded.graph.node if may_round(node))
    subject = DecodingSubject(
        Path(model).name, str(file.resolve()), artifact, empty, feeds, costs["step"], "step", rounded,
        _head(prepared.graph, roles.logits),
    )  # fmt: skip
    return _Decoder(subject, costs)


def _steps(file: Path, folder: Path) -> Path:
    """The file; of one with two forms of a decoder (`use_cache_branch`) the steps, which also compute prompts, written
    into `folder`: every engine gets the same nodes.

    Raises:
        InputError: the decoder looks at an encoder's output.
    """
    from tvmopt.importer.pairs import pair

    both = pair(file)
    if both is None:
        return file
    if both.beginning is not None:
        raise _looks_elsewhere(file)
    onnx.save(both.step, folder / file.name, save_as_external_data=True, location=f"{file.name}.data")
    return folder / file.name


def _looks_elsewhere(file: Path) -> InputError:
    return InputError(
        "the decoder looks at an encoder's output, and --decode times decoders of their own text.",
        where=str(file),
        fix="time one call of the file of the steps: tvmopt bench without --decode, --shape for the lengths",
    )


def _head(graph: Any, logits: str) -> str:
    """The name of the product that makes the scores; "" where more than a function of each score follows it."""
    makers = {name: node for node in graph.node for name in node.output}
    name = logits
    while (node := makers.get(name)) is not None:
        if node.op_type in ("MatMul", "Gemm", "MatMulNBits"):
            return node_name(node)
        varying = [i for i in node.input if i in makers]
        if node.op_type not in ("Add", "Mul", "Div", "Sub", "Tanh", "Cast", "Identity") or len(varying) != 1:
            return ""
        name = varying[0]
    return ""


def _unrounded(file: Path, folder: Path) -> str:
    """A copy of the model in `folder` whose products are to be exact. The data beside it is copied: onnx refuses links
    to it."""
    model = onnx.load(file, load_external_data=False)
    for node in filter(may_round, model.graph.node):
        next(a for a in node.attribute if a.name == LEVEL).i = 0
    names = {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.parent / name, target)
    path = folder / "reference.onnx"
    onnx.save(model, path)
    return str(path)


def _cost(loaded: Any, prepared: Any, sizes: Mapping[str, int], name: str) -> ModelMetrics:
    """What a call costs where the open sizes are these."""
    from tvmopt.dims import at
    from tvmopt.importer import prepare
    from tvmopt.importer.protos import open_shape

    inputs = [(value.name, open_shape(value.type) or ()) for value in prepared.graph.input]
    return metrics(prepare(loaded, {name: at(shape, sizes) for name, shape in inputs}), name, loaded)


def _vocabulary(prepared: Any, logits: str) -> int:
    """How many scores the model gives.

    Raises:
        InputError: the model has no scores, or an open number of them.
    """
    for value in prepared.graph.output:
        if value.name == logits and value.type.tensor_type.shape.dim[2].dim_value > 0:
            return int(value.type.tensor_type.shape.dim[2].dim_value)
    raise InputError(
        "the decoder has no output of scores.", fix="export the output 'logits' [batch, tokens, vocabulary]"
    )
