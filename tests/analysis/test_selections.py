"""Elements that NonZero and Compress choose where rounding decides it: either is right, and nothing else is."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.selections import chosen_by, selections
from tvmopt.analysis.verify import verify
from tvmopt.errors import AccuracyError
from tvmopt.runtime.model import Model

node, BOOL, INT64 = helper.make_node, TensorProto.BOOL, TensorProto.INT64
DOUBTFUL, CERTAIN, THIRD = (3, 8, 15), (0, 5, 16), np.float32(1 / 3)


def differences() -> onnx.ModelProto:
    """a / 3 - b of 17 numbers, as far as it is positive, its places other than 0, and what stands at those."""
    nodes = [
        node("Mul", ["a", "third"], ["p"]),
        node("Sub", ["p", "b"], ["d"]),
        node("Relu", ["d"], ["x"]),
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["a", "index"], ["values"]),
        node("Sigmoid", ["values"], ["y"]),
    ]
    given = [value("a", (17,)), value("b", (17,))]
    return model(nodes, given, [value("places", (1, None), INT64), value("y", (None,))], {"third": THIRD})


def edge_feeds() -> dict[str, np.ndarray]:
    """Half of the differences are negative; those in doubt are what a product in float32 rounds away."""
    rng = np.random.default_rng(3)
    candidates = rng.standard_normal(999).astype("f")
    left = candidates * np.float64(THIRD) - candidates * THIRD  # of the product, when what float32 has of it is taken
    a = candidates[:17].copy()
    a[list(DOUBTFUL)] = candidates[left > 0][: len(DOUBTFUL)]
    b = a * THIRD + (np.where(np.arange(17) % 2, 1, -1) * rng.uniform(0.5, 2, 17)).astype("f")
    b[list(CERTAIN)] = a[list(CERTAIN)] * THIRD - np.float32(0.01)
    b[list(DOUBTFUL)] = a[list(DOUBTFUL)] * THIRD
    return {"a": a, "b": b}


def outputs(feeds: dict[str, np.ndarray], lost=(), gained=()) -> dict[str, np.ndarray]:
    places = np.flatnonzero(feeds["a"] * np.float64(THIRD) > feeds["b"])
    places = np.array(sorted({*places, *gained} - {*lost}), np.int64)
    return {"places": places[None], "y": (1 / (1 + np.exp(-feeds["a"][places]))).astype("f")}


@pytest.mark.parametrize("lost", [(), DOUBTFUL[:1], DOUBTFUL[1:], DOUBTFUL])
def test_what_rounding_decides_may_be_missing(lost):
    feeds = edge_feeds()
    found = Judge(differences()).judged(feeds, outputs(feeds, lost), None)
    assert found.ok, [str(o) for o in found.outputs]


@pytest.mark.parametrize("lost", [CERTAIN[:1], CERTAIN[1:], (*CERTAIN, *DOUBTFUL), (DOUBTFUL[0], CERTAIN[2])])
def test_what_is_lost_without_a_doubt_is_refused(lost):
    feeds = edge_feeds()
    found = Judge(differences()).judged(feeds, outputs(feeds, lost), None)
    assert not any(o.ok for o in found.outputs)


def test_what_is_chosen_without_a_doubt_that_it_is_0_is_refused():
    feeds = edge_feeds()
    negative = int(np.flatnonzero(feeds["a"] * np.float64(THIRD) < feeds["b"])[0])
    assert not Judge(differences()).judged(feeds, outputs(feeds, gained=[negative]), None).ok
    exchanged = outputs(feeds, lost=DOUBTFUL[:1], gained=[negative])
    assert not Judge(differences()).judged(feeds, exchanged, None).ok


def test_a_wrong_number_behind_a_choice_is_refused():
    feeds = edge_feeds()
    found = outputs(feeds, DOUBTFUL[:1])
    found["y"][2] *= 1.03
    assert [o.name for o in Judge(differences()).judged(feeds, found, None).outputs if not o.ok] == ["y"]


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_a_comparison_at_its_edge_chooses(axis):
    nodes = [
        node("ReduceSum", ["x", "along"], ["sums"], keepdims=0),
        node("Greater", ["sums", "edge"], ["c"]),
        node("Compress", ["x", "c"], ["y"], axis=axis),
    ]
    shape = (9, 16) if axis == 0 else (16, 9)
    made = model(
        nodes, [value("x", shape)], [value("y", (None, 16) if axis == 0 else (16, None))],
        {"along": np.array([1 - axis]), "edge": np.float32([0.25])},
    )  # fmt: skip
    x = np.random.default_rng(7).standard_normal((9, 16)).astype("f")
    x[:, 0] += 0.25 + np.where(np.arange(9) % 3, 0.5, -0.5) - x.sum(1)
    for row in (1, 4):
        x[row] = 1 / 64  # 16 of them are 0.25 exactly
        x[row, ::2] += 1e-8
    turned = x if axis == 0 else np.ascontiguousarray(x.T)
    chosen = [r for r in range(9) if r % 3]

    def judged(rows):
        return Judge(made).judged({"x": turned}, {"y": np.ascontiguousarray(turned.take(rows, axis))}, None).ok

    assert judged(chosen)
    assert judged([r for r in chosen if r != 1]) and judged([r for r in chosen if r not in (1, 4)])
    assert not judged([r for r in chosen if r != 2]) and not judged([0, *chosen])
    assert not judged([r for r in chosen if r not in (1, 7)])


@pytest.mark.parametrize("number", [1, 7, 8, 9, 31, 33])
def test_the_place_of_what_is_left_out(number):
    doubt = np.random.default_rng(number).random(number) < 0.5
    places = np.arange(number)
    for left in (np.zeros(number, bool), doubt, doubt & (places % 2 == 0)):
        found = chosen_by([(places[None], places[None, ~left])], doubt)
        assert found is not None and np.array_equal(found, left)
    assert chosen_by([(places[None], places[None, :0])], np.zeros(number, bool)) is None


def test_several_choices_behind_each_other():
    nodes = [
        node("NonZero", ["x"], ["p"]),
        node("Greater", ["x", "z"], ["c"]),
        node("Compress", ["x", "c"], ["r"]),
        node("NonZero", ["r"], ["q"]),
        node("Abs", ["r"], ["s"]),
    ]
    made = model(nodes, [value("x", (5,))], [value(n, (None,)) for n in "pqs"], {"z": np.float32([0])})
    assert [(s.op, s.outputs) for s in selections(made, ["p", "q", "s"])] == [
        ("NonZero", ("p",)), ("Compress", ("q", "s")),
    ]  # fmt: skip


def test_what_underflows_in_float32_is_no_difference():
    """At -200 a float32 has 0 where float64 has 1e-87; such a model was refused."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Exp", ["m"], ["e"]),
        node("NonZero", ["e"], ["y"]),
    ]
    w = np.diag(np.float32([-0.2, 0.01, -0.4]))
    made = model(nodes, [value("x", (3, 3))], [value("y", (2, None), INT64)], {"w": w})
    compiled = tvmopt.compile(made, records=False, cache=False, verify=False)
    feeds = {"x": np.full((3, 3), 1000, "f")}
    loaded = Model(compiled.artifact)
    assert loaded.run(feeds)["y"].shape == (2, 3)
    assert Examiner(loaded, "", made).thoroughly(feeds, None).ok


def test_a_kernel_that_loses_an_element_is_refused(tmp_path):
    """The file is a right one, and the compiled model that of another, which leaves out what is under 0.1."""

    def chosen(floor):
        nodes = [node("ThresholdedRelu", ["x"], ["e"], alpha=floor), node("NonZero", ["e"], ["y"])]
        return model(nodes, [value("x", (6, 9))], [value("y", (2, None), INT64)])

    onnx.save(chosen(0.05), tmp_path / "right.onnx")
    wrong = tvmopt.compile(chosen(0.1), records=False, cache=False, verify=False)
    with pytest.raises(AccuracyError, match="shape"):
        verify(wrong.artifact, tmp_path / "right.onnx")
