"""Calibration data: what is read, in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmopt.errors import InputError
from tvmopt.quantization.data import Data, Input, digest

X = Input("x", "float32", (1, 3, 4, 6))


def read(path: Path, inputs: list[Input] | None = None, **given: Any) -> list[dict[str, Any]]:
    return list(Data(str(path), **given).feeds(inputs or [X]))


def test_a_file_of_samples_with_and_without_a_batch_axis(tmp_path: Path) -> None:
    data = np.arange(5 * 72, dtype=np.float64).reshape(5, 3, 4, 6)
    np.save(tmp_path / "a.npy", data)
    np.savez(tmp_path / "b.npz", x=data[:, None].astype(np.float32))
    for name in ("a.npy", "b.npz"):
        found = read(tmp_path / name, samples=4)
        assert [f["x"].shape for f in found] == [(1, 3, 4, 6)] * 4 and found[0]["x"].dtype == np.float32
        assert all(np.array_equal(f["x"][0], data[i]) for i, f in enumerate(found))


def test_batches_larger_than_one_and_several_inputs(tmp_path: Path) -> None:
    inputs = [Input("ids", "int64", (2, None)), Input("mask", "float32", (2, 7))]
    np.savez(tmp_path / "d.npz", ids=np.arange(42).reshape(6, 7), mask=np.ones((6, 7), np.float32))
    found = read(tmp_path / "d.npz", inputs)
    assert len(found) == 3 and found[1]["ids"].tolist() == np.arange(14, 28).reshape(2, 7).tolist()
    np.savez(tmp_path / "d.npz", ids=np.arange(42).reshape(6, 7), mask=np.ones((4, 7), np.float32))
    with pytest.raises(InputError, match="different numbers"):
        read(tmp_path / "d.npz", inputs)
    np.savez(tmp_path / "d.npz", ids=np.arange(42).reshape(6, 7))
    with pytest.raises(InputError, match="no array for input 'mask'"):
        read(tmp_path / "d.npz", inputs)


def test_pictures_in_both_layouts(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0], pixels[..., 2] = 255, 51
    image.fromarray(pixels).save(tmp_path / "b.png")
    image.fromarray(pixels[::-1, ::-1]).resize((12, 8)).save(tmp_path / "a.png")
    found = read(tmp_path, mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 0.2))
    assert len(found) == 2
    assert np.allclose(found[1]["x"][0, :, 2, 3], [1.0, 0.0, 1.0])
    last = read(tmp_path, [Input("x", "uint8", (1, 4, 6, 3))])
    assert last[1]["x"][0, 1, 1].tolist() == [255, 0, 51]
    grey = read(tmp_path, [Input("x", "float32", (1, 1, 4, 6))])
    assert grey[0]["x"].shape == (1, 1, 4, 6)
    for inputs, words in (
        ([Input("x", "float32", (1, 3, None, None))], "size of the model's pictures is not known"),
        ([X, X], "one input with four axes"),
    ):
        with pytest.raises(InputError, match=words):
            read(tmp_path, inputs)
    with pytest.raises(InputError, match="3 channels"):
        read(tmp_path, mean=(0.1, 0.2))
    (tmp_path / "c.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="picture cannot be read"):
        read(tmp_path)


def test_mean_and_std_are_of_pictures(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros((2, 3, 4, 6), np.float32))
    for data in (tmp_path / "d.npy", tmp_path):
        for given in ({"mean": (1.0, 2.0)}, {"std": (0.5,)}):
            with pytest.raises(InputError, match="are of pictures, and there is none"):
                read(data, **given)


def test_the_shape_that_is_told_is_the_one_of_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros((3, 4, 6), np.float32))
    with pytest.raises(InputError, match=r"this is float32\[3, 4, 6\], whose first axis counts samples"):
        read(tmp_path / "d.npy")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    good = np.zeros((2, 3, 4, 6), np.float32)
    for array, words in (
        (np.zeros((2, 3, 4, 7), np.float32), r"float32\[1x3x4x6\]; this is"),
        (np.zeros((2, 3, 4, 6), np.int32), "float32; this is int32"),
        (np.where(np.arange(6) == 5, np.nan, good), "NaN or infinity"),
        (np.where(np.arange(6) == 5, np.inf, good), "NaN or infinity"),
        (good[:0], "no sample"),
    ):
        np.save(tmp_path / "d.npy", array)
        with pytest.raises(InputError, match=words):
            read(tmp_path / "d.npy")
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "missing")
    (tmp_path / "d.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "d.npy")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError, match="no sample"):
        read(folder)
    (folder / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="no picture"):
        read(folder)


def test_the_hash_is_of_names_types_shapes_and_bytes(tmp_path: Path) -> None:
    a = {"x": np.zeros((1, 2), np.float32)}
    others = [
        {"y": a["x"]}, {"x": a["x"].astype(np.float64)}, {"x": a["x"].reshape(2, 1)}, {"x": a["x"] + np.float32(1)},
    ]  # fmt: skip
    assert digest(iter([a])) == digest(iter([dict(a)]))
    assert len({digest(iter([one]))[0] for one in (a, *others)}) == 5
    assert digest(iter([a, a]))[0] != digest(iter([a]))[0]
