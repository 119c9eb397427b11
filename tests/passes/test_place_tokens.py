"""Tokens with places: which decoders the pass takes, what it leaves of masks and lengths, and what it declines."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.decoders.small import small_decoder
from tests.passes.test_keep_caches import calls
from tvmopt.importer import import_model
from tvmopt.operators.caches import Scores
from tvmopt.passes import FuseAttention, KeepCaches, MarkCaches, PlaceTokens, PropagateTransposes
from tvmopt.passes.place_tokens import PLACED, is_causal
from tvmopt.report import DecisionLog


def placed(model: onnx.ModelProto, **shapes: Any) -> tuple[Any, str]:
    """`main`, and why the pass declined."""
    module, log = import_model(model, **shapes).module, DecisionLog()
    for one in (MarkCaches(), PropagateTransposes(), FuseAttention(), KeepCaches("llvm"), PlaceTokens(log)):
        module = one(module)
    (told,) = (d for d in log if d.stage == "tvmopt.PlaceTokens")
    return module["main"], "" if told.verdict == "applied" else told.reason


def named(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == kind)


@pytest.mark.parametrize("style", ["grouped", "plain", "standard"])
def test_masks_and_the_length_of_the_past_go(style: str) -> None:
    main, why = placed(small_decoder(style, layers=2))
    assert not why and PLACED in main.attrs and int(main.attrs["num_input"]) == len(main.params)
    assert [str(p.name) for p in main.params[-2:]] == ["lengths", "places"]
    names = calls(main)
    assert [names.count(n) for n in ("append_rows", "cached_attention", "cached_rows")] == [4, 2, 0]
    for block in main.body.blocks:
        for binding in block.bindings:
            if calls_of(binding.value) == "cached_attention":
                assert len(binding.value.args) == 5 and str(binding.value.args[4].name) == "places"
            else:
                assert "past" not in str(getattr(binding.var.ty, "shape", ""))


def calls_of(value: Any) -> str:
    return getattr(getattr(value, "op", None), "name", "").removeprefix("tvmopt.")


def test_a_window_is_declined() -> None:
    main, why = placed(small_decoder(local_window_size=5))
    assert why.startswith("1: a mask hides other keys") and PLACED not in main.attrs


def test_a_window_as_long_as_the_longest_text_is_none() -> None:
    assert placed(small_decoder(local_window_size=48))[1] == ""
    assert placed(small_decoder(local_window_size=47))[1].startswith("1")


def test_scores_that_a_mask_adds_to_are_declined() -> None:
    """What ALiBi does: further keys count less."""
    model = small_decoder("plain")
    where = named(model, "Where")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(-0.5), "slope"))
    total = named(model, "Range").output[0]
    at = list(model.graph.node).index(where)
    distance = [
        helper.make_node("Cast", [total], ["far"], to=1),
        helper.make_node("Mul", ["far", "slope"], ["sloped"]),
        helper.make_node("Where", [where.input[0], "sloped", where.input[2]], list(where.output)),
    ]
    nodes = [*list(model.graph.node)[:at], *distance, *list(model.graph.node)[at + 1 :]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert placed(model)[1].startswith("1: a mask hides other keys")


def test_a_mask_that_the_tokens_decide_is_declined() -> None:
    model = small_decoder("plain")
    named(model, "LessOrEqual").input[1] = "apart_ids"
    axis = named(model, "Unsqueeze").input[1]
    ids = helper.make_node("Unsqueeze", ["input_ids", axis], ["apart_ids"])
    model.graph.node.insert(0, ids)
    assert placed(model)[1].startswith("1: what a mask hides depends on the tokens")


def test_what_else_depends_on_the_past_is_declined() -> None:
    """Scores that the number of all tokens scales."""
    model = small_decoder("grouped")
    head = model.graph.node[-1]
    more = [
        helper.make_node("Cast", [named(model, "ReduceSum").output[0]], ["count"], to=1),
        helper.make_node("Mul", [head.input[0], "count"], ["scaled"]),
    ]
    head.input[0] = "scaled"
    last = list(model.graph.node)[-1]
    del model.graph.node[-1]
    model.graph.node.extend([*more, last])
    assert placed(model)[1].startswith("2: ")


def test_bound_tokens_and_several_texts_are_declined() -> None:
    assert placed(small_decoder("plain"), shapes={"sequence": [1]})[1].startswith("3: the number of tokens")
    assert placed(small_decoder("plain"), shapes={"batch": [2]})[1].startswith("3: the number of tokens")


def test_what_a_causal_mask_is() -> None:
    past, new = 2, 3
    seen = np.arange(past + new) <= past + np.arange(new)[:, None]
    mask = np.where(seen, 0, -np.inf)[None, None]
    assert is_causal(mask, past, new, Scores(1.0)) and is_causal(np.where(mask < 0, -1e30, 0), past, new, Scores(1.0))
    assert not is_causal(np.where(mask < 0, -5.0, 0), past, new, Scores(1.0))
    assert not is_causal(np.zeros((1, 1, 1, 1)), past, new, Scores(1.0))
    assert is_causal(np.zeros((1, 1, 1, 1)), past, new, Scores(1.0, causal=True))
    assert not is_causal(np.where(mask < 0, mask, 0.1), past, new, Scores(1.0))
    assert not is_causal(np.where(mask < 0, np.inf, 0), past, new, Scores(1.0))
    assert is_causal(np.where(mask < 0, np.inf, 0), past, new, Scores(1.0, fill=-np.inf))
    assert not is_causal(np.where(mask < 0, np.inf, 0), past, new, Scores(1.0, fill=-3.0))
    assert not is_causal(np.zeros((1, 4)), past, new, Scores(1.0))
