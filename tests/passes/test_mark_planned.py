"""Kernels whose tensors all come from the memory plan are marked; those that see an input are not."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tests.passes.helpers import build
from tvmopt.lowering.drop_argument_checks import PLANNED
from tvmopt.passes.mark_planned import mark_planned


def planned(inputs: dict[str, object], body: object, weights: int = 0) -> dict[str, bool]:
    module = relax.transform.LegalizeOps()(build(inputs, body))
    main = module["main"].with_attr("num_input", len(inputs) - weights)
    module.update_func(module.get_global_var("main"), main)
    return {
        gvar.name_hint: bool(func.attrs.get(PLANNED, False))
        for gvar, func in mark_planned(module).functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_readers_of_inputs_are_not_marked() -> None:
    found = planned({"x": (4, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.sqrt(x))))
    assert found == {"tir_sqrt": False, "tir_exp": True}


def test_a_view_of_an_input_is_one() -> None:
    module = build({"x": (4, 8)}, lambda b, x: relax.op.exp(relax.op.sqrt(relax.op.reshape(x, (32,)))))
    module = relax.transform.RewriteDataflowReshape()(relax.transform.LegalizeOps()(module))
    found = {g.name_hint: bool(f.attrs.get(PLANNED, False)) for g, f in mark_planned(module).functions_items()}
    assert (found["tir_sqrt"], found["tir_exp"]) == (False, True)


def test_one_call_with_an_input_is_enough() -> None:
    """The same kernel, called twice."""
    found = planned({"x": (4, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.exp(x))))
    assert found == {"tir_exp": False}


def test_weights_are_no_inputs() -> None:
    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return relax.op.add(b.emit(relax.op.exp(x)), w)

    assert planned({"x": (4, 8), "w": (4, 8)}, body, weights=1)["add"]
    assert not planned({"x": (4, 8), "w": (4, 8)}, body)["add"]


def test_kernels_of_open_sizes_are_marked() -> None:
    n = tvm.tirx.Var("n", "int64")
    found = planned({"x": (n, 8)}, lambda b, x: relax.op.exp(b.emit(relax.op.sqrt(x))))
    assert found == {"tir_sqrt": False, "tir_exp": True}
