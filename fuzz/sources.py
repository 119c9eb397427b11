"""The models of a run, by number: random graphs, graphs with constants for inputs, graphs whose indices leave their
range, mutants of valid models, node tests with odd attributes and absurd constants, graphs with open sizes, with a
single one, and with sizes that values decide."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from fuzz import opened, typed
from fuzz.absurd import absurd
from fuzz.build import BF16, F16, F32, F64, Builder
from fuzz.cases import SMALL, case, cases, in_type, node_tests, older
from fuzz.inputs import NUMBERS, feeds_of, inputs_of, kinds_for, numbers_of
from fuzz.mutate import mutated
from fuzz.odd import odd
from fuzz.pairs import pair
from fuzz.rules import RULES, Rule, found, grow, indexed, integers

KINDS = (
    *("graphs", "mutants", "indices", "integers", "cases", "older", "pairs", "constants", "open", "found", "single"),
    *("odd", "absurd"),
)
DAMAGED = ("mutants", "odd", "absurd")
"""Kinds of models that need not be valid."""
FLOATS = {"float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64}
INDEXED: list[tuple[float, Rule]] = [(4 * w, r) for w, r in indexed.RULES] + [
    (w, r) for w, r in RULES if not any((w, r) in group.RULES for group in (indexed, integers))
]


def model_bytes(kind: str, seed: int, index: int, folder: str = "", real: str = "") -> bytes:
    """The model number `index` of a run; `folder`: more valid models to mutate; `real`: the floating-point type."""
    if kind == "graphs":
        return graph(seed, index, real=real).SerializeToString()
    if kind == "indices":
        return graph(seed, index, INDEXED, 1.0, real).SerializeToString()
    if kind == "constants":
        return folded(seed, index, real).SerializeToString()
    if kind == "open":
        return opened_graph(seed, index, real).SerializeToString()
    if kind == "found":
        return found_graph(seed, index, real).SerializeToString()
    if kind == "single":
        return single_size(seed, index, real).SerializeToString()
    if kind == "cases":
        return case(index).SerializeToString()
    if kind == "older":
        return older(index).SerializeToString()
    if kind == "pairs":
        return pair(index).SerializeToString()
    if kind == "odd":
        return odd(index).SerializeToString()
    if kind == "absurd":
        return absurd(index).SerializeToString()
    if kind == "integers":
        return typed.model(seed, index).SerializeToString()
    rng = np.random.default_rng([seed, index, 7])
    valid = node_cases() + (_files(folder) if folder else ())
    drawn = rng.random()
    if drawn < 0.1:
        source = (found_graph if drawn < 0.05 else opened_graph)(seed, index, real)
    elif drawn < 0.5:
        source = graph(seed, index, real=real)
    else:
        source = onnx.ModelProto.FromString(valid[int(rng.integers(len(valid)))])
    return mutated(source, rng)


def graph(
    seed: int, index: int = 0, rules: list[tuple[float, Rule]] | None = None, size: float = 2.6, real: str = ""
) -> onnx.ModelProto:
    """The random model number `index` of a seed: one to twelve nodes, small ones more often."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, index, attempt])
        builder = Builder(rng, FLOATS[real] if real else 0)
        grow(builder, 1 + min(11, int(rng.exponential(size))), rules)
        if builder.nodes:
            return builder.model()
    raise RuntimeError(f"no graph for seed {seed}, {index}")


def opened_graph(seed: int, index: int, real: str = "") -> onnx.ModelProto:
    """A random model with open sizes, of one to eight nodes."""
    for attempt in range(200):
        rng = np.random.default_rng([seed, index, attempt, 13])
        builder = opened.OpenBuilder(rng, FLOATS[real] if real else 0)
        grow(builder, 1 + min(7, int(rng.exponential(2.2))), opened.RULES)
        if builder.nodes and numbers_of(model := builder.model()):
            return model
    raise RuntimeError(f"no open graph for seed {seed}, {index}")


def found_graph(seed: int, index: int, real: str = "") -> onnx.ModelProto:
    """A random model in which values decide sizes: a selection, and one to eight nodes behind it."""
    for attempt in range(200):
        rng = np.random.default_rng([seed, index, attempt, 17])
        builder = opened.OpenBuilder(rng, FLOATS[real] if real else 0)
        grow(builder, 1, found.SELECTIONS)
        grow(builder, len(builder.nodes) + 1 + min(7, int(rng.exponential(2.2))), opened.BEHIND)
        chosen = any(found.is_found(d) for value in builder.values for d in value.shape)
        if builder.nodes and chosen and numbers_of(model := builder.model()):
            return model
    raise RuntimeError(f"no graph with a selection for seed {seed}, {index}")


def single_size(seed: int, index: int, real: str = "") -> onnx.ModelProto:
    """A random model, or one of ONNX's node tests, of which one size of one input is open, whatever the operators ask
    of it: most of them take no other one than it was built with, and say so before a kernel runs."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, index, attempt, 19])
        if rng.random() < 0.5:
            tests = cases()
            model = in_type(tests[int(rng.integers(len(tests)))], FLOATS.get(real, F32), "outside")
        else:
            model = graph(seed + attempt, index, real=real)
        dims = [d for v in inputs_of(model) for d in v.type.tensor_type.shape.dim if d.dim_value > 1]
        if not dims:
            continue
        chosen = dims[int(rng.integers(len(dims)))]
        number, chosen.dim_param = chosen.dim_value, "n"
        for value in model.graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
        model.metadata_props.add(key=NUMBERS, value=json.dumps({"n": number}))
        return model
    raise RuntimeError(f"no graph with a size to open for seed {seed}, {index}")


def folded(seed: int, index: int, real: str = "") -> onnx.ModelProto:
    """A random model most of whose inputs are constants, so that the importer evaluates much of it."""
    model = graph(seed, index, real=real)
    rng = np.random.default_rng([seed, index, 11])
    feeds = feeds_of(model, str(rng.choice(kinds_for(model))), index)
    kept = [value for value in model.graph.input if rng.random() < 0.3]
    fixed = {value.name for value in model.graph.input} - {value.name for value in kept}
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in feeds if name in fixed)
    return model


@cache
def node_cases() -> tuple[bytes, ...]:
    """The models of ONNX's own node tests."""
    return tuple(sorted(m for test in node_tests() if len(m := test.model.SerializeToString()) < SMALL))


@cache
def _files(folder: str) -> tuple[bytes, ...]:
    files = sorted(p for p in Path(folder).rglob("*.onnx") if p.stat().st_size < 40 * SMALL)
    return tuple(p.read_bytes() for p in files)
