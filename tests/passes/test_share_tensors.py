"""Shapes, tensors and views of a call are made once: fewer instructions, the same numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax, tirx
from tvm.relax.op import vm

from tests.importer.onnx_check import model, value
from tvmopt import api
from tvmopt.importer import prepare
from tvmopt.importer.relax import to_relax
from tvmopt.passes.share_tensors import share_tensors
from tvmopt.passes.stages import through
from tvmopt.pipeline import lower, memory_stages
from tvmopt.targets import Machine

STAGE = "tvmopt.ShareTensors"
HEAP, SHAPE = relax.TensorType(dtype="int64", ndim=1), relax.ShapeType(ndim=2)
ALLOC, KILL = "relax.vm.alloc_tensor", "relax.vm.kill_object"


def layers(count: int, shape: tuple):
    """Products with transposes and sums between them, each layer's tensors of the same sizes."""
    nodes, last, weights = [], "x", {}
    for i in range(count):
        weights[f"w{i}"] = np.random.default_rng(i).standard_normal((8, 8)).astype("f4") / 3
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"a{i}"]),
            helper.make_node("Transpose", [f"a{i}"], [f"b{i}"], perm=[1, 0]),
            helper.make_node("Softmax", [f"b{i}"], [f"c{i}"], axis=1),
            helper.make_node("Transpose", [f"c{i}"], [f"d{i}"], perm=[1, 0]),
            helper.make_node("Add", [last, f"d{i}"], [f"y{i}"]),
        ]
        last = f"y{i}"
    nodes[-1].output[0] = "y"
    return model(nodes, [value("x", shape)], [value("y", None)], weights)


def planned(onnx_model, ranges):
    """The module as it comes to the pass."""
    machine = Machine.load("cpu")
    with machine.tvm_target():
        stages = memory_stages()
        until = [s.name for s in stages].index(STAGE)
        return through(stages[:until], lower(to_relax(prepare(onnx_model, ranges)).module, machine).module)


def calls(module) -> Counter[str]:
    """How often `main` calls what."""
    bindings = [b for block in module["main"].body.blocks for b in block.bindings]
    ops = [b.value.op for b in bindings if isinstance(b.value, relax.Call)]
    return Counter(str(getattr(op, "global_symbol", "") or getattr(op, "name_hint", "") or op.name) for op in ops)


@pytest.mark.parametrize("shape", [("n", 8), (5, 8)])
def test_instructions_do_not_grow_with_the_layers(shape):
    ranges = {"n": "1..33"} if shape[0] == "n" else {}
    few, many = (planned(layers(count, shape), ranges) for count in (3, 9))
    before, after = calls(many), calls(share_tensors(many))
    kernels = [name for name in before if not name.startswith(("vm.", "relax."))]
    assert all(after[name] == before[name] for name in kernels)
    assert after[ALLOC] <= calls(share_tensors(few))[ALLOC] + 1 < before[ALLOC]
    assert after["vm.builtin.make_shape"] <= 3 and after[KILL] < before[KILL]


@pytest.mark.parametrize("shape", [("n", 8), (5, 8)])
def test_numbers_stay_the_same(shape):
    given = layers(6, shape)
    models = [api.compile(given, without=without).model for without in ([], [STAGE])]
    for n in (1, 2, 7, 8, 9, 33) if shape[0] == "n" else (5, 5):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype("f4")
        shared, apart = (m(x) for m in models)
        np.testing.assert_array_equal(shared, apart)
        kept = shared.copy()
        models[0](x * 2)  # an earlier call's output is its own
        np.testing.assert_array_equal(shared, kept)


def program(*parts):
    """`main` of instructions: the name of the result, what is called, operands by name or number."""
    bb, storage = relax.BlockBuilder(), relax.Var("storage", relax.ObjectType())
    known = {"storage": storage}
    made = {"vm.builtin.alloc_shape_heap": HEAP, "vm.builtin.make_shape": SHAPE}
    with bb.function("main", [storage], pure=False):
        for name, called, *operands in parts:
            args = [known[o] if isinstance(o, str) else tirx.const(o, "int64") for o in operands]
            if called == ALLOC:
                call = vm.alloc_tensor(args[0], 0, args[1], "float32")
            elif called == KILL:
                call = vm.kill_object(args[0])
            else:
                kind = made.get(called, relax.TupleType([]))
                call = relax.Call(relax.ExternFunc(called), args, None, [kind])
            known[name] = bb.emit(call, name)
        bb.emit_func_output(relax.Tuple([]))
    return bb.get()


def test_a_size_that_is_written_in_between_makes_another_shape():
    """Tensors of the shapes before stay shared."""
    first = [("heap", "vm.builtin.alloc_shape_heap", 4), ("s", "vm.builtin.make_shape", "heap", 2, 0, 3)]
    first += [("a", ALLOC, "storage", "s"), ("u", "f", "a"), ("k", KILL, "a")]
    again = [("s2", "vm.builtin.make_shape", "heap", 2, 0, 3), ("b", ALLOC, "storage", "s2"), ("v", "f", "b")]
    found = calls(share_tensors(program(*first, *again)))
    assert found["vm.builtin.make_shape"] == 1 and found[ALLOC] == 1 and found[KILL] == 0 and found["f"] == 2
    written = ("m", "vm.builtin.match_shape", "a", "heap", 2, 0, 3)
    found = calls(share_tensors(program(*first[:-1], written, *again)))
    assert found["vm.builtin.make_shape"] == 2 and found[ALLOC] == 2


def test_other_operands_make_other_objects():
    parts = [("heap", "vm.builtin.alloc_shape_heap", 4), ("s", "vm.builtin.make_shape", "heap", 2, 0, 3)]
    parts += [
        ("s2", "vm.builtin.make_shape", "heap", 2, 0, 4),
        ("a", ALLOC, "storage", "s"),
        ("b", ALLOC, "storage", "s2"),
    ]
    parts += [("u", "f", "a", "b"), ("k", KILL, "a"), ("k2", KILL, "b")]
    module = program(*parts)
    assert share_tensors(module)["main"].same_as(module["main"])


def test_branches_are_left_alone():
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [f"{op}_y"])], op, [], [value(f"{op}_y", (4,))])
        for op in ("Exp", "Neg")
    ]
    nodes = [helper.make_node("If", ["c"], ["z"], then_branch=branches[0], else_branch=branches[1])]
    nodes.append(helper.make_node("Add", ["z", "x"], ["y"]))
    given = model(nodes, [value("c", (), TensorProto.BOOL), value("x", (4,))], [value("y", (4,))])
    module = planned(given, {})
    assert share_tensors(module)["main"].same_as(module["main"])
