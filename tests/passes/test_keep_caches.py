"""Caches that stay where they are: what the pass takes, what it leaves, and that the two forms agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.decoders.small import small_decoder
from tvmopt.importer import import_model
from tvmopt.passes import FuseAttention, KeepCaches, MarkCaches, PropagateTransposes
from tvmopt.passes.keep_caches import IN_PLACE
from tvmopt.report import DecisionLog


def rewritten(model: onnx.ModelProto, kind: str = "llvm") -> tuple[Any, DecisionLog]:
    module, log = import_model(model).module, DecisionLog()
    for one in (MarkCaches(log), PropagateTransposes(), FuseAttention(), KeepCaches(kind, log)):
        module = one(module)
    return module["main"], log


def calls(main: Any) -> list[str]:
    found = [getattr(getattr(b.value, "op", None), "name", "") for block in main.body.blocks for b in block.bindings]
    return [name.removeprefix("tvmopt.") for name in found if name.startswith("tvmopt.")]


@pytest.mark.parametrize("style", ["grouped", "plain"])
def test_attention_reads_the_buffers(style: str) -> None:
    main, _ = rewritten(small_decoder(style, layers=2))
    assert IN_PLACE in main.attrs and int(main.attrs["num_input"]) == len(main.params)
    names = calls(main)
    assert [names.count(n) for n in ("append_rows", "cached_attention", "extend_cache")] == [4, 2, 0]
    caches = [p for p in main.params if str(p.name).startswith("past")]
    assert {str(p.ty.shape.values[2].name) for p in caches} == {"cache_capacity"}
    used = {str(v.name) for block in main.body.blocks for b in block.bindings for v in getattr(b.value, "args", ())
            if hasattr(v, "name")}  # fmt: skip
    rows = [str(b.var.name) for block in main.body.blocks for b in block.bindings
            if getattr(getattr(b.value, "op", None), "name", "") == "tvmopt.cached_rows"]  # fmt: skip
    assert rows and used  # left for dead code elimination: in the pipeline none is computed


@pytest.mark.parametrize("style", ["grouped", "plain"])
def test_gpus_keep_the_function(style: str) -> None:
    main, _ = rewritten(small_decoder(style), "cuda")
    assert IN_PLACE not in main.attrs and calls(main).count("extend_cache") == 2


def test_a_cache_that_is_read_twice_is_left_alone() -> None:
    model = small_decoder("plain")
    model.graph.node.append(helper.make_node("ReduceMax", ["past_key_values.0.key"], ["most"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("most", 1, []))
    main, log = rewritten(model)
    assert IN_PLACE not in main.attrs
    assert any("read otherwise" in d.reason for d in log)


def test_a_cache_of_another_type_is_left_alone() -> None:
    model = small_decoder("plain")
    for value in (*model.graph.input, *model.graph.output):
        if "key" in value.name or "value" in value.name:
            value.type.tensor_type.elem_type = 10
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = name
    casts = []
    for kind in ("key", "value"):
        concat = next(n for n in model.graph.node if n.output[0] == f"present.0.{kind}")
        casts.append(helper.make_node("Cast", [concat.input[1]], [f"narrow_{kind}"], to=10))
        concat.input[1] = f"narrow_{kind}"
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Concat" and node.output[0].startswith("present"):
            nodes += [c for c in casts if c.output[0] == node.input[1]]
        if node.op_type == "Unsqueeze" and node.input[0].startswith("present"):
            wide = f"wide_{node.input[0]}"
            nodes.append(helper.make_node("Cast", [node.input[0]], [wide], to=1))
            node.input[0] = wide
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    main, log = rewritten(model)
    assert IN_PLACE not in main.attrs
    assert any("float16" in d.reason for d in log if d.stage == "tvmopt.KeepCaches")


def test_moves_are_tried_with_numbers() -> None:
    """Heads repeated as a whole (0, 1, 0, 1) are not heads repeated in place (0, 0, 1, 1)."""
    model = small_decoder("plain")
    for node in model.graph.node:
        if node.op_type == "Unsqueeze" and node.input[0].startswith("present"):
            wrong = f"{node.output[0]}_axis"
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), wrong))
            node.input[1] = wrong
        if node.op_type == "Concat" and len(node.input) == 5:
            node.input[1], node.input[2] = node.input[2], node.input[1]
    main, _ = rewritten(model)
    assert calls(main).count("cached_attention") == 0 and calls(main).count("append_rows") == 2
