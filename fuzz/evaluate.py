"""One model through everything: compiled, run under guard pages, compared - what a worker does with a task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import onnx

from fuzz.engine import compiled
from fuzz.inputs import feeds_of, inputs_of, kinds_for, numbers_of
from fuzz.once import Options, Outcome, Say, refused, run_once
from fuzz.reference import Reference, Unable
from fuzz.sizes import evaluate_open
from fuzz.verdict import verdicts_of

LARGE = 1 << 22
"""Elements of an input: a mutant's size may be any."""


def evaluate(data: bytes, options: Options, say: Say) -> Outcome:
    """Compile and run a model, and compare; `say` is told each stage before it begins."""
    outcome = Outcome()
    reference = None
    model = _parsed(data)
    if model is not None and numbers_of(model):
        return evaluate_open(model, options, say)
    if options.valid and model is not None:
        say("reference: loading")
        try:
            reference = Reference(model, options.precision)
            reference.run(feeds_of(model, "normal", options.seed))
        except Unable as error:
            return Outcome("skipped", f"onnxruntime: {_class_of(str(error))}")
    say("compile")
    try:
        threads = (1, 2, 2, 4)[options.seed % 4]
        engine = compiled(data, options.target, options.precision, threads, 1 + options.seed % 2, say)
    except Exception as error:
        return refused(error, options.valid)
    if model is None:
        return outcome
    if reference is None:
        say("reference: loading")
        try:
            reference = Reference(model, options.precision)
        except Unable:
            outcome.unjudged = 1
    verdicts = verdicts_of(model, engine.model, valid=options.valid) if reference is not None else None
    kinds = _affordable(model, options.kinds or kinds_for(model), options.valid)
    for kind in kinds if options.precision != "fp16" else [kind for kind in kinds if kind != "huge"]:  # no such float16
        found = run_once(model, engine, reference, verdicts, kind, options.seed, options.valid, say, outcome)
        if found:
            outcome.findings.append(found)
    if outcome.findings:
        outcome.status = "found"
    return outcome


def _affordable(model: onnx.ModelProto, kinds: Sequence[str], valid: bool) -> list[str]:
    """The kinds of inputs without edge values where a mutant is large, as its judge takes minutes; and without zeros,
    too, where they may decide how many trips a loop makes: 65504 / 6e-8 or 1 / 0 end in no time that we have."""
    large = any(prod(d.dim_value or 1 for d in v.type.tensor_type.shape.dim) > LARGE for v in inputs_of(model))
    loops = any(node.op_type == "Loop" for node in model.graph.node)
    powers = any(node.op_type == "Pow" for node in model.graph.node)  # beyond their type what C++ makes of them
    left_out = {"edge", "zeros"} if loops else {"edge"} if large or powers else set()
    return [kind for kind in kinds if valid or kind not in left_out]


def _parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except Exception:  # protobuf has several classes for it
        return None


def _class_of(text: str) -> str:
    """An error's text without what differs from model to model."""
    return re.sub(r"node with name '[^']*'|node\. Name:'[^']*'|\d+", "#", text)[:110]
