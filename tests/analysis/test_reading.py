"""What a kernel read decides what its result is measured from."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

import tvmopt
from tests.analysis.test_kernels import made, tensors
from tests.debug.nets import saved
from tvmopt.analysis.deviation import limits_of
from tvmopt.analysis.doubles import Doubles
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.grids import Grids
from tvmopt.analysis.kernels import check_kernels
from tvmopt.analysis.local import Local
from tvmopt.analysis.observe import Seen, observe
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.values import Value
from tvmopt.analysis.reading import Reading
from tvmopt.analysis.verify import Reference
from tvmopt.analysis.walk import Kernel, Walk
from tvmopt.importer import prepare


def norm(*outputs: str, rows: int = 33, columns: int = 3) -> onnx.ModelProto:
    """A norm along the first axis, whose mean and variance other kernels compute too where these are outputs."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["d"], "less"),
        helper.make_node("Mul", ["d", "d"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["v"], "variance", axes=[0]),
        helper.make_node("Add", ["v", "e"], ["w"], "epsilon"),
        helper.make_node("Sqrt", ["w"], ["r"], "root"),
        helper.make_node("Div", ["d", "r"], ["y"], "norm"),
    ]
    shapes = {"d": [rows, columns], "y": [rows, columns]}
    return made(
        nodes, {"x": [rows, columns]}, {n: shapes.get(n, [1, columns]) for n in outputs}, {"e": np.float32(1e-5)}
    )


@pytest.mark.parametrize("reads, share, wrong", [((), 0, False), ((0,), 0, True), (None, 0, True), ((), 1e-5, True)])
def test_a_mean_that_a_kernel_computes_for_itself_is_rounded_too(reads, share, wrong) -> None:
    """The one that is an output is two units in the last place higher; the kernel that reads it has no excuse."""
    model = made(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["y"], "less"),
        ],
        {"x": [24, 9]},
        {"m": [1, 9], "y": [24, 9]},
        {},
    )
    feeds = {"x": (1000 + 0.2 * np.random.default_rng(0).standard_normal((24, 9))).astype(np.float32)}
    mean = tensors(model, feeds)["m"]
    own = (mean - np.spacing(mean)) * np.float32(1 + share)
    mean = mean + np.spacing(mean)
    y = feeds["x"] - own
    run = [Seen("mean", ("mean",), (), mean, 0, ()), Seen("less", ("less",), (), y, 1, reads)]
    assert bool(check_kernels(model, feeds, {"m": mean, "y": y}, run, "fp32").wrong) is wrong


@pytest.mark.parametrize("outputs", [("r", "y"), ("m", "y"), ("d", "y")])
@pytest.mark.parametrize("offset", [1e3, -1e5])
def test_a_norm_beside_its_statistics(tmp_path, outputs: tuple[str, ...], offset: float) -> None:
    """`tvmopt compile` compares its outputs with onnxruntime's, `tvmopt compare` its kernels with the oracle: a right
    model is right to both."""
    model = norm(*outputs)
    saved(model, tmp_path / "norm.onnx")
    reference = Reference(tmp_path / "norm.onnx")
    compiled = tvmopt.compile(model, verify=False, records=False).model
    examiner = Examiner(compiled, "", prepare(model), rerun=reference.run)
    for seed in range(3):
        feeds = {"x": (offset + np.random.default_rng(seed).standard_normal((33, 3))).astype(np.float32)}
        peer = reference.run(feeds)
        assert examiner.thoroughly(feeds, peer).ok and examiner.quickly(feeds, peer).ok


def test_an_output_that_a_kernel_reads_is_not_what_it_wrote() -> None:
    model = norm("d", "y")
    feeds = {"x": np.random.default_rng(0).standard_normal((33, 3)).astype(np.float32)}
    exact = tensors(model, feeds)
    run = [
        Seen("mean", ("mean",), (), exact["m"], 0, ()),
        Seen("less", ("less",), (), exact["d"], 1, (0,)),
        Seen("norm", ("square", "variance", "epsilon", "root", "norm"), (), exact["y"], 2, ()),
    ]
    found = check_kernels(model, feeds, {n: exact[n] for n in ("d", "y")}, run, "fp32")
    assert [k.tensor for k in found.kernels] == ["m", "d", "y"] and not found.wrong


def test_what_no_tensor_is_was_made_of_what_its_kernel_read() -> None:
    arrays = {number: np.full(2, number, np.float32) for number in range(6)}

    def kernel(number: int, reads: tuple[int, ...] | None, tensor: str = "") -> Kernel:
        return Kernel(Seen(str(number), (), (), arrays[number], number, reads), set(), set(), tensor=tensor)

    kernels = [kernel(0, (), "a"), kernel(1, (0,)), kernel(2, (1,), "b"), kernel(3, (1, 2)), kernel(4, None)]
    reading = Reading(walked(kernels, {"a": arrays[0], "b": arrays[2], "c": arrays[1]}))
    found = [reading.of(k) for k in kernels[:4]]
    assert [(set(one.known), one.directly) for one in found if one is not None] == [
        (set(), True), ({"a"}, True), ({"a"}, False), ({"a", "b"}, False),
    ]  # fmt: skip
    assert reading.of(kernels[4]) is reading.of(kernel(5, (4,))) is reading.of(kernel(5, (9,))) is None


def test_of_two_kernels_that_compute_a_tensor_each_has_its_own_numbers() -> None:
    """One that is far from the tensor, though it was taken for it, is none."""
    one = np.linspace(1, 2, 65, dtype=np.float32)
    near, far = np.nextafter(one, np.float32(3)), one * np.float32(1.01)
    kernels = [
        Kernel(Seen(str(k), (), (), array, k, ()), set(), set(), tensor="m") for k, array in enumerate((one, near, far))
    ]
    reading = Reading(walked(kernels, {"m": one}))
    for reads, expected in (((0,), one), ((1,), near)):
        read = reading.of(Kernel(Seen("y", (), (), one, 9, reads), set(), set()))
        assert read is not None and np.array_equal(read.known["m"].array, expected)
    read = reading.of(Kernel(Seen("y", (), (), one, 9, (2,)), set(), set()))
    assert read is not None and not read.known and not read.directly


def walked(kernels: list[Kernel], taken: dict[str, np.ndarray]) -> Walk:
    model = made([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": [2]}, {"y": [2]}, {})
    local = Local(model, {}, "fp32", 1e-5)
    grids = Grids.of(model, limits_of("fp32", np.dtype(np.float32)))
    walk = Walk("fp32", {}, kernels, grids, Doubles(Oracle(model).graph), local)
    walk.taken.update({name: Value(array, array.dtype) for name, array in taken.items()})
    return walk


FAULTS = {
    "all of the norm": ("y", ..., 1.001, 0),
    "an element of the norm": ("y", (7, 1), 1, 0.01),
    "a row of the norm": ("y", 3, 1.01, 0),
    "a column of the norm": ("y", (..., 2), 1, 0.002),
    "the signs of two rows": ("y", [4, 5], -1, 0),
    "all of the mean": ("m", ..., 1.001, 0),
    "an element of the mean": ("m", (0, 2), 1, 0.01),
}
"""Of which output what is multiplied, and what is added to it."""


@pytest.fixture(scope="module")
def observed() -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray], list[Seen]]:
    """A norm around 100, whose kernels read nothing but the input."""
    model = norm("m", "y")
    feeds = {"x": (100 + np.random.default_rng(5).standard_normal((33, 3))).astype(np.float32)}
    compiled = tvmopt.compile(model, verify=False, records=False).model
    return prepare(model), feeds, *observe(compiled, feeds)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_what_is_wrong_is_refused_from_what_its_kernel_read(observed, fault: str | None) -> None:
    model, feeds, outputs, run = observed
    found = {name: array.copy() for name, array in zip(("m", "y"), outputs, strict=True)}
    which, where, times, plus = FAULTS.get(fault or "", ("", ..., 1, 0))
    if fault:
        found[which][where] = found[which][where] * np.float32(times) + np.float32(plus)
    arrays = {"mean_across": found["m"], "norm": found["y"]}
    run = [replace(one, array=arrays[one.symbol].reshape(one.array.shape)) for one in run]
    assert [one.reads for one in run] == [(), ()]
    assert {one.name for one in check_kernels(model, feeds, found, run, "fp32").wrong} == ({which} if fault else set())


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_that_reads_another_tensor_is_refused(wrong: bool) -> None:
    """The mean that it ought to read stands in another place of memory."""
    rng = np.random.default_rng(3)
    model = made(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[0], keepdims=1),
            helper.make_node("ReduceMax", ["x"], ["t"], "top", axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["y"], "less"),
        ],
        {"x": [24, 9]},
        {"m": [1, 9], "t": [1, 9], "y": [24, 9]},
        {},
    )
    feeds = {"x": (1000 + rng.standard_normal((24, 9))).astype(np.float32)}
    exact = tensors(model, feeds)
    y = feeds["x"] - exact["t" if wrong else "m"]
    run = [
        Seen("mean", ("mean",), (), exact["m"], 0, ()),
        Seen("top", ("top",), (), exact["t"], 1, ()),
        Seen("less", ("less",), (), y, 2, (1,) if wrong else (0,)),
    ]
    assert bool(check_kernels(model, feeds, {**exact, "y": y}, run, "fp32").wrong) is wrong
