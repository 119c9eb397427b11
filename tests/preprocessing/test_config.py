"""Hugging Face's configurations as stages, beside what its processors compute with NumPy and Pillow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.preprocessing.models import prepared
from tvmopt.errors import InputError
from tvmopt.preprocessing.asked import stages
from tvmopt.preprocessing.picture import parse

VIT = {
    "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTImageProcessor", "image_std": [0.5, 0.5, 0.5], "resample": 2,
    "rescale_factor": 0.00392156862745098, "size": {"height": 64, "width": 48},
}  # fmt: skip
CLIP = {
    "crop_size": {"height": 51, "width": 62}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3, "size": {"shortest_edge": 64},
}  # fmt: skip
RESNET = {
    "crop_pct": 0.875, "do_normalize": True, "do_resize": True, "feature_extractor_type": "ConvNextFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3,
    "size": {"shortest_edge": 56},
}  # fmt: skip


def text(tmp_path: Path, config: Any, more: str = "") -> str:
    file = tmp_path / "preprocessor_config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return stages(f"image:@{file}{more}")[""]


def test_the_fields(tmp_path: Path) -> None:
    found = parse(text(tmp_path, VIT, ",from=480x640"))
    assert (found.resize, found.crop, found.filter, found.given) == ((64, 48), None, "bilinear", (480, 640))
    assert (found.scale, found.mean, found.std) == (1 / 255, (0.5,) * 3, (0.5,) * 3)
    found = parse(text(tmp_path, CLIP))
    assert (found.resize, found.crop, found.filter, found.centre) == (64, (51, 62), "bicubic", "floor")
    found = parse(text(tmp_path, RESNET))
    assert (found.resize, found.crop) == (64, (56, 56))
    assert parse(text(tmp_path, RESNET | {"size": {"shortest_edge": 384}})).resize == (384, 384)
    found = parse(text(tmp_path, VIT | {"do_rescale": False, "do_normalize": False, "do_resize": False}))
    assert (found.resize, found.scale, found.mean) == (None, 1, ())
    assert parse(text(tmp_path, VIT | {"do_flip_channel_order": True})).model == "bgr"


@pytest.mark.parametrize(("processor", "config"), [("ViT", VIT), ("CLIP", CLIP), ("ConvNext", RESNET)])
@pytest.mark.parametrize("size", [(97, 131), (131, 97), (60, 61)])
def test_as_the_processor_does(tmp_path: Path, processor: str, config: Any, size: tuple[int, int]) -> None:
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{processor}ImageProcessorPil", None)
    if made is None:
        pytest.skip("these transformers have no processor that uses Pillow")
    x = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = made(**{k: v for k, v in config.items() if not k.endswith("_type")})(images=x, return_tensors="np")
    wanted = theirs["pixel_values"]
    ours = prepared(text(tmp_path, config, f",from={size[0]}x{size[1]}"), x[None], wanted.shape)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"do_pad": True}, "do_pad"),
        ({"do_reduce_labels": True}, "do_reduce_labels"),
        ({"size": 224}, "a bare number means either"),
        ({"size": {"shortest_edge": 5, "longest_edge": 9}}, "size"),
        ({"size": {"height": 0, "width": 9}}, "size"),
        ({"resample": None}, "resample"),
        ({"resample": 9}, "Pillow's number"),
        ({"do_center_crop": True}, "crop_size"),
        ({"rescale_factor": "1/255"}, "rescale_factor"),
        ({"image_mean": "0.5"}, "image_mean"),
        ({"image_std": [0.0, 0.5, 0.5]}, "std"),
        ({"some_new_thing": {"a": 1}}, "some_new_thing"),
    ],
)
def test_what_is_not_done_is_refused_by_name(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        text(tmp_path, VIT | change)
    message = str(error.value)
    assert told in message and "where: " in message and "fix:   " in message


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": ' * 3, "\x00"])
def test_files_that_are_none(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        text(tmp_path, content)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        stages("image:@/nowhere/preprocessor_config.json")
