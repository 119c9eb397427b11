"""Storages of one size do not change places from call to call."""

from __future__ import annotations

from onnx import helper

from tests.importer.onnx_check import model, value
from tests.passes.test_bound_outputs import allocated
from tvmopt.importer import prepare
from tvmopt.importer.relax import to_relax
from tvmopt.passes.distinct_storages import PAGE, distinct_storages
from tvmopt.passes.stages import through
from tvmopt.pipeline import lower, memory_stages
from tvmopt.targets import Machine

SHAPE = (64, 1024)


def network():
    """Operators that no kernel joins: each result but the last lies in a storage."""
    nodes = [
        helper.make_node("Softmax", [a], [b], axis=axis) for a, b, axis in (("x", "a", 0), ("a", "b", 1), ("b", "y", 0))
    ]
    return model(nodes, [value("x", SHAPE)], [value("y", SHAPE)])


def storages(main) -> list[int]:
    return [int(shape.values[0]) for name, shape in allocated(main) if name == "relax.memory.alloc_storage"]


def test_each_storage_has_its_own_number_of_pages() -> None:
    machine = Machine.load("cpu")
    with machine.tvm_target():
        stages = memory_stages()
        until = [s.name for s in stages].index("tvmopt.DistinctStorages")
        module = through(stages[:until], lower(to_relax(prepare(network())).module, machine).module)
    before, after = storages(module["main"]), storages(distinct_storages(module)["main"])
    pages = [-(-size // PAGE) for size in after]
    assert len(before) == len(after) >= 3 and len(set(before)) < len(before)
    assert len(set(pages)) == len(pages) and all(a >= b for a, b in zip(after, before, strict=True))
    assert max(after) <= max(before) + PAGE * len(before)
