"""Calibration data: pictures, .npy and .npz files, as inputs of a model - for everybody who runs it on them."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.errors import InputError, MissingDependency, reason
from tvmopt.files import open_plain
from tvmopt.importer.protos import dtype_name
from tvmopt.importer.shapes import real_inputs

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"})
NO_DATA = "give real inputs of the model: --data FOLDER of pictures, .npy or .npz files, or --data FILE.npz"


@dataclass(frozen=True)
class Input:
    """One input of a model.

    Attributes:
        dtype: NumPy's name of its type.
        shape: its sizes; None for one that is open.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


def inputs_of(model: onnx.ModelProto) -> list[Input]:
    """The inputs that a caller feeds."""
    found = []
    for value in real_inputs(model.graph):
        tensor = value.type.tensor_type
        sizes = tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim)
        found.append(Input(value.name, dtype_name(tensor.elem_type), sizes))
    return found


@dataclass(frozen=True)
class Data:
    """Where calibration data is, and how pictures become inputs.

    Attributes:
        path: a folder, or a .npy or .npz file.
        samples: how many to take at most.
        mean, std: of the channels of a picture whose values are from 0 to 1: the input is ``(x - mean) / std``. One
            number stands for all channels.
    """

    path: str
    samples: int = 300
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def feeds(self, inputs: list[Input]) -> Iterator[Feeds]:
        """The inputs of each sample, in an order that does not change.

        Raises:
            InputError: a file that cannot be read, does not fit the model, or holds NaN or infinity; no file at all.
            MissingDependency: pictures without Pillow.
        """
        count = 0
        for where, arrays in self._samples(inputs):
            if count == self.samples:
                return
            yield {one.name: _fitted(one, arrays, where, len(inputs) == 1) for one in inputs}
            count += 1
        if not count:
            raise InputError("No data, no calibration: there is no sample.", where=self.path, fix=NO_DATA)

    def _samples(self, inputs: list[Input]) -> Iterator[tuple[str, Mapping[str, Array]]]:
        path = Path(self.path)
        if not path.exists():
            raise InputError("The data does not exist.", where=self.path, fix=NO_DATA)
        pictures = path.is_dir() and any(p.suffix.lower() in PICTURES for p in path.iterdir())
        if (self.mean, self.std) != (Data.mean, Data.std) and not pictures:
            raise InputError(
                "A mean and a standard deviation are of pictures, and there is none: arrays are taken as they are.",
                where=self.path,
                fix="leave --mean and --std out, or save the arrays with both applied",
            )
        if not path.is_dir():
            yield from _rows(path, inputs)
            return
        for file in sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")):
            if file.suffix.lower() in PICTURES:
                yield str(file), {"": self._picture(file, inputs)}
            elif file.suffix in (".npy", ".npz"):
                yield str(file), _arrays(file)
            else:
                raise InputError("This is no picture, .npy or .npz file.", where=str(file), fix="take it out")

    def _picture(self, file: Path, inputs: list[Input]) -> Array:
        """A picture in the size, layout and type of the model's one input."""
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingDependency(
                "Pictures are read by Pillow, which is not installed.",
                where=str(file),
                fix="pip install 'tvmopt[quantize]', or give .npy files",
            ) from error
        shape = inputs[0].shape
        if len(inputs) > 1 or len(shape) != 4:
            raise InputError(
                "Pictures are for models of one input with four axes.", where=str(file), fix="give .npz files"
            )
        last = shape[3] in (1, 3, 4) and shape[1] not in (1, 3)
        channels = shape[3] if last else shape[1]
        height, width = shape[1:3] if last else shape[2:4]
        if channels not in (1, 3, 4) or height is None or width is None:
            raise InputError(
                f"The size of the model's pictures is not known: input '{inputs[0].name}' is {list(shape)}.",
                where=str(file),
                fix=f"bind it: --shape {inputs[0].name}:1x3x224x224",
            )
        try:
            with Image.open(file) as opened:
                mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
                resized = opened.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
                pixels = np.asarray(resized).reshape(height, width, channels)
        except (OSError, ValueError) as error:
            raise InputError(f"The picture cannot be read: {reason(error)}.", where=str(file)) from error
        if inputs[0].dtype != "uint8":
            for name, numbers in (("mean", self.mean), ("std", self.std)):
                if len(numbers) not in (1, channels):
                    raise InputError(f"A picture has {channels} channels.", where=f"--{name}", fix="one number each")
            mean, std = (np.array(v, np.float32) for v in (self.mean, self.std))
            wide = (pixels / np.float32(255) - mean) / std
            pixels = wide.astype(inputs[0].dtype)
        return pixels[None] if last else np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]


def _arrays(file: Path) -> dict[str, Array]:
    """What a file holds, a single array under the name ""."""
    try:
        with open_plain(file) as stream:
            loaded = np.load(stream, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"The data cannot be read: {reason(error)}.", where=str(file), fix=NO_DATA) from error


def _rows(file: Path, inputs: list[Input]) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """The samples of one file: slices of the first axis, as many as the model takes at once."""
    arrays = _arrays(file)
    counts = {}
    for one in inputs:
        array = _array_of(one, arrays, str(file), len(inputs) == 1)
        whole = array.ndim == len(one.shape) + 1  # one input of the model a sample
        counts[one.name] = (array, whole, 1 if whole else (one.shape[0] or 1) if one.shape else 1)
    sizes = {name: len(a) // step for name, (a, _, step) in counts.items() if a.ndim}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"'{n}' {k}" for n, k in sizes.items())
        raise InputError(f"The arrays hold different numbers of samples: {told}.", where=str(file))
    for i in range(next(iter(sizes.values()), 1)):
        sample = {
            name: (a[i] if whole else a[i * step : (i + 1) * step]) if a.ndim else a
            for name, (a, whole, step) in counts.items()
        }
        if i == 0:
            for one in inputs:
                if _shaped(one, sample[one.name]) is None:
                    a = counts[one.name][0]
                    text = f"{_declared(one)}; this is {a.dtype}{list(a.shape)}, whose first axis counts samples."
                    raise InputError(text, where=str(file), fix="give samples of the model's shape, one behind another")
        yield f"{file}, sample {i}", sample


def _array_of(one: Input, arrays: Mapping[str, Array], where: str, single: bool) -> Array:
    """The array of one input; a model of a single input takes one without a name.

    Raises:
        InputError: there is none.
    """
    array = arrays.get(one.name, arrays.get("") if single else None)
    if array is None:
        given = ", ".join(f"'{n}'" if n else "one without a name" for n in arrays) or "none"
        text = f"There is no array for input '{one.name}'; there is {given}."
        raise InputError(text, where=where, fix="name the arrays as the inputs, in a .npz file")
    return array


def _fitted(one: Input, arrays: Mapping[str, Array], where: str, single: bool) -> Array:
    """The array of one input, of its type and shape; a missing batch axis of one is added.

    Raises:
        InputError: there is none, or it does not fit, or it is not finite.
    """
    array = _array_of(one, arrays, where, single)
    shaped = _shaped(one, array)
    if shaped is None:
        text = f"{_declared(one)}; this is {array.dtype}{list(array.shape)}."
        raise InputError(text, where=where, fix="give samples of the model's shape")
    array = shaped
    kind = np.dtype(one.dtype).kind
    if array.dtype.name != one.dtype and not (kind == "f" and array.dtype.kind == "f"):
        text = f"Input '{one.name}' is {one.dtype}; this is {array.dtype}."
        raise InputError(text, where=where, fix=f"save it as {one.dtype}")
    if kind == "f" and not np.isfinite(array).all():
        raise InputError(f"The data of input '{one.name}' has NaN or infinity.", where=where, fix="leave it out")
    return np.ascontiguousarray(array, dtype=one.dtype)


def _shaped(one: Input, array: Array) -> Array | None:
    """An array with the axes of an input; None where its shape does not fit."""
    if array.ndim == len(one.shape) - 1 and one.shape[0] in (1, None):
        array = array[None]
    fits = array.ndim == len(one.shape) and all(s in (None, d) for s, d in zip(one.shape, array.shape, strict=True))
    return array if fits else None


def _declared(one: Input) -> str:
    sizes = "x".join("?" if d is None else str(d) for d in one.shape)
    return f"Input '{one.name}' is {one.dtype}[{sizes}]"


def digest(feeds: Iterator[Feeds]) -> tuple[str, int]:
    """The SHA-256 of all samples - names, types, shapes and bytes in order - and how many there are."""
    total, count = hashlib.sha256(), 0
    for sample in feeds:
        count += 1
        for name, array in sorted(sample.items()):
            total.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
            total.update(array.tobytes())
    return total.hexdigest(), count
