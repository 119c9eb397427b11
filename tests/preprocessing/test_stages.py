"""Stages as nodes of a model, beside Pillow and NumPy, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.test_resampling import pictures, rows_first_in_pillow
from tests.preprocessing.models import identity, prepared
from tvmopt.errors import InputError
from tvmopt.preprocessing.stages import rows_first, staged

Image = pytest.importorskip("PIL.Image")
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
TEXT = "image:resize=40,crop=33x31,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"


def by_pillow(x: np.ndarray, size: tuple[int, int], crop: tuple[int, int], name: str = "BILINEAR") -> np.ndarray:
    """The cropped bytes of one picture, as torchvision crops."""
    image = Image.fromarray(x).resize(size[::-1], getattr(Image.Resampling, name))
    left, top = round((size[1] - crop[1]) / 2), round((size[0] - crop[0]) / 2)
    return np.asarray(image.crop((left, top, left + crop[1], top + crop[0])))


def normal(x: np.ndarray) -> np.ndarray:
    return ((x.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)


@pytest.mark.parametrize("opset", [8, 9, 13, 17, 21])
def test_the_usual_stage(opset: int) -> None:
    x = np.stack([pictures(48, 64, seed) for seed in range(2)])
    found = prepared(TEXT + ",from=48x64", x, ["n", 3, 33, 31], opset=opset)
    wanted = np.stack([normal(by_pillow(one, (40, 53), (33, 31))) for one in x])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["NEAREST", "BOX", "BILINEAR", "BICUBIC", "LANCZOS"])
@pytest.mark.parametrize("given", [(1, 1), (7, 9), (33, 17), (90, 120), (120, 31)])
@pytest.mark.parametrize(("size", "crop"), [((9, 8), (9, 8)), ((33, 32), (8, 7)), ((16, 31), (15, 16))])
def test_filters_sizes_and_crops(name: str, given: Any, size: Any, crop: Any) -> None:
    if rows_first(given, size) and not rows_first_in_pillow():
        pytest.skip("this Pillow begins with the columns")
    text = f"image:resize={size[0]}x{size[1]},crop={crop[0]}x{crop[1]},filter={name},scale=1,from={given[0]}x{given[1]}"
    x = pictures(*given)
    found = prepared(text, x[None], [1, 3, *crop])
    np.testing.assert_array_equal(found[0].transpose(1, 2, 0), by_pillow(x, size, crop, name))


@pytest.mark.parametrize(
    ("more", "shape", "pick"),
    [
        ("", [1, 3, 9, 8], lambda y: y.transpose(2, 0, 1)),
        ("", [1, 9, 8, 3], lambda y: y),
        ("", ["n", "c", "h", "w"], lambda y: y.transpose(2, 0, 1)),
        (",pixels=bgr", [1, 3, 9, 8], lambda y: y.transpose(2, 0, 1)[::-1]),
        (",model=bgr", [1, 3, 9, 8], lambda y: y.transpose(2, 0, 1)[::-1]),
        (",pixels=bgr,model=bgr", [1, 3, 9, 8], lambda y: y.transpose(2, 0, 1)),
    ],
)
def test_channels_and_layouts(more: str, shape: Any, pick: Any) -> None:
    x = pictures(11, 13)
    wanted = pick(by_pillow(x, (9, 8), (9, 8))).astype(np.float32)
    text = f"image:resize=9x8,scale=1,from=11x13{more}"
    np.testing.assert_array_equal(prepared(text, x[None], shape)[0], wanted)
    turned = np.ascontiguousarray(x.transpose(2, 0, 1)[None])
    np.testing.assert_array_equal(prepared(text + ",layout=NCHW", turned, shape)[0], wanted)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey(channels: int) -> None:
    x = pictures(11, 13)[..., :1]
    wanted = np.asarray(Image.fromarray(x[..., 0]).resize((8, 9), Image.Resampling.BICUBIC)).astype(np.float32)
    text = "image:resize=9x8,scale=1,pixels=grey,filter=bicubic,from=11x13"
    found = prepared(text, x[None], [1, channels, 9, 8])
    np.testing.assert_array_equal(found[0], np.stack([wanted] * channels))


@pytest.mark.parametrize("elem", [TensorProto.UINT8, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_types(elem: int) -> None:
    x = pictures(11, 13)
    wanted = by_pillow(x, (9, 8), (9, 8)).transpose(2, 0, 1)
    more = "" if elem == TensorProto.UINT8 else ",scale=1"
    found = prepared(f"image:resize=9x8,from=11x13{more}", x[None], [1, 3, 9, 8], elem)
    assert found.dtype == helper.tensor_dtype_to_np_dtype(elem)
    np.testing.assert_array_equal(found[0], wanted)


def test_zeros_around_a_small_picture() -> None:
    x = pictures(11, 14)
    text = "image:crop=16x17,scale=1,pad=zero,from=11x14"
    for more, top, left in (("", 2, 1), (",centre=floor", 3, 2)):
        wanted = np.zeros((16, 17, 3))
        wanted[top : top + 11, left : left + 14] = x
        found = prepared(text + more, x[None], [1, 3, 16, 17])[0].transpose(1, 2, 0)
        np.testing.assert_array_equal(found, wanted)


def test_nothing_is_done_for_nothing() -> None:
    """Pictures of the model's size are only scaled; rows that a crop leaves out are not resampled."""
    model = staged(identity([1, 3, 9, 8]), {"": "image:"})
    assert [n.op_type for n in model.graph.node] == ["Cast", "Mul", "Transpose", "Identity"]
    model = staged(identity([1, 3, 4, 8]), {"": "image:resize=100x8,crop=4x8,from=100x8"})
    rows = next(t for t in model.graph.initializer if t.name.endswith("columns/rows"))
    assert numpy_helper.to_array(rows).tolist() == [48, 49, 50, 51]


def test_the_model_is_left_alone() -> None:
    model = identity([1, 3, 33, 31])
    before = model.SerializeToString()
    staged(model, {"x": TEXT + ",from=48x64"})
    assert model.SerializeToString() == before


def test_uses_in_branches_are_renamed() -> None:
    """An input that an If's branches read from outside."""
    value = [helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 3, 4, 4])]
    branches = [helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], value) for op in ("Identity", "Neg")]
    node = helper.make_node("If", ["on"], ["y"], then_branch=branches[0], else_branch=branches[1])
    model = identity([1, 3, 4, 4])
    del model.graph.node[:]
    model.graph.node.append(node)
    model.graph.input.append(helper.make_tensor_value_info("on", TensorProto.BOOL, []))
    made = staged(model, {"x": "image:scale=1"})
    onnx.checker.check_model(made, full_check=True)


@pytest.mark.parametrize(
    ("text", "shape", "told"),
    [
        ("image:resize=40,crop=33x31", [1, 3, 33, 31], "the size of the pictures is not known"),
        ("image:crop=50,from=48x64", [1, 3, 50, 50], "the crop of 50x50 is larger than the picture of 48x64"),
        ("image:resize=40,crop=20,from=48x64", [1, 3, 33, 31], "makes pictures of 20x20, and the model takes 33x31"),
        ("image:resize=40", [1, 7, 33, 31], "neither one nor three channels"),
        ("image:resize=40", [3, 33, 31], "no input of four dimensions"),
        ("image:resize=33x31,from=9x9", [1, 1, 33, 31], "the model takes grey pictures"),
        ("image:pixels=grey,mean=1/2/3", [1, 1, 9, 9], "mean has 3 numbers"),
    ],
)
def test_what_does_not_fit_is_told(text: str, shape: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        staged(identity(shape), {"": text})
    assert text in error.value.where and error.value.fix


def test_bytes_are_not_scaled() -> None:
    with pytest.raises(InputError, match="takes bytes"):
        staged(identity([1, 3, 9, 9], TensorProto.UINT8), {"": "image:mean=0.5"})
    with pytest.raises(InputError, match="float or uint8"):
        staged(identity([1, 3, 9, 9], TensorProto.INT64), {"": "image:"})


def test_inputs_by_name() -> None:
    model = identity([1, 3, 9, 9])
    with pytest.raises(InputError, match="no input 'z'"):
        staged(model, {"z": "image:"})
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 3, 9, 9]))
    with pytest.raises(InputError, match="several inputs"):
        staged(model, {"": "image:"})
    assert [v.type.tensor_type.elem_type for v in staged(model, {"x": "image:"}).graph.input] == [2, 1]


def convolution(batch: int | str = 1, opset: int = 17) -> onnx.ModelProto:
    """A strided convolution with a border, as first layers are."""
    w = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2], name="conv")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 33, 31])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8, 17, 16])], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = min(made.ir_version, 8)
    return made


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("given", [(48, 64), (90, 41)])
def test_compiled(opset: int, given: tuple[int, int]) -> None:
    """Verified with pictures of all bytes, the layout of the pictures is that of the convolution, and the numbers are
    those of the model on Pillow's."""
    text = f"{TEXT},from={given[0]}x{given[1]}"
    compiled = tvmopt.compile(convolution(opset=opset), preprocess=text, threads=1)
    assert compiled.report.accuracy["verified"] and compiled.report.accuracy["kernels"] >= 2
    assert compiled.manifest.options["preprocess"] == {"": text}
    assert compiled.manifest.options["bounds"] == {"x": (0, 256)}
    (info,) = compiled.manifest.inputs
    assert (info.name, info.shape, info.dtype) == ("x", (1, *given, 3), "uint8")
    names = [k.name for k in compiled.report.kernels]
    assert sum("transpose" in name for name in names) <= 1 and sum("resample" in name for name in names) == 2, names
    x = pictures(*given)
    size = (40, 53) if given[0] < given[1] else (87, 40)
    plain = tvmopt.compile(convolution(opset=opset), threads=1, verify=False)
    wanted = plain(normal(by_pillow(x, size, (33, 31)))[None])
    np.testing.assert_allclose(compiled(x[None]), wanted, rtol=0, atol=1e-5)


def test_an_open_batch() -> None:
    compiled = tvmopt.compile(convolution("n"), preprocess={"x": TEXT + ",from=48x64"}, threads=1)
    x = np.stack([pictures(48, 64, seed) for seed in range(3)])
    each = [compiled(one[None])[0] for one in x]
    np.testing.assert_allclose(compiled(x), np.stack(each), rtol=0, atol=1e-5)


def test_weights_are_exchanged() -> None:
    """`refit` knows the stage from the artifact."""
    compiled = tvmopt.compile(convolution(), preprocess=TEXT + ",from=48x64", threads=1)
    model = convolution()
    other = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(2)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(other, "w"))
    fitted = tvmopt.refit(compiled.artifact, model)
    assert fitted.report.accuracy["verified"]
    x = pictures(48, 64)[None]
    np.testing.assert_allclose(fitted(x), 2 * compiled(x), rtol=1e-5, atol=1e-4)
