"""Kernels know which of their arguments are inputs of the model; all others come from the memory plan."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tests.passes.helpers import build
from tvmopt.lowering.drop_argument_checks import OUTSIDE
from tvmopt.passes.mark_planned import mark_planned


def outside(inputs: dict[str, object], body: object, weights: int = 0) -> dict[str, list[int]]:
    """Kernel -> places of its arguments that are inputs."""
    module = relax.transform.LegalizeOps()(build(inputs, body))
    main = module["main"].with_attr("num_input", len(inputs) - weights)
    module.update_func(module.get_global_var("main"), main)
    return places(module)


def places(module: tvm.IRModule) -> dict[str, list[int]]:
    return {
        gvar.name_hint: [int(place) for place in func.attrs[OUTSIDE]]
        for gvar, func in mark_planned(module).functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_a_reader_of_inputs_and_one_of_none() -> None:
    found = outside({"x": (4, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.sqrt(x))))
    assert found == {"tir_sqrt": [0], "tir_exp": []}


def test_a_view_of_an_input_is_one() -> None:
    module = build({"x": (4, 8)}, lambda b, x: relax.op.exp(relax.op.sqrt(relax.op.reshape(x, (32,)))))
    module = relax.transform.RewriteDataflowReshape()(relax.transform.LegalizeOps()(module))
    found = places(module)
    assert (found["tir_sqrt"], found["tir_exp"]) == ([0], [])


def test_one_call_with_an_input_is_enough() -> None:
    """The same kernel, called twice."""
    found = outside({"x": (4, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.exp(x))))
    assert found == {"tir_exp": [0]}


def test_weights_are_no_inputs() -> None:
    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return relax.op.add(b.emit(relax.op.exp(x)), w)

    assert outside({"x": (4, 8), "w": (4, 8)}, body, weights=1)["add"] == []
    assert outside({"x": (4, 8), "w": (4, 8)}, body)["add"] == [1]


def test_kernels_of_open_sizes_are_marked() -> None:
    n = tvm.tirx.Var("n", "int64")
    found = outside({"x": (n, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.sqrt(x))))
    assert found == {"tir_sqrt": [0], "tir_exp": []}
