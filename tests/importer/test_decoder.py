"""The roles of a decoder's inputs, and the names of its sizes."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from tests.decoders.small import small_decoder
from tests.decoders.translator import step_model
from tvmopt.dims import Range
from tvmopt.errors import ModelError
from tvmopt.importer import open_model, prepare
from tvmopt.importer.decoder import find
from tvmopt.runtime.roles import Cache, Roles

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: list[int | str], kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.decoder.key", "present.0.decoder.key"),
        ("past_key_0", "present_key_0"),
        ("past_key_values.0.key", "present_key_values.0.key"),
    ],
)
def test_names_of_exporters(past: str, present: str) -> None:
    inputs = [value("input_ids", ["b", "s"], INT), value(past, ["b", 2, "p", 8])]
    found = find(inputs, [value("logits", ["b", "s", 9]), value(present, ["b", 2, "t", 8])])
    assert found == Roles((Cache(past, present),), "input_ids", logits="logits")


@pytest.mark.parametrize(
    ("past", "present", "shape", "kind"),
    [
        ("past_key_values.0.encoder.key", "present.0.encoder.key", ["b", 2, "p", 8], FLOAT),  # does not grow
        ("past_key_values.0.key", "present.1.key", ["b", 2, "p", 8], FLOAT),
        ("past_0", "present_0", [2, "b", 2, "p", 8], FLOAT),
        ("past_key_0", "present_key_0", ["b", 2, "p", 8], INT),
        ("history", "present", ["b", 2, "p", 8], FLOAT),
    ],
)
def test_what_is_no_cache(past: str, present: str, shape: list[int | str], kind: int) -> None:
    inputs = [value("input_ids", ["b", "s"], INT), value(past, shape, kind)]
    assert not find(inputs, [value("logits", ["b", "s", 9]), value(present, shape, kind)])


@pytest.mark.parametrize("style", ["grouped", "plain"])
def test_two_symbols_are_enough(style: str) -> None:
    made = open_model.read(prepare(small_decoder(style, layers=2)))
    past = "past_length" if style == "grouped" else "past_sequence_length"
    assert set(made.ranges) == {past, "sequence"}
    assert (made.ranges[past].min, made.ranges[past].max) == (0, 47)  # 48 positions, one of them new
    assert made.ranges["sequence"].min == 1 and len(made.caches) == 4


def test_sizes_that_a_caller_names_stay() -> None:
    bound = prepare(small_decoder("grouped"), {"past_length": (7,), "sequence": (1,)})
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in bound.graph.input}
    assert shapes["attention_mask"] == [1, 8] and shapes["past_key_values.0.key"] == [1, 2, 7, 16]
    made = open_model.read(prepare(small_decoder("grouped"), {"batch": ("1..4",), "past_length": ("0..9",)}))
    assert made.ranges["batch"].max == 4 and made.ranges["past_length"] == Range(0, 9, 9)


def test_caches_that_forget_are_refused_by_name() -> None:
    """onnxruntime-genai's builder writes so where layers look back through a window: two lengths are no one length."""
    model = small_decoder(layers=2)
    for value in model.graph.input:
        if value.name.startswith("past_key_values.1"):
            value.type.tensor_type.shape.dim[2].dim_param = "past_sliding_length"
    with pytest.raises(ModelError, match="length of their own, 'past_sliding_length'") as caught:
        prepare(model)
    assert caught.value.where == "past_key_values.1.key, past_key_values.1.value"
    assert "past_length" in caught.value.fix
    for value in model.graph.input:  # all of them: one length, whatever its name
        if value.name.startswith("past_key_values"):
            value.type.tensor_type.shape.dim[2].dim_param = "past_sliding_length"
    assert "past_sliding_length" in open_model.read(prepare(model)).ranges


def test_what_a_decoder_looks_at_has_one_length_and_one_batch() -> None:
    """However an exporter names the sizes of each tensor. An encoder's output does not go through in pieces."""
    model = step_model(layers=1)
    for number, each in enumerate(model.graph.input):
        if "encoder" in each.name:
            for axis, dim in enumerate(each.type.tensor_type.shape.dim):
                dim.dim_param = dim.dim_param and f"s{number}_{axis}"
    prepared = prepare(model)
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in prepared.graph.input}
    assert shapes["past_key_values.0.encoder.key"] == [1, 4, "encoder_sequence_length", 8]
    assert shapes["encoder_attention_mask"] == [1, "encoder_sequence_length"]
    ranges = open_model.read(prepared).ranges
    assert len(ranges) == 3
    assert ranges["encoder_sequence_length"].max == 4096
