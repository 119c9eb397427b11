"""The scores that a caller asks for, and no others: what the pass cuts, what it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.decoders.small import VOCABULARY, small_decoder
from tvmopt.importer import import_model
from tvmopt.passes import FuseAttention, KeepCaches, KeepLastScores, MarkCaches, PropagateTransposes
from tvmopt.report import DecisionLog

CAP = ("Mul", "Tanh", "Cast")


def rewritten(model: onnx.ModelProto, kind: str = "llvm") -> tuple[Any, DecisionLog]:
    module, log = import_model(model).module, DecisionLog()
    for one in (MarkCaches(log), PropagateTransposes(), FuseAttention(), KeepCaches(kind, log), KeepLastScores(log)):
        module = one(module)
    return module["main"], log


def after_the_head(model: onnx.ModelProto, *kinds: str) -> onnx.ModelProto:
    """The model with operators between the head's product and the scores."""
    (head,) = (n for n in model.graph.node if n.output[0] == "logits")
    name = head.output[0] = "product"
    half = numpy_helper.from_array(np.full((VOCABULARY,), 0.5, np.float32), "half")
    model.graph.initializer.append(half)
    for i, kind in enumerate(kinds):
        out = "logits" if i == len(kinds) - 1 else f"after_{i}"
        given = [name, "half"] if kind == "Mul" else [name]
        model.graph.node.append(helper.make_node(kind, given, [out], **({"to": 1} if kind == "Cast" else {})))
        name = out
    return model


def rows(main: Any) -> tuple[str, list[str]]:
    """The tokens of the first output, and the calls of `last_rows`."""
    shape = main.ret_ty.fields[0].shape
    found = [b.value for block in main.body.blocks for b in block.bindings]
    cuts = [v for v in found if getattr(getattr(v, "op", None), "name", "") == "tvmopt.last_rows"]
    return str(shape[1]), [str(cut.args[1]) for cut in cuts]


@pytest.mark.parametrize("style", ["grouped", "plain"])
@pytest.mark.parametrize("kinds", [(), CAP])
def test_the_head_multiplies_the_last_rows(style: str, kinds: tuple[str, ...]) -> None:
    model = small_decoder(style)
    main, log = rewritten(after_the_head(model, *kinds) if kinds else model)
    tokens, cuts = rows(main)
    assert tokens == "scores" and len(cuts) == 1
    assert any(d.stage == "tvmopt.KeepLastScores" and d.verdict == "applied" for d in log)


@pytest.mark.parametrize("kinds", [("Softmax",), ("Tanh", "CumSum")])
def test_what_joins_tokens_is_left_alone(kinds: tuple[str, ...]) -> None:
    model = small_decoder()
    if "CumSum" in kinds:
        model = after_the_head(model, "Tanh", "Neg")
        model.graph.initializer.append(numpy_helper.from_array(np.array(1), "axis"))
        last = model.graph.node[-1]
        last.op_type = "CumSum"
        last.input.append("axis")
    else:
        model = after_the_head(model, *kinds)
    main, log = rewritten(model)
    tokens, cuts = rows(main)
    assert tokens != "scores" and not cuts
    assert any(d.stage == "tvmopt.KeepLastScores" and d.reason.startswith("1") for d in log)


def test_scores_that_something_else_reads_are_left_alone() -> None:
    model = after_the_head(small_decoder(), "Tanh")
    model.graph.node.append(helper.make_node("ReduceMax", ["product"], ["most"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("most", 1, []))
    main, log = rewritten(model)
    assert not rows(main)[1]
    assert any(d.reason.startswith("2") for d in log if d.stage == "tvmopt.KeepLastScores")


def test_gpus_keep_all_scores() -> None:
    assert not rows(rewritten(small_decoder(), "cuda")[0])[1]
