"""A model with open sizes through everything: compiled once, run at many sizes, each compared; wrong sizes refused.

Its own judge is asked at every size, with the oracle and onnxruntime at that size. Sizes that a model cannot have must
be refused before any kernel runs: kernels trust the sizes that they are given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx

from fuzz.engine import compiled
from fuzz.inputs import OUTSIDE, Feeds, bound, feeds_of, has_range, inputs_of, kinds_for, numbers_of
from fuzz.once import SCARCE, Finding, Options, Outcome, refused, run_once, told
from fuzz.reference import Reference, Unable
from fuzz.verdict import verdicts_of
from tvmopt.dims import identifier

Sizes = dict[str, int]
Ranges = dict[str, tuple[int, int]]
SMALLEST = (1, 2, 3, 5, 7)
LARGEST = (24, 33, 40, 64)
SELECT = {"NonZero", "Compress", "NonMaxSuppression"}
ELEMENTS = 1 << 18
"""Elements of all inputs together, at the largest sizes."""


def evaluate_open(model: onnx.ModelProto, options: Options, say: Callable[[str], None]) -> Outcome:
    """Compile a model with open sizes and run it at the smallest, the largest and some between."""
    rng = random.Random(options.seed)
    numbers = numbers_of(model)
    say("reference: loading")
    try:
        reference = Reference(model, options.precision)
        ranges = {n: (_smallest(model, reference, n), size) for n, size in numbers.items()}
        ranges = {n: (low, max(size, rng.choice(LARGEST))) for n, (low, size) in ranges.items()}
        while _elements(model, {n: high for n, (_, high) in ranges.items()}) > ELEMENTS:
            ranges = {n: (low, max(numbers[n], high // 2)) for n, (low, high) in ranges.items()}
            if all(high == numbers[n] for n, (_, high) in ranges.items()):
                break
        reference.run(feeds_of(bound(model, numbers), "normal", options.seed))
    except (Unable, ValueError) as error:
        if not options.valid:
            return _damaged(model, options, say)
        return Outcome("skipped", f"{'onnxruntime: ' if isinstance(error, Unable) else ''}{str(error)[:110]}")
    outcome = Outcome()
    try:
        engine = _compiled(model, ranges, options, say)
    except Exception as error:
        largest = {n: high for n, (_, high) in ranges.items()}
        if _runs(model, reference, largest):
            return refused(error, options.valid)
        try:  # it does not have these sizes: it tells those that it has
            engine = _compiled(model, {}, options, say)
        except Exception as error:
            return refused(error, False)
        ranges = {n: (r.min, r.max) for n, r in engine.symbols.items() if n in ranges}
    # a size that another input decides, to which onnxruntime does not look, is not open any more
    known = engine.symbols
    ranges = {n: r if identifier(n) in known else (numbers[n], numbers[n]) for n, r in ranges.items()}
    for sizes in _tried(ranges, numbers, rng):
        outcome.findings += _at(model, engine, reference, sizes, options, say, outcome, rng)
    # without a `Model`, which compares sizes with the manifest's, nothing is there to refuse them
    for what, feeds in _wrong(model, engine, ranges, numbers) if engine.model is not None else ():
        say(f"run: {what}")
        if problem := wrongly_answered(engine, feeds):
            outcome.findings.append(Finding("sizes", f"{what}: {problem}"))
    if outcome.findings:
        outcome.status = "found"
    return outcome


def _compiled(model: onnx.ModelProto, ranges: Ranges, options: Options, say: Callable[[str], None]) -> Any:
    say("compile")
    shapes = {n: f"{low}..{high}@{numbers_of(model)[n]}" for n, (low, high) in ranges.items()}
    threads, side = (1, 2, 2, 4)[options.seed % 4], 1 + options.seed % 2
    return compiled(model.SerializeToString(), options.target, options.precision, threads, side, say, shapes)


def _damaged(model: onnx.ModelProto, options: Options, say: Callable[[str], None]) -> Outcome:
    """A model that no reference runs: it may be refused, by an error of ours, or else must stay within its memory."""
    outcome, numbers = Outcome(unjudged=1), numbers_of(model)
    try:
        engine = _compiled(model, {n: (1, max(number, LARGEST[0])) for n, number in numbers.items()}, options, say)
    except Exception as error:
        return refused(error, False)
    for kind in ("normal", "zeros", OUTSIDE):
        try:
            fixed = bound(model, numbers)
        except ValueError:
            break
        found = run_once(fixed, engine, None, None, kind, options.seed, False, say, outcome)
        outcome.findings += [found] if found else []
    outcome.status = "found" if outcome.findings else "checked"
    return outcome


def _runs(model: onnx.ModelProto, reference: Reference, sizes: Sizes) -> bool:
    """Whether a model has these sizes: a constant shape may leave it none but those it was built at."""
    try:
        reference.run(feeds_of(bound(model, sizes), "normal", 0))
    except (Unable, ValueError):
        return False
    return True


def _smallest(model: onnx.ModelProto, reference: Reference, name: str) -> int:
    """The least number of one size, the others as they were built, at which nothing is empty and the reference runs."""
    numbers = numbers_of(model)
    for number in SMALLEST:
        if number >= numbers[name]:
            break
        try:
            fixed = bound(model, numbers | {name: number})
            for value in fixed.graph.output:
                value.type.tensor_type.ClearField("shape")
            inferred = onnx.shape_inference.infer_shapes(fixed, strict_mode=True, data_prop=True).graph
            values = [*inferred.value_info, *inferred.output]
            empty = any(
                d.HasField("dim_value") and d.dim_value < 1 for v in values for d in v.type.tensor_type.shape.dim
            )
            if not empty and _windows_fit(inferred):
                results = reference.run(feeds_of(fixed, "normal", 0))
                if selects(model) or all(array.size for array in results.values()):
                    return number
        except (Unable, ValueError, onnx.shape_inference.InferenceError):
            continue
    return numbers[name]


def selects(model: onnx.ModelProto) -> bool:
    """Whether values decide sizes in a model: nothing may be selected."""
    return any(node.op_type in SELECT for node in model.graph.node)


def _windows_fit(graph: onnx.GraphProto) -> bool:
    """Whether no window of a pool or convolution is larger than its padded image: there ONNX's inference and
    onnxruntime divide a negative number towards zero, and have one result, of numbers that do not exist."""
    values = [*graph.input, *graph.value_info, *graph.output]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    for node in graph.node:
        given = {a.name: list(a.ints) for a in node.attribute}
        if node.op_type == "Conv":
            given.setdefault("kernel_shape", shapes.get(node.input[1], [])[2:])
        elif not node.op_type.endswith("Pool") or "kernel_shape" not in given:
            continue
        image, window = shapes.get(node.input[0], [])[2:], given["kernel_shape"]
        pads, dilations = given.get("pads", [0] * 2 * len(window)), given.get("dilations", [1] * len(window))
        for n, k, d, before, after in zip(image, window, dilations, pads, pads[len(window) :], strict=False):
            if n + before + after < d * (k - 1) + 1 and not any(a.name == "auto_pad" for a in node.attribute):
                return False
    return True


def _elements(model: onnx.ModelProto, sizes: Sizes) -> int:
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in inputs_of(bound(model, sizes))]
    return sum(int(np.prod(shape)) for shape in shapes)


def _tried(ranges: Ranges, numbers: Sizes, rng: random.Random) -> list[Sizes]:
    """Sizes to run at, each once."""
    tried = [
        {n: high for n, (_, high) in ranges.items()},
        {n: low for n, (low, _) in ranges.items()},
        dict(numbers),
        *({n: rng.randint(low, high) for n, (low, high) in ranges.items()} for _ in range(3)),
        {n: rng.choice(ends) for n, ends in ranges.items()},
    ]
    return [s for i, s in enumerate(tried) if s not in tried[:i]]


def _at(
    model: onnx.ModelProto, engine: Any, reference: Reference, sizes: Sizes, options: Options,
    say: Callable[[str], None], outcome: Outcome, rng: random.Random,
) -> Iterator[Finding]:  # fmt: skip
    """What is found at these sizes: with normal inputs, with another kind of them, and with indices out of range."""
    try:
        fixed = bound(model, sizes)
        verdicts = verdicts_of(model, engine.model, sizes, options.valid)
    except ValueError:
        return
    except Exception as error:  # the preparation of a static model: the importer's own errors
        from tvmopt.errors import ModelError, UnsupportedOp

        if not isinstance(error, ModelError):
            raise
        if not isinstance(error, UnsupportedOp) and not _runs(model, reference, sizes):  # it contradicts itself there
            say(f"run: at {sizes}")
            outcome.runs += 1
            if problem := wrongly_answered(engine, feeds_of(fixed, "normal", options.seed)):
                yield Finding("sizes", f"at {sizes}, where a static model is refused ({error.what}): {problem}")
        return
    others = [k for k in options.kinds or kinds_for(model) if k != "normal"]
    kinds = ("normal", rng.choice(others)) if others else ("normal",)
    if selects(model) and "zeros" in others:  # other elements than those of normal inputs: all, or none
        kinds = tuple(dict.fromkeys((*kinds, "zeros")))
    if not options.kinds and any(has_range(value) for value in inputs_of(model)):
        kinds = (*kinds, OUTSIDE)
    for kind in kinds:
        found = run_once(fixed, engine, reference, verdicts, kind, options.seed, options.valid, say, outcome)
        if found and not (found.kind == "error" and 1 in sizes.values()):  # which no compiled model spreads over others
            yield Finding(found.kind, f"at {sizes}: {found.text}", found.inputs)


def _wrong(model: onnx.ModelProto, engine: Any, ranges: Ranges, numbers: Sizes) -> Iterator[tuple[str, Feeds]]:
    """Inputs of sizes that the compiled model cannot have, in words and as arrays."""
    good = feeds_of(bound(model, numbers), "normal", 0)
    for name, (low, high) in ranges.items():
        for number in (0, low - 1, high + 1):
            if number >= 0 and not low <= number <= high:
                try:
                    yield f"{name} is {number}", feeds_of(bound(model, numbers | {name: number}), "normal", 0)
                except ValueError:
                    continue
    for value in inputs_of(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            alone = dim.dim_param and sum(
                d.dim_param == dim.dim_param for v in inputs_of(model) for d in v.type.tensor_type.shape.dim
            ) == 1  # fmt: skip
            if alone:
                continue
            array = good[value.name]
            longer = np.concatenate([array, array.take([0], axis)], axis) if array.shape[axis] else None
            if longer is not None:
                yield f"{value.name} is longer on axis {axis}", {**good, value.name: longer}


def wrongly_answered(engine: Any, feeds: Feeds) -> str:
    """What is wrong with the answer to wrong sizes: empty for an error of ours before any kernel has run."""
    from tvmopt.errors import InputError

    before = engine.calls
    try:
        engine.run(feeds)
    except InputError as error:
        early = engine.calls == before or SCARCE in error.what
        return "" if early else f"refused after kernels had run: {error.what}"
    except Exception as error:
        return told(error)
    return "accepted"
