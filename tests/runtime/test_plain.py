"""Calls behind the first take the shortest way where they can: the same numbers and errors, memory of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.errors import InputError
from tvmopt.runtime import plain
from tvmopt.runtime.model import Model

node = helper.make_node


@pytest.fixture(scope="module")
def warm() -> Model:
    """y = x + w, z = x itself, s = the shape's product as an integer; called once."""
    nodes = [
        node("Add", ["x", "w"], ["y"]),
        node("Identity", ["x"], ["z"]),
        node("Cast", ["x"], ["s"], to=TensorProto.INT32),
    ]
    ends = [value("y", (3, 17)), value("z", (3, 17)), value("s", (3, 17), TensorProto.INT32)]
    made = model(nodes, [value("x", (3, 17))], ends, {"w": np.arange(17, dtype="f")})
    found = Model(tvmopt.compile(made, records=False, cache=False, verify=False, threads=1).artifact)
    assert found._plain is not None
    found.run({"x": np.zeros((3, 17), "f")})
    return found


def misaligned(x: np.ndarray) -> np.ndarray:
    raw = np.empty(x.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return raw[1:].view("f").reshape(x.shape)


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


class Own(np.ndarray):
    """A subclass, as a user's library may have one."""


KINDS: dict[str, Callable[[np.ndarray], object]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "read only": read_only,
    "between two elements": misaligned,
    "of a subclass": lambda x: x.view(Own),
    "nested lists": lambda x: x.tolist(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_be_given(warm: Model, kind: str) -> None:
    x = np.random.default_rng(3).standard_normal((3, 17)).astype("f") * 9
    for _ in range(2):
        found = warm.run(MappingProxyType({"x": KINDS[kind](x)}))
        assert list(found) == ["y", "z", "s"]
        np.testing.assert_array_equal(found["y"], x + np.arange(17, dtype="f"))
        np.testing.assert_array_equal(found["z"], x)
        np.testing.assert_array_equal(found["s"], np.trunc(x).astype("i4"))


def test_memory_of_their_own(warm: Model) -> None:
    """An output that is an input is copied, on every call, and results outlive the next call."""
    x = np.ones((3, 17), "f")
    first = warm.run({"x": x})
    x[:] = 5
    second = warm.run({"x": x})
    assert not any(np.shares_memory(a, x) for a in (*first.values(), *second.values()))
    assert first["z"][0, 0] == 1 and first["y"][0, 1] == 2 and second["z"][0, 0] == 5 and second["y"][0, 1] == 6


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (np.zeros((3, 16), "f"), "the shape is (3, 16)"),
        (np.zeros((3, 17)), "float64"),
        (np.zeros((3, 17), "i4"), "int32"),
        (np.zeros((17,), "f"), "the shape is (17,)"),
    ],
)
def test_what_is_refused(warm: Model, wrong: np.ndarray, told: str) -> None:
    with pytest.raises(InputError) as caught:
        warm.run({"x": wrong})
    assert told in str(caught.value)
    with pytest.raises(InputError, match="y"):
        warm.run({"y": np.zeros((3, 17), "f")})
    assert warm.run({"x": np.zeros((3, 17), "f")})["y"][2, 16] == 16


def test_other_bytes_of_a_number(warm: Model) -> None:
    """Numbers in the other order of bytes are converted, not read as they lie."""
    x = np.full((3, 17), 2.0, ">f4" if sys.byteorder == "little" else "<f4")
    assert warm.run({"x": x})["y"][0, 3] == 5


def test_many_threads(warm: Model) -> None:
    def one(number: int) -> bool:
        x = np.full((3, 17), number, "f")
        return all((warm.run({"x": x})["y"][:, 1] == number + 1).all() for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))


def test_a_model_with_types_that_numpy_lacks_has_none() -> None:
    made = model(
        [node("Relu", ["x"], ["y"])],
        [value("x", (2, 3), TensorProto.BFLOAT16)],
        [value("y", (2, 3), TensorProto.BFLOAT16)],
    )
    found = Model(tvmopt.compile(made, records=False, cache=False, verify=False, threads=1).artifact)
    assert found._plain is None


@pytest.fixture(scope="module")
def open_sized() -> Model:
    """y = a + b of open sizes that agree, z = a itself."""
    ends = [value("y", ("rows", "n")), value("z", ("rows", "n"))]
    nodes = [node("Add", ["a", "b"], ["y"]), node("Identity", ["a"], ["z"])]
    made = model(nodes, [value("a", ("rows", "n")), value("b", ("rows", "n"))], ends)
    shapes = {"rows": "1..5@2", "n": "1..40@17"}
    return Model(tvmopt.compile(made, shape=shapes, records=False, cache=False, verify=False, threads=1).artifact)


def pair(rows: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(41 * rows + n)
    return {name: rng.standard_normal((rows, n)).astype("f") for name in "ab"}


def test_open_sizes_are_bound_once(open_sized: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of sizes that one before it had took twice as long as onnxruntime's."""
    bound: list[object] = []
    bind = open_sized._open.bind
    monkeypatch.setattr(open_sized._open, "bind", lambda shapes: bound.append(shapes) or bind(shapes))
    for sizes in ((2, 17), (3, 1), (2, 17), (3, 1), (5, 40), (2, 17)):
        feeds = pair(*sizes)
        found = open_sized.run(feeds)
        np.testing.assert_array_equal(found["y"], feeds["a"] + feeds["b"])
        np.testing.assert_array_equal(found["z"], feeds["a"])
        assert not np.shares_memory(found["z"], feeds["a"])
    assert [tuple(shapes) for shapes in bound] == [((2, 17),) * 2, ((3, 1),) * 2, ((5, 40),) * 2]


def test_open_sizes_that_fit_one_by_one_do_not_fit_together(open_sized: Model) -> None:
    for sizes in ((2, 17), (3, 17), (2, 16)):
        open_sized.run(pair(*sizes))
    for other in ((3, 17), (2, 16), (6, 17), (2, 41)):
        with pytest.raises(InputError):
            open_sized.run({"a": pair(2, 17)["a"], "b": pair(*other)["b"]})
        with pytest.raises(InputError):
            open_sized.run({"a": pair(*other)["a"], "b": pair(2, 17)["b"]})


def test_a_tensor_without_elements_takes_the_long_way() -> None:
    made = model([node("Relu", ["x"], ["y"])], [value("x", (0, 3))], [value("y", (0, 3))])
    found = Model(tvmopt.compile(made, records=False, cache=False, verify=False, threads=1).artifact)
    for _ in range(3):
        assert found.run({"x": np.zeros((0, 3), "f")})["y"].shape == (0, 3)
    assert not found._fitting.known


def test_sizes_are_forgotten_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch, open_sized: Model) -> None:
    monkeypatch.setattr(plain, "MOST", 3)
    for n in range(1, 12):
        feeds = pair(1, n)
        np.testing.assert_array_equal(open_sized.run(feeds)["y"], feeds["a"] + feeds["b"])
        assert 0 < len(open_sized._fitting.known) <= 4
