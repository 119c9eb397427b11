"""Decoders whose caches store their rows rounded (`--kv-cache`), from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.command import tvmopt
from tests.decoders.small import DEPTH, KV_HEADS, small_decoder
from tvmopt import api
from tvmopt.errors import ArtifactError, InputError
from tvmopt.operators.stored import CHOICES, elements, load, row_bytes, store
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.model import Model
from tvmopt.runtime.model import load as load_model

Rounded = tuple[onnx.ModelProto, Path, str]
PROMPT = [1, 5, 9, 22]


@pytest.fixture(scope="module", params=[(s, k) for s in ("grouped", "plain", "standard") for k in ("bf16", "int8")])
def rounded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rounded:
    """A decoder, its artifact, which verification has passed, and how its caches are stored."""
    style, asked = request.param
    model, path = small_decoder(style), tmp_path_factory.mktemp("stored") / f"{style}-{asked}.tvmopt"
    made = api.compile(model, kv_cache=asked, output=path)
    assert made.manifest.accuracy["verified"], made.manifest.accuracy
    assert made.manifest.decoder.kept == CHOICES[asked] and made.manifest.options["kv_cache"] == asked
    return model, path, CHOICES[asked]


def feeds_of(model: Model, tokens: list[int], caches: dict[str, np.ndarray], past: int) -> dict[str, np.ndarray]:
    """The inputs of a call by itself."""
    roles, made = model.manifest.decoder, {}
    for info in model.inputs:
        if info.name == roles.ids:
            made[info.name] = np.array([tokens])
        elif info.name == roles.positions:
            made[info.name] = np.arange(past, past + len(tokens))[None]
        elif info.name == roles.mask:
            made[info.name] = np.ones((1, past + len(tokens)), np.int64)
        else:
            made[info.name] = caches.get(info.name, np.zeros((1, KV_HEADS, 0, DEPTH), np.float32))
    return made


def test_a_state_and_calls_by_themselves_give_the_same_scores(rounded: Rounded) -> None:
    """`Model.run` takes and gives caches of float32: what it gives is rounded, and rounds to itself."""
    model = load_model(rounded[1])
    state, roles = model.decoder(), model.manifest.decoder
    caches: dict[str, np.ndarray] = {}
    for tokens in (PROMPT, [7], [3, 30, 2], [11]):
        found = model.run(feeds_of(model, tokens, caches, state.length))
        scores = state.prefill(tokens, all_scores=True)
        np.testing.assert_allclose(found[roles.logits][0], scores, rtol=1e-4, atol=1e-4)
        caches = {cache.past: found[cache.present] for cache in roles.caches}
        for rows in caches.values():
            assert rows.dtype == np.float32 and rows.shape == (1, KV_HEADS, state.length, DEPTH)
            np.testing.assert_allclose(load(store(rows, rounded[2]), rounded[2]), rows, rtol=1e-6)


def test_the_buffers_are_as_small_as_they_say(rounded: Rounded) -> None:
    kind, state = rounded[2], load_model(rounded[1]).decoder(max_length=20)
    assert all(a.shape == (1, KV_HEADS, 20, elements(DEPTH, kind)) for a in state._caches)
    assert {a.nbytes for a in state._caches} == {KV_HEADS * 20 * row_bytes(DEPTH, kind)}
    done = tvmopt("inspect", rounded[1])
    size = 2 * KV_HEADS * row_bytes(DEPTH, kind)
    assert f"a token's keys and values take {size} B" in done.stdout and "2 caches, kept in place" in done.stdout


def test_forks_truncation_and_several_texts(rounded: Rounded) -> None:
    model = load_model(rounded[1])
    whole = model.decoder().prefill(range(1, 21))
    state = model.decoder(max_length=40)
    state.prefill(range(1, 12))
    other = state.fork()
    state.prefill([30, 31, 32])
    state.truncate(11)
    for one in (state, other):
        np.testing.assert_allclose(one.prefill(range(12, 21)), whole, rtol=1e-4, atol=1e-4)
    prompts = [PROMPT, [8], list(range(20, 29)), [2, 3]]
    alone = [list(model.decoder().generate(p, max_new_tokens=6)) for p in prompts]
    batch = model.decoder(max_length=32, sequences=3)
    found: dict[int, list[int]] = {}
    for which, token in batch.generate(prompts, max_new_tokens=6):
        found.setdefault(which, []).append(token)
    assert [found[i] for i in range(len(prompts))] == alone


def test_rounding_moves_scores_little_and_some() -> None:
    """Where it changed nothing, nothing would be rounded."""
    model = small_decoder("standard")
    scores = {}
    for asked in CHOICES:
        made = api.compile(model, kv_cache=asked, verify=False)
        scores[asked] = made.model.decoder().prefill(range(1, 30), all_scores=True)
    largest = np.abs(scores["fp32"]).max()
    for asked in ("bf16", "int8"):
        moved = np.abs(scores[asked] - scores["fp32"]).max() / largest
        assert 1e-4 < moved < 0.05, (asked, moved)


def without_caches() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_what_cannot_be_stored_so_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "relu.onnx"
    onnx.save(without_caches(), file)
    done = tvmopt("compile", file, "--kv-cache", "int8", "-o", tmp_path / "m.tvmopt")
    assert done.returncode == 2 and "keeps no keys and values" in done.stderr and "--kv-cache" in done.stderr
    assert not (tmp_path / "m.tvmopt").exists()
    with pytest.raises(InputError, match="one of fp32, bf16, int8"):
        api.compile(small_decoder(), kv_cache="int4", verify=False)
    with pytest.raises(InputError, match="keeps no keys and values"):
        api.compile(small_decoder(), kv_cache="bf16", without=["tvmopt.KeepCaches"], verify=False)


def test_the_command_and_the_kept_artifact(tmp_path: Path) -> None:
    """The choice is part of what names a kept artifact, and `refit` keeps it."""
    file, path = tmp_path / "small.onnx", tmp_path / "m.tvmopt"
    onnx.save(small_decoder("standard"), file)
    done = tvmopt("compile", file, "--kv-cache", "int8", "-o", path, "--strip-weights", "--json")
    assert done.returncode == 0, done.stderr
    assert "their rows as bytes" in done.stdout
    done = tvmopt("refit", path, file, "-o", tmp_path / "whole.tvmopt")
    assert done.returncode == 0, done.stderr
    done = tvmopt("generate", tmp_path / "whole.tvmopt", "--tokens", "1,5", "--max-new-tokens", "4", "--json")
    assert len(json.loads(done.stdout)["tokens"]) == 4
    done = tvmopt("compile", file, "-o", path)
    assert done.returncode == 0 and load_model(path).manifest.decoder.kept == "float32"


def test_an_edited_manifest_is_refused(rounded: Rounded) -> None:
    manifest = load_model(rounded[1]).manifest
    for kept, in_place in (("int4", True), ("int8", False)):
        wrong = replace(manifest, decoder=replace(manifest.decoder, kept=kept, in_place=in_place, placed=False))
        with pytest.raises(ArtifactError, match="caches are kept as"):
            Manifest.from_json(wrong.to_json(), "m.tvmopt")
