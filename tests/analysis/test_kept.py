"""Caches rounded as they are stored before the judge: right engines pass, and those that round otherwise do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.decoders.small import DEPTH, KV_HEADS, small_decoder
from tvmopt import api
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.kept import kept, mark
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.rounding import rms_of_rows
from tvmopt.analysis.oracle.values import Arithmetic, Unsupported
from tvmopt.analysis.samples import KINDS, trial_inputs
from tvmopt.analysis.trials import examine
from tvmopt.analysis.verify import peers_of, verify
from tvmopt.errors import AccuracyError
from tvmopt.importer import prepare
from tvmopt.importer.decoder import find
from tvmopt.importer.protos import normal_domain
from tvmopt.importer.relax import operators
from tvmopt.operators.stored import as_stored, load, store
from tvmopt.runtime.roles import Cache, Roles
from tvmopt.runtime.tensors import TensorInfo

STYLES, KINDS_OF_CACHES = ("grouped", "plain", "standard"), ("bfloat16", "int8")
Array = np.ndarray[Any, Any]
Rounding = Callable[[Array, str], Array]


class Engine(Oracle):
    """A run in float32 whose caches are stored by `rounding`, its numbers a little off as a sum of another order is."""

    def __init__(self, model: onnx.ModelProto, rounding: Rounding = as_stored, noise: float = 0.0) -> None:
        super().__init__(model, Arithmetic(np.float32))
        self.rounding, self.noise, self.moved = rounding, noise, 0
        self.generator = np.random.default_rng(0)

    def kept(self, name: str, array: Array, kind: str) -> Array:
        off = array + self.noise * rms_of_rows(array) * self.generator.uniform(-1, 1, array.shape)
        stored = self.rounding(off.astype(array.dtype), kind)
        self.moved += int((np.abs(stored - self.rounding(array, kind)) > 1e-4 * np.abs(array)).sum())
        return stored


def at_sizes(
    style: str, past: int, new: int, layers: int = 2, **attention: float
) -> tuple[Any, list[TensorInfo], Roles]:
    """(A small decoder as it is prepared for these sizes, its inputs, its roles)."""
    model = small_decoder(style, layers, **attention)
    roles = find(model.graph.input, model.graph.output)
    shapes: dict[str, list[int]] = {}
    for value in model.graph.input:
        cache, mask = value.name.startswith("past"), value.name == "attention_mask"
        shapes[value.name] = [1, KV_HEADS, past, DEPTH] if cache else [1, past + new if mask else new]
    known = {tuple(name) for name in operators()}
    prepared = prepare(model, shapes, {}, has_converter=lambda *key: (normal_domain(key[0]), key[1]) in known)
    kinds = {v.name: "float32" if v.name.startswith("past") else "int64" for v in model.graph.input}
    return prepared, [TensorInfo(n, tuple(s), kinds[n]) for n, s in shapes.items()], roles


def outputs_of(
    prepared: Any,
    roles: Roles,
    kind: str,
    feeds: Mapping[str, Array],
    rounding: Rounding = as_stored,
    noise: float = 0.0,
) -> tuple[dict[str, Array], int]:
    """(Outputs of an engine, how many numbers it rounded to another step than without its noise)."""
    mark(prepared, roles, kind)
    engine = Engine(prepared, rounding, noise)
    found = {n: np.asarray(a, np.float32) for n, a in engine.run(feeds).items()}
    return found, engine.moved


def neighbours(rows: Array, kind: str) -> Array:
    """Rows stored with the scale of the row before them."""
    buffer = store(rows, kind)
    buffer[..., -1] = np.roll(buffer[..., -1], 1, -1)
    return load(buffer, kind)


WRONG: dict[str, Rounding] = {
    "unrounded": lambda rows, kind: rows,
    "truncated": lambda rows, kind: as_stored(rows - np.abs(rows).max(-1, keepdims=True) / 254, kind),
    "the other kind": lambda rows, kind: as_stored(rows, "int8" if kind == "bfloat16" else "bfloat16"),
}


@pytest.mark.parametrize("kind", KINDS_OF_CACHES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("sizes", [(0, 9), (7, 1), (33, 8)])
def test_engines_that_round_are_right(style: str, kind: str, sizes: tuple[int, int]) -> None:
    """Also where their own rounding puts a number on the other side of an edge; the scores behind are judged by what
    the caches hold, as closely as with caches of float32."""
    prepared, infos, roles = at_sizes(style, *sizes)
    moved = 0
    for seed in (0, 1, *range(len(KINDS), len(KINDS) + 4)):
        feeds = trial_inputs(infos, seed, integer_bounds(prepared))
        for noise in (0.0, 1e-5):
            found, steps = outputs_of(prepared, roles, kind, feeds, noise=noise)
            judge = Judge(prepared)
            compared = judge(judge.truth(feeds, found), found)
            assert compared.ok, str(compared)
            assert next(o for o in compared.outputs if o.name == "logits").excess < 1
            moved += steps
    assert moved or sum(sizes) < 20


@pytest.mark.parametrize("kind", KINDS_OF_CACHES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("wrong", [*WRONG, "neighbours"])
def test_engines_that_round_otherwise_are_wrong(style: str, kind: str, wrong: str) -> None:
    if wrong == "neighbours" and kind != "int8":
        pytest.skip("these rows have no scales")
    prepared, infos, roles = at_sizes(style, 7, 2)
    for seed in (0, 1, len(KINDS)):
        feeds = trial_inputs(infos, seed, integer_bounds(prepared))
        found, _ = outputs_of(prepared, roles, kind, feeds, WRONG.get(wrong, neighbours))
        judge = Judge(prepared)
        bad = {o.name for o in judge(judge.truth(feeds, found), found).outputs if not o.ok}
        assert bad >= {cache.present for cache in roles.caches}


@pytest.mark.parametrize("style", STYLES)
def test_scores_that_read_other_rows_are_wrong(style: str) -> None:
    """Caches as they ought to be, and scores of caches that are not rounded: a few per cent of a step."""
    prepared, infos, roles = at_sizes(style, 7, 2)
    feeds = trial_inputs(infos, 0, integer_bounds(prepared))
    found, _ = outputs_of(prepared, roles, "int8", feeds)
    other, _ = outputs_of(prepared, roles, "int8", feeds, WRONG["unrounded"])
    judge = Judge(prepared)
    mixed = found | {"logits": other["logits"]}
    assert [o.name for o in judge(judge.truth(feeds, mixed), mixed).outputs if not o.ok] == ["logits"]


class Loaded:
    """What an examiner asks of a loaded artifact."""

    def __init__(self, prepared: Any, roles: Roles, run: Callable[[Mapping[str, Array]], dict[str, Array]]) -> None:
        self.manifest = SimpleNamespace(precision="fp32", report={}, kind="cuda", decoder=roles)
        self.symbols: dict[str, Any] = {}
        self.outputs = [TensorInfo(o.name, (), "float32") for o in prepared.graph.output]
        self.run = run


class Examination:
    """An examiner of an engine of a small decoder, with inputs and onnxruntime's outputs by seed.

    Args:
        seed: of the weights of the file, which onnxruntime runs; the engine's are those of 0.
    """

    def __init__(
        self, folder: Path, style: str, kind: str, rounding: Rounding, noise: float = 0.0, seed: int = 0
    ) -> None:
        prepared, infos, plain = at_sizes(style, 3, 2)
        roles = replace(plain, in_place=True, kept=kind)
        file = folder / "decoder.onnx"
        onnx.save(small_decoder(style, 2, seed), file)
        twin = at_sizes(style, 3, 2)[0]

        def run(given: Mapping[str, Array]) -> dict[str, Array]:
            return outputs_of(twin, roles, kind, given, rounding, noise)[0]

        self.feeds = {n: trial_inputs(infos, n, integer_bounds(prepared)) for n in range(len(KINDS))}
        self.peers = peers_of(file, self.feeds, {})[1]
        self.examiner = Examiner(Loaded(prepared, roles, run), file, prepared)
        assert self.examiner.keeps and self.peers[0]


@pytest.mark.parametrize("kind", KINDS_OF_CACHES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("rounds", [True, False])
def test_verification_goes_to_the_oracle(tmp_path: Path, style: str, kind: str, rounds: bool) -> None:
    """On each kind of inputs, unusual ones too, where onnxruntime's caches are others; an engine that rounds nothing is
    as near to onnxruntime as can be, and wrong."""
    one = Examination(tmp_path, style, kind, as_stored if rounds else WRONG["unrounded"], 1e-5 * rounds)
    for seed, feeds in one.feeds.items():
        done = examine(one.examiner, seed, feeds, one.peers.get(seed), False)
        assert done is not None and done.reference == "float64"
        right = rounds or (kind == "bfloat16" and seed > 4)  # of these only what is no number is compared
        assert done.ok == right, f"{KINDS[seed]}: {done.comparison}"


@pytest.mark.parametrize("kind", KINDS_OF_CACHES)
def test_the_file_itself_is_asked(tmp_path: Path, kind: str) -> None:
    """A model that the importer changed: the engine fits it, and the file does not."""
    one = Examination(tmp_path, "standard", kind, as_stored, seed=1)
    assert one.examiner.thoroughly(one.feeds[0], one.peers[0]).ok
    assert not one.examiner.fully(one.feeds[0], one.peers[0]).ok


def packed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The decoder with its products' weights in 4 bits, and rows that may be rounded to 8."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            blocks = stored[node.input[1]].T.reshape(stored[node.input[1]].shape[1], -1, 32)
            scales = (np.abs(blocks).max(-1) / 7).astype("f4")
            codes = (np.rint(blocks / scales[..., None]) + 8).astype(np.uint8)
            names = [node.input[1] + end for end in ("_codes", "_scales")]
            arrays = [codes[..., ::2] | codes[..., 1::2] << 4, scales.reshape(-1)]
            model.graph.initializer.extend(map(numpy_helper.from_array, arrays, names))
            given = {"K": 32 * blocks.shape[1], "N": len(blocks), "bits": 4, "block_size": 32, "accuracy_level": 4}
            node.domain, node.op_type = "com.microsoft", "MatMulNBits"
            node.input[:] = [node.input[0], *names]
            node.attribute.extend(helper.make_attribute(name, number) for name, number in given.items())
    return model


@pytest.mark.parametrize(("style", "kind"), [("grouped", "int8"), ("standard", "bf16")])
def test_kernels_are_looked_at_too(style: str, kind: str) -> None:
    """Those of a decoder whose rows are rounded to 8 bits, with caches that are rounded, at two open lengths."""
    made = api.compile(packed(small_decoder(style)), kv_cache=kind)
    assert made.report.accuracy["reference"] == "float64" and made.report.accuracy["kernels"] >= 4


def test_an_error_that_the_model_amplifies_is_none() -> None:
    """Six layers whose softmax is nearly hard: rows of caches are 0.1 % off, which is less than a step and more than
    two runs that only round show."""
    assert api.compile(small_decoder("grouped", 6, seed=4), kv_cache="int8").report.accuracy["verified"]


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_scores_are_judged_as_closely_as_with_caches_of_float32(tmp_path: Path, kind: str) -> None:
    """Three ten-thousandths in the last product."""
    onnx.save(small_decoder("grouped"), tmp_path / "right.onnx")
    model = small_decoder("grouped")
    head = next(t for t in model.graph.initializer if t.name == "head")
    head.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(head) * np.float32(1.0003), "head"))
    wrong = api.compile(model, kv_cache=kind, verify=False)
    with pytest.raises(AccuracyError, match="logits: differs"):
        verify(wrong.artifact, tmp_path / "right.onnx")


def test_marks_are_taken_back() -> None:
    prepared, _, roles = at_sizes("grouped", 3, 2)
    assert not mark(prepared, roles, "float32")
    assert mark(prepared, roles, "int8") and kept(prepared).keys() == {c.present for c in roles.caches}
    assert {cache.kind for cache in kept(prepared).values()} == {"int8"}
    assert mark(prepared, roles, "float32") and not kept(prepared) and not mark(prepared, roles, "float32")


def test_a_cache_of_another_making_is_none() -> None:
    """One that is turned behind its Concat, whose other reader sees no rounded rows."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["rows"], axis=2),
        helper.make_node("Neg", ["rows"], ["present"]),
    ]
    infos = [value("past", 1, [1, 2, 3, 4]), value("new", 1, [1, 2, 1, 4])]
    model = helper.make_model(helper.make_graph(nodes, "g", infos, [value("present", 1, None)]))
    with pytest.raises(Unsupported, match="the cache 'present'"):
        mark(model, Roles((Cache("past", "present"),)), "int8")
