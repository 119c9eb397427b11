"""Which calls' results a kernel read, told by the memory of a run: in doubt nothing is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.analysis.observe import Seen, observe
from tvmopt.analysis.writers import Writers, whole_writers

FLOATS, INTEGERS = TensorProto.FLOAT, TensorProto.INT64


def test_memory_that_is_written_again() -> None:
    writers = Writers([(0, 8)])
    writers.wrote((16, 32), 0)
    writers.wrote((16, 32), 1)
    assert writers.read_by([(0, 8), (16, 32), (16, 32)]) == (1,)
    writers.wrote((16, 24), 2)  # a smaller tensor: behind it stands a rest
    assert writers.read_by([(16, 24)]) == (2,) and writers.read_by([(16, 32)]) is writers.read_by([(24, 32)]) is None
    writers.wrote((12, 40), 3)
    assert writers.read_by([(16, 24), (12, 40)]) == (3,)


def test_a_view_is_a_part_of_what_was_written() -> None:
    writers = Writers([])
    writers.wrote((0, 32), 4)
    assert writers.read_by([(0, 8)]) == writers.read_by([(8, 32)]) == (4,)
    assert writers.read_by([(24, 33)]) is writers.read_by([(0, 8), (24, 40)]) is None


def test_a_tensor_in_two_parts_is_nobodys() -> None:
    writers = Writers([])
    writers.wrote((0, 16), 0)
    writers.wrote((16, 32), 1)
    assert writers.read_by([(0, 16), (16, 32)]) == (0, 1) and writers.read_by([(0, 32)]) is None
    writers.wrote((8, 24), 2)
    assert writers.read_by([(0, 8)]) is writers.read_by([(24, 32)]) is None and writers.read_by([(8, 24)]) == (2,)


def test_what_any_call_may_have_written_is_forgotten() -> None:
    writers = Writers([(0, 8)], [(100, 108)])
    writers.wrote((16, 32), 0)
    writers.forget([(0, 8), (24, 48)])
    assert writers.read_by([(0, 8)]) == ()  # the model's inputs stay
    assert writers.read_by([(16, 24)]) is writers.read_by([(32, 40)]) is writers.read_by([(100, 108)]) is None
    assert writers.read_by([(200, 208)]) == ()  # a constant
    writers.forget([(4, 12)])  # not an input
    assert writers.read_by([(0, 8)]) is None


@pytest.mark.parametrize("size", [0, 1])
def test_an_empty_tensor_stands_nowhere(size: int) -> None:
    writers = Writers([])
    writers.wrote((16, 32), 0)
    writers.wrote((20, 20 + size), 1)
    assert (writers.read_by([(16, 32)]) == (0,)) is (size == 0) and writers.read_by([(20, 20)]) == ()


def test_against_a_writer_of_every_byte() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = (0, int(rng.integers(1, 9)))
        writers, whole, held = Writers([given]), {-1: given}, np.full(64, -3)
        held[slice(*given)] = -1
        for number in range(60):
            start = int(rng.integers(0, 60))
            place = start, int(rng.integers(start, 64))
            if rng.random() < 0.7:
                writers.wrote(place, number)
                held[slice(*place)], whole[number] = number, place
            elif not (given[0] <= place[0] and place[1] <= given[1] and (held[slice(*given)] == -1).all()):
                writers.forget([place])
                held[slice(*place)] = -2
            asked = int(rng.integers(0, 32)), int(rng.integers(33, 64))
            inside = set(held[slice(*asked)].tolist())
            found = writers.read_by([asked])
            if found is not None:
                assert inside == {*found} or inside <= {-1} or inside <= {-3}
            elif len(inside) == 1 and (one := inside.pop()) >= 0:  # it says nothing only of what is left of a tensor
                assert not (held[slice(*whole[one])] == one).all()


def observed(nodes: list[Any], outputs: dict[str, int], room: int = 1 << 31, **constants: Any) -> dict[str, Seen]:
    """By the last node of each kernel, what was seen of a model of x: float[4, 40]."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOATS, [4, 40])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    _, seen = observe(compiled, {"x": np.zeros((4, 40), np.float32)}, room)
    assert [one.number for one in seen] == [*range(len(seen))]
    return {one.nodes[-1]: one for one in seen}


def read(seen: dict[str, Seen], name: str) -> list[str] | None:
    """The last nodes of the kernels whose results one read."""
    reads, names = seen[name].reads, {one.number: key for key, one in seen.items()}
    return None if reads is None else [names[number] for number in reads]


SOFTMAXES = [helper.make_node("Softmax", [a], [b], b) for a, b in zip("xabc", "abcd", strict=True)]


def test_kernels_one_behind_the_other() -> None:
    """Four results in the same memory, or two."""
    seen = observed(SOFTMAXES, {"d": FLOATS})
    assert [read(seen, name) for name in "abcd"] == [[], ["a"], ["b"], ["c"]]


def test_what_had_no_room_is_not_known() -> None:
    seen = observed(SOFTMAXES, {"d": FLOATS}, room=2 * 4 * 160)
    assert [*seen] == ["a", "b"] and read(seen, "b") == ["a"]
    assert not observed(SOFTMAXES, {"d": FLOATS}, room=0)


def test_what_writes_several_tensors_is_known_by_the_last_one() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], "soft"),
        helper.make_node("TopK", ["s", "k"], ["v", "i"], "top"),
        helper.make_node("Softmax", ["v"], ["y"], "first"),
        helper.make_node("Softmax", ["x"], ["z"], "beside", axis=0),
    ]
    seen = observed(nodes, {"y": FLOATS, "z": FLOATS, "i": INTEGERS}, k=[9])
    assert read(seen, "top") is read(seen, "first") is None and read(seen, "beside") == []


def test_a_constant_is_no_result() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], "soft"),
        helper.make_node("MatMul", ["s", "w"], ["p"], "product"),
        helper.make_node("Softmax", ["p"], ["y"], "last"),
    ]
    seen = observed(nodes, {"y": FLOATS}, w=np.ones((40, 8), np.float32))
    assert read(seen, "product") == ["soft"] and read(seen, "last") == ["product"]


def test_who_writes_a_part_is_not_known_by_what_stands_there() -> None:
    def step(name: str, *outputs: int) -> dict[str, Any]:
        return {"kernel": name, "nodes": (), "inputs": (), "outputs": outputs}

    flow = {"steps": [step("conv", 1), step("pool_part", 1), step("split", 2, 3), step("relu", 4), step("relu", 5)]}
    assert whole_writers(flow) == {"conv", "relu"} and whole_writers({}) == set()
    again = {"steps": [step("conv", 1), step("conv", 1)]}
    assert whole_writers(again) == set()
