"""The stage that a Hugging Face `preprocessor_config.json` describes, as text - for `--preprocess image:@FILE`.

What the file asks for and there is not is refused by name: a stage that is nearly right is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError, collect, reason
from tvmopt.files import open_plain
from tvmopt.preprocessing.picture import written

FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers of filters."""

DONE = frozenset(
    {"do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor"}
    | {"do_normalize", "image_mean", "image_std", "do_flip_channel_order"}
)
"""Keys that this file reads."""

BESIDE = frozenset(
    {"image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "return_tensors"}
    | {"data_format", "input_data_format", "device", "disable_grouping", "default_to_square", "_valid_processor_keys"}
    | {"auto_map", "use_fast", "transformers_version"}
)
"""Keys that say nothing of the pixels, where pictures are RGB."""

SMALL = 384
"""ConvNeXt's processor (ResNet's, too) crops pictures below this size, and squeezes larger ones."""


def from_config(path: Path) -> str:
    """The text of the stage.

    Raises:
        InputError: the file cannot be read, or asks for what there is not: all of it.
    """
    try:
        with open_plain(path) as file:
            config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        fix = "give a Hugging Face preprocessor_config.json"
        raise InputError(f"the configuration cannot be read: {reason(error)}", where=str(path), fix=fix) from None
    return written(_Reader(config, str(path)).options())


class _Reader:
    """Reads one configuration, and collects what is wrong with it."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self.problems: list[InputError] = []

    def options(self) -> dict[str, Any]:
        """The stage by the keys of :mod:`tvmopt.preprocessing.picture`."""
        for key, value in self.config.items():
            if key not in DONE | BESIDE and value not in (None, False):
                self.refuse(key, value, "leave it to the caller, and take it out of a copy of the file")
        found = {**self.resizing(), **self.cropping(), **self.scaling(), "centre": "floor"}
        if self.config.get("do_flip_channel_order"):
            found["model"] = "bgr"
        if self.problems:
            raise collect(self.problems)
        return found

    def refuse(self, key: str, value: Any, fix: str) -> dict[str, Any]:
        """Note that a key has a value that there is nothing for."""
        what = f"{key} = {json.dumps(value)[:80]} is nothing that is done here."
        self.problems.append(InputError(what, where=f"{self.where}, {key}", fix=fix))
        return {}

    def resizing(self) -> dict[str, Any]:
        if not self.config.get("do_resize", "size" in self.config):
            return {}
        size, number = self.config.get("size"), self.config.get("resample")
        if not isinstance(number, int) or number not in FILTERS:
            self.refuse(
                "resample", number, f"write Pillow's number: {', '.join(f'{n} {f}' for n, f in FILTERS.items())}"
            )
        found = {"filter": FILTERS.get(number, "") if isinstance(number, int) else ""}
        if isinstance(size, dict) and set(size) == {"height", "width"} and all(map(_is_side, size.values())):
            return found | {"resize": (size["height"], size["width"])}
        if isinstance(size, dict) and set(size) == {"shortest_edge"} and _is_side(size["shortest_edge"]):
            return found | self.shortest(size["shortest_edge"])
        fix = 'write {"shortest_edge": 256} or {"height": 224, "width": 224}; a bare number means either'
        return self.refuse("size", size, fix)

    def shortest(self, side: int) -> dict[str, Any]:
        """The shorter side; with `crop_pct` as ConvNeXt's processor reads it."""
        share = self.config.get("crop_pct")
        if share is None:
            return {"resize": side}
        if not isinstance(share, int | float) or not 0 < share <= 1:
            return self.refuse("crop_pct", share, "a share above 0, up to 1")
        if side >= SMALL:
            return {"resize": (side, side)}
        return {"resize": int(side / share), "crop": (side, side), "pad": "zero"}

    def cropping(self) -> dict[str, Any]:
        if not self.config.get("do_center_crop", False):
            return {}
        size = self.config.get("crop_size")
        sides = (size["height"], size["width"]) if isinstance(size, dict) and set(size) == {"height", "width"} else size
        sides = (sides, sides) if _is_side(sides) else sides
        if not isinstance(sides, tuple) or not all(map(_is_side, sides)):
            return self.refuse("crop_size", size, 'write {"height": 224, "width": 224}')
        return {"crop": sides, "pad": "zero"}

    def scaling(self) -> dict[str, Any]:
        found: dict[str, Any] = {"scale": 1}
        if self.config.get("do_rescale", True):
            factor = self.config.get("rescale_factor", 1 / 255)
            if not isinstance(factor, int | float) or isinstance(factor, bool):
                return self.refuse("rescale_factor", factor, "a number: 0.00392156862745098")
            found["scale"] = factor
        if self.config.get("do_normalize", "image_mean" in self.config):
            for key, name in (("image_mean", "mean"), ("image_std", "std")):
                values = self.config.get(key)
                values = [values] if isinstance(values, int | float) else values
                if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
                    return self.refuse(key, values, "one number a channel: [0.5, 0.5, 0.5]")
                found[name] = [float(v) for v in values]
        return found


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
