"""Artifacts whose outputs are as large as values decide: NonZero, Compress, NonMaxSuppression, rows of a loop."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tests.importer.test_loops import body, floats
from tvmopt.errors import InputError, ModelError, UnsupportedOp

node, BOOL, INT64 = helper.make_node, TensorProto.BOOL, TensorProto.INT64


def agrees(made, folder, cases, **options):
    """Compile to an artifact, load it, run every case and compare with onnxruntime; the loaded model."""
    file = folder / "m.onnx"
    onnx.save(made, file)
    tvmopt.compile(file, output=folder / "m.tvmopt", records=False, **options)
    loaded, session = tvmopt.load(folder / "m.tvmopt"), onnxruntime.InferenceSession(file)
    for feeds in cases:
        expected = session.run(None, feeds)
        for array, other in zip(loaded.run(feeds).values(), expected, strict=True):
            assert array.shape == other.shape and array.dtype == other.dtype
            np.testing.assert_allclose(array, other, 1e-5, 1e-5)
    return loaded


def sparse(seed, shape, share):
    x = floats(seed, *shape)
    return np.where(np.random.default_rng(seed).random(shape) < share, x, np.float32(0))


@pytest.mark.parametrize("shape", [(17,), (8, 16), (3, 5, 7)])
def test_nonzero_and_what_is_gathered_with_it(shape, tmp_path):
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["x", "index"], ["v"]),
        node("Abs", ["v"], ["y"]),
    ]
    made = model(nodes, [value("x", shape)], [value("places", (len(shape), None), INT64), value("y", (None,))])
    cases = [{"x": sparse(i, shape, share)} for i, share in enumerate((0, 0.05, 0.5, 1))]
    cases[2]["x"].reshape(-1)[3:6] = np.nan, np.inf, -0.0
    loaded = agrees(made, tmp_path, cases)
    assert [str(info) for info in loaded.outputs] == [f"places: int64[{len(shape)},found0]", "y: float32[found0]"]


def test_nonzero_of_open_sizes(tmp_path):
    made = model([node("NonZero", ["x"], ["y"])], [value("x", ("a", "b"))], [value("y", (2, None), INT64)])
    cases = [{"x": sparse(a * b, (a, b), 0.4)} for a, b in ((1, 1), (3, 9), (16, 33))]
    agrees(made, tmp_path, cases)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress(axis, tmp_path):
    attributes = {} if axis is None else {"axis": axis}
    made = model(
        [node("Compress", ["x", "c"], ["y"], **attributes)],
        [value("x", (6, 9)), value("c", (5,), BOOL)],
        [value("y", (None,) if axis is None else (None, 9) if axis == 0 else (6, None))],
    )
    rng = np.random.default_rng(1)
    agrees(made, tmp_path, [{"x": floats(i, 6, 9), "c": rng.random(5) < share} for i, share in enumerate((0, 0.5, 1))])


def test_nothing_to_choose_from(tmp_path):
    """Without elements there is nothing to count; TVM's own function for it stands in no artifact."""
    made = model([node("NonZero", ["x"], ["y"])], [value("x", (0, 3))], [value("y", (2, None), INT64)])
    agrees(made, tmp_path, [{"x": np.zeros((0, 3), np.float32)}])
    chosen = node("Compress", ["x", "c"], ["y"], axis=1)
    made = model([chosen], [value("x", (2, 3)), value("c", (0,), BOOL)], [value("y", (2, None))])
    agrees(made, tmp_path, [{"x": floats(0, 2, 3), "c": np.zeros(0, bool)}])
    with pytest.raises(UnsupportedOp, match="one number"):
        agrees(
            model([node("NonZero", ["x"], ["y"])], [value("x", ())], [value("y", (None, None), INT64)]), tmp_path, []
        )


@pytest.mark.parametrize("rows", [4, "rows"])
@pytest.mark.parametrize("condition", [0, "chosen"])
def test_a_selection_of_nothing_has_a_size(rows, condition, tmp_path):
    """At most 0 elements are 0 elements: a window of them is refused at import, not by TVM."""
    inputs = [value("x", (1, 2, rows, 0)), value("c", (condition,), BOOL)]
    chosen = [node("Compress", ["x", "c"], ["r"], axis=3), node("NonZero", ["x"], ["places"])]
    nodes = [*chosen, node("Relu", ["r"], ["y"]), node("Neg", ["places"], ["n"])]
    outputs = [value("y", (1, 2, rows, None)), value("n", (4, None), INT64)]
    case = {"x": np.zeros((1, 2, 4, 0), np.float32), "c": np.zeros(condition and 3, bool)}
    loaded = agrees(model(nodes, inputs, outputs), tmp_path, [case])
    assert [info.shape[-1] for info in loaded.outputs] == [0, 0]
    nodes = [*chosen, node("Conv", ["r", "w"], ["y"], kernel_shape=[3, 3])]
    weights = {"w": np.ones((1, 2, 3, 3), np.float32)}
    with pytest.raises(ModelError, match="window is larger than the padded image"):
        tvmopt.compile(model(nodes, inputs, [value("y", (1, 1, None, None))], weights), verify=False)


def test_boxes_of_no_pictures(tmp_path):
    select = node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])
    inputs = [value("boxes", (0, "n", 4)), value("scores", (0, 2, "n"))]
    made = model([select], inputs, [value("y", (None, 3), INT64)], {"most": np.array([20])})
    agrees(made, tmp_path, [{"boxes": np.zeros((0, 5, 4), np.float32), "scores": np.zeros((0, 2, 5), np.float32)}])


def detector():
    """Boxes and scores of 60 places, the boxes that NonMaxSuppression selects, their scores and classes."""
    nodes = [
        node("MatMul", ["x", "wb"], ["corner"]),
        node("Slice", ["corner", "c0", "c2", "c2"], ["low"]),
        node("Slice", ["corner", "c2", "c4", "c2"], ["size0"]),
        node("Abs", ["size0"], ["size"]),
        node("Add", ["low", "size"], ["high"]),
        node("Concat", ["low", "high"], ["boxes"], axis=2),
        node("MatMul", ["x", "ws"], ["raw"]),
        node("Sigmoid", ["raw"], ["probability"]),
        node("Transpose", ["probability"], ["scores"], perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"]),
        node("Gather", ["selected", "two"], ["which"], axis=1),
        node("Gather", ["boxes", "zero"], ["first"], axis=0),
        node("Gather", ["first", "which"], ["out_boxes"], axis=0),
        node("GatherND", ["scores", "selected"], ["out_scores"]),
        node("Gather", ["selected", "one"], ["labels"], axis=1),
    ]
    weights = {
        "wb": floats(1, 1, 16, 4), "ws": floats(2, 1, 16, 5), "most": np.array([60]), "iou": np.float32([0.2]),
        "least": np.float32([0.6]), "zero": np.array(0), "one": np.array(1), "two": np.array(2), "c0": np.array([0]),
        "c2": np.array([2]), "c4": np.array([4]),
    }  # fmt: skip
    outputs = [value("out_boxes", (None, 4)), value("out_scores", (None,)), value("labels", (None,), INT64)]
    return model(nodes, [value("x", (1, 60, 16))], outputs, weights)


@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_a_box_of_a_negative_size_overlaps_none(tmp_path, threshold):
    """Its corners changed places, so that it had the size without the sign."""
    select = node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["y"], center_point_box=1)
    weights = {"most": np.array([20]), "iou": np.float32([threshold]), "least": np.float32([-9])}
    inputs = [value("boxes", (1, 20, 4)), value("scores", (1, 1, 20))]
    cases = [{"boxes": floats(i, 1, 20, 4), "scores": floats(i + 9, 1, 1, 20)} for i in range(4)]
    assert all((feeds["boxes"][..., 2:] < 0).any() for feeds in cases)
    agrees(model([select], inputs, [value("y", (None, 3), INT64)], weights), tmp_path, cases)


def test_boxes_that_a_model_selects_itself(tmp_path):
    cases = [{"x": floats(i, 1, 60, 16) * np.float32(scale)} for i, scale in enumerate((1, 0.3, 2, 0))]
    loaded = agrees(detector(), tmp_path, cases)
    assert len({loaded.run(feeds)["labels"].shape for feeds in cases}) > 2
    assert loaded.run(cases[-1])["out_boxes"].shape == (0, 4)


def selecting(tail, outputs, weights):
    """Rows of x whose first number is above 0, as exporters select them, and what is computed with these rows."""
    nodes = [
        node("Gather", ["x", "zero"], ["first"], axis=1),
        node("Greater", ["first", "nought"], ["mask"]),
        node("NonZero", ["mask"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["x", "index"], ["rows"]),
        *tail,
    ]
    given = {"zero": np.array(0), "nought": np.float32(0), **weights}
    return model(nodes, [value("x", (40, 8))], outputs, given)


def chosen_rows():
    """None, one, seven, eight, nine, 31 and all rows are chosen."""
    for seed, count in enumerate((0, 1, 7, 8, 9, 31, 40)):
        x = floats(seed, 40, 8)
        x[:, 0] = -np.abs(x[:, 0]) - 1
        x[np.random.default_rng(seed).permutation(40)[:count], 0] *= -1
        yield {"x": x}


def test_a_network_behind_a_selection(tmp_path):
    tail = [
        node("MatMul", ["rows", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Shape", ["rows"], ["size"]),
        node("Gather", ["size", "zero1"], ["count"], axis=0),
        node("Concat", ["count", "five"], ["counts"], axis=0),
        node("ReduceMin", ["counts"], ["k"], keepdims=1),
        node("Softmax", ["r"], ["y"], axis=1),
        node("ReduceMax", ["y"], ["worth"], axes=[1], keepdims=0),
        node("TopK", ["worth", "k"], ["best", "which"]),
        node("Gather", ["y", "which"], ["z"], axis=0),
    ]
    weights = {"w": floats(1, 8, 33), "zero1": np.array([0]), "five": np.array([5])}
    outputs = [value("y", (None, 33)), value("best", (None,)), value("z", (None, 33))]
    loaded = agrees(selecting(tail, outputs, weights), tmp_path, list(chosen_rows()))
    assert [str(info) for info in loaded.outputs] == [
        "y: float32[found0,33]",
        "best: float32[found1]",
        "z: float32[found1,33]",
    ]


def test_a_selection_of_what_was_selected(tmp_path):
    tail = [
        node("ReduceSum", ["rows", "axis1"], ["sums"], keepdims=0),
        node("Greater", ["sums", "nought"], ["some"]),
        node("Compress", ["rows", "some"], ["y"], axis=0),
        node("NonZero", ["sums"], ["z"]),
    ]
    outputs = [value("y", (None, 8)), value("z", (1, None), INT64)]
    agrees(selecting(tail, outputs, {"axis1": np.array([1])}), tmp_path, list(chosen_rows()))


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceLogSumExp"])
def test_what_is_made_of_nothing(name, tmp_path):
    """A reduction of no rows was what lay in memory: its loop gave the first value in its first step."""
    axes = {} if name == "ReduceSum" else {"axes": [0]}
    tail = [node(name, ["rows", "zero1"] if name == "ReduceSum" else ["rows"], ["y"], keepdims=0, **axes)]
    tail.append(node("MatMul", ["turned", "rows"], ["z"]))
    tail.insert(0, node("Transpose", ["rows"], ["turned"], perm=[1, 0]))
    outputs = [value("y", (8,)), value("z", (8, 8))]
    loaded = agrees(selecting(tail, outputs, {"zero1": np.array([0])}), tmp_path, list(chosen_rows()))
    nothing = next(chosen_rows())
    expected = {"ReduceSum": 0, "ReduceL2": 0, "ReduceProd": 1}.get(name, -np.inf)
    assert (loaded.run(nothing)["y"] == expected).all()


@pytest.mark.parametrize("index", [0, -1, 7])
def test_an_element_of_what_was_selected(index, tmp_path):
    """onnxruntime ends a call that selects fewer; ours was whatever lay there."""
    made = selecting([node("Gather", ["rows", "at"], ["y"], axis=0)], [value("y", (8,))], {"at": np.array(index)})
    cases = [feeds for feeds in chosen_rows() if (feeds["x"][:, 0] > 0).sum() > max(index, 0)]
    loaded = agrees(made, tmp_path, cases)
    with pytest.raises(InputError, match="Gather: an index is out of range"):
        loaded.run(next(chosen_rows()))


def test_a_table_that_is_shorter_than_what_may_be_selected(tmp_path):
    """Positions 0, 1, ... of rows index a table of 16: verification draws more rows, and goes on."""
    tail = [
        node("Shape", ["rows"], ["size"]),
        node("Gather", ["size", "zero"], ["count"], axis=0),
        node("Range", ["zero", "count", "one"], ["places_of_rows"]),
        node("Gather", ["table", "places_of_rows"], ["embedded"], axis=0),
        node("Add", ["rows", "embedded"], ["y"]),
    ]
    weights = {"one": np.array(1), "table": floats(3, 16, 8)}
    *few, last = chosen_rows()
    loaded = agrees(selecting(tail, [value("y", (None, 8))], weights), tmp_path, few[:5])
    with pytest.raises(InputError, match="Gather: an index is out of range"):
        loaded.run(last)


def test_regions_that_a_network_finds(tmp_path):
    """Pictures of the regions that were selected, through a convolution: the second half of a two-stage detector."""
    tail = [
        node("Slice", ["rows", "four", "eight", "axis1"], ["corners"]),
        node("Abs", ["corners"], ["boxes"]),
        node("Shape", ["rows"], ["size"]),
        node("Gather", ["size", "zero1"], ["count"], axis=0),
        node("ConstantOfShape", ["count"], ["owner"], value=helper.make_tensor("v", INT64, [1], [0])),
        node("RoiAlign", ["picture", "boxes", "owner"], ["regions"], output_height=3, output_width=3, sampling_ratio=2),
        node("Conv", ["regions", "wc"], ["c"], pads=[1, 1, 1, 1]),
        node("Flatten", ["c"], ["f"]),
        node("Gemm", ["f", "wf", "bf"], ["y"]),
    ]
    weights = {
        "picture": floats(2, 1, 16, 12, 12), "wc": floats(3, 32, 16, 3, 3) * np.float32(0.1),
        "wf": floats(4, 288, 5) * np.float32(0.1), "bf": floats(5, 5), "four": np.array([4]), "eight": np.array([8]),
        "axis1": np.array([1]), "zero1": np.array([0]),
    }  # fmt: skip
    agrees(selecting(tail, [value("y", (None, 5))], weights), tmp_path, list(chosen_rows()))


def test_boxes_of_what_may_be_nothing(tmp_path):
    """As torchvision exports NonMaxSuppression: an If, of which one branch is for no boxes at all."""
    some = [
        node("Unsqueeze", ["boxes", "zero1"], ["b3"]),
        node("Unsqueeze", ["score", "zero2"], ["s3"]),
        node("NonMaxSuppression", ["b3", "s3", "most", "iou"], ["kept"]),
        node("Gather", ["kept", "two1"], ["column"], axis=1),
        node("Squeeze", ["column", "axis1"], ["keep_some"]),
    ]
    none = [node("Constant", [], ["keep_none"], value=helper.make_tensor("v", INT64, [0], []))]
    branches = {
        f"{which}_branch": helper.make_graph(nodes, which, [], [value(out, (None,), INT64)])
        for which, nodes, out in (("then", none, "keep_none"), ("else", some, "keep_some"))
    }
    tail = [
        node("Slice", ["rows", "four", "eight", "axis1"], ["corners"]),
        node("Abs", ["corners"], ["boxes"]),
        node("Gather", ["rows", "zero"], ["score"], axis=1),
        node("Shape", ["boxes"], ["size"]),
        node("ReduceProd", ["size"], ["elements"], keepdims=0),
        node("Equal", ["elements", "zero"], ["nothing"]),
        node("If", ["nothing"], ["keep"], **branches),
        node("Gather", ["rows", "keep"], ["y"], axis=0),
    ]
    weights = {
        "four": np.array([4]), "eight": np.array([8]), "axis1": np.array([1]), "zero1": np.array([0]),
        "zero2": np.array([0, 1]), "two1": np.array([2]), "most": np.array([np.iinfo(np.int64).max]),
        "iou": np.float32([0.1]),
    }  # fmt: skip
    outputs = [value("y", (None, 8)), value("keep", (None,), INT64)]
    loaded = agrees(selecting(tail, outputs, weights), tmp_path, list(chosen_rows()))
    assert len({loaded.run(feeds)["keep"].shape for feeds in chosen_rows()}) > 4


def test_a_size_that_only_some_runs_have_is_refused(tmp_path):
    tail = [node("Add", ["rows", "nine"], ["y"])]
    made = selecting(tail, [value("y", (None, 8))], {"nine": floats(1, 9, 8)})
    with pytest.raises(ModelError, match="decided by values"):
        agrees(made, tmp_path, [])


def test_two_selections_of_which_a_run_finds_other_numbers(tmp_path):
    """The sizes are one in the model; where a run finds two, it ends before a kernel reads either as the other."""
    nodes = [node("NonZero", ["x"], ["i"]), node("NonZero", ["z"], ["j"]), node("Add", ["i", "j"], ["y"])]
    made = model(nodes, [value("x", (4,)), value("z", (7,))], [value("y", (1, None), INT64)])
    loaded = agrees(made, tmp_path, [{"x": np.float32([0, 1, 0, 1]), "z": np.float32([1, 0, 0, 0, 0, 0, 1])}])
    for many in (1, 3, 7):
        with pytest.raises(InputError, match=f"select {many} elements and 2|select 2 elements and {many}"):
            loaded.run({"x": np.float32([0, 1, 0, 1]), "z": (np.arange(7) < many).astype(np.float32)})


def test_rows_of_a_loop_that_stops_by_itself(tmp_path):
    nodes = [node("Add", ["s", "step"], ["s2"]), node("Less", ["s2", "end"], ["more"])]
    made = model(
        [node("Loop", ["", "", "x"], ["y", "rows"], body=body(nodes, {"s": ()}, ["s2", "s2"], "more"))],
        [value("x", ())],
        [value("y", ()), value("rows", (None,))],
        {"step": np.float32(0.25), "end": np.float32(9)},
    )
    agrees(made, tmp_path, [{"x": np.array(v, np.float32)} for v in (-3, 0, 8.9, 20)])


FLOAT = TensorProto.FLOAT
LENGTHS = {
    np.float32: [(0, 5, 0.5), (5, 0, 1), (0, 0, 1), (5, 0, -2), (0, 1, np.inf), (1, 1.0000001, 1), (0, -7, 0.1)],
    np.int64: [(0, 5, 1), (5, 0, 1), (3, 3, 1), (5, -4, -2), (0, 33, 32), ((1 << 62) + 1, (1 << 62) + 4, 2)],
}
ENDLESS = {
    np.float32: [(0, 0, 0), (1, 5, 0), (0, np.nan, 1), (0, 1, np.nan), (0, np.inf, 1), (0, 1e30, 1), (0, 1, 1e-30)],
    np.int64: [(0, 0, 0), (0, 5, 0), (0, 1 << 62, 1), (-(1 << 63), (1 << 63) - 1, 1), ((1 << 63) - 1, -(1 << 63), -3)],
}


@pytest.mark.parametrize("dtype", LENGTHS, ids=["float", "integer"])
def test_a_range_that_a_run_decides(dtype, tmp_path):
    """As long as its numbers say; an endless one, which took memory until the process died, is an error."""
    kind = FLOAT if dtype is np.float32 else INT64
    made = model([node("Range", [*"abc"], ["y"])], [value(n, (), kind) for n in "abc"], [value("y", (None,), kind)])
    cases = [dict(zip("abc", (np.array(v, dtype) for v in case), strict=True)) for case in LENGTHS[dtype]]
    loaded = agrees(made, tmp_path, cases)
    for case in ENDLESS[dtype]:
        with pytest.raises(InputError, match=r"Range: the (length|step)") as error:
            loaded.run(dict(zip("abc", (np.array(v, dtype) for v in case), strict=True)))
        assert "input 'c'" in str(error.value)


def test_unique_is_refused_by_name(tmp_path):
    made = model([node("Unique", ["x"], ["y"])], [value("x", (9,))], [value("y", (None,))])
    with pytest.raises(UnsupportedOp, match="Unique cannot be imported"):
        agrees(made, tmp_path, [])
