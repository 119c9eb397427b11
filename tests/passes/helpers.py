"""What every test of a pass asserts, and ways to build and run small Relax functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tvmopt.passes.graph import Constant, numbers, op_name, shape
from tvmopt.report import DecisionLog


def build(inputs: dict[str, Any], body: Callable[..., Any]) -> tvm.IRModule:
    """A module whose `main` computes `body`; inputs are shapes (float32) or (shape, dtype) pairs.

    `body` gets the builder and the inputs, and gives an expression or several; `main` returns a tuple.
    """
    builder = relax.BlockBuilder()
    params = []
    for name, spec in inputs.items():
        dims, kind = spec if spec and isinstance(spec[-1], str) else (spec, "float32")
        params.append(relax.Var(name, relax.TensorType(dims, kind)))
    with builder.function("main", params):
        with builder.dataflow():
            result = body(builder, *params)
            results = result if isinstance(result, tuple) else (result,)
            outs = [r if isinstance(r, relax.Var) else builder.emit(r) for r in results]
            out = builder.emit_output(relax.Tuple(outs))
        builder.emit_func_output(out)
    return builder.get()


def ops(mod: tvm.IRModule) -> Counter[str]:
    """How often `main` calls each operator, written without ``relax.``."""
    found = (op_name(b.value) for block in mod["main"].body.blocks for b in block.bindings)
    return Counter(name for name in found if name)


def constants(mod: tvm.IRModule) -> list[np.ndarray[Any, Any]]:
    """The numbers of all constants that operators of `main` have."""
    args = [a for b in mod["main"].body.blocks[0].bindings for a in getattr(b.value, "args", ())]
    return [numbers(a.value) for a in args if isinstance(a, Constant)]


def names(mod: tvm.IRModule) -> list[str]:
    """The names of main's bindings, in order."""
    return [b.var.name for block in mod["main"].body.blocks for b in block.bindings]


def rand(*dims: int, seed: int = 0, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Seeded normal float32 numbers."""
    return (np.random.default_rng(seed).standard_normal(dims) * scale).astype("float32")


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The outputs of `main`, by TVM's stock legalisation."""
    mod = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(mod))
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    vm = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(i) for i in inputs])
    flat = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [t.numpy() for t in flat]


def random_inputs(mod: tvm.IRModule) -> list[np.ndarray[Any, Any]]:
    """Seeded inputs for main's parameters: normal numbers, small integers, or random bits."""
    rng = np.random.default_rng(1)
    arrays = []
    for p in mod["main"].params:
        dims, kind = shape(p), str(p.ty.dtype)
        assert dims is not None
        if kind.startswith("float"):
            arrays.append(rng.standard_normal(dims).astype(kind))
        elif kind == "bool":
            arrays.append(rng.random(dims) < 0.5)
        else:
            arrays.append(rng.integers(0, 4, dims).astype(kind))
    return arrays


def check_rewrite(
    make: Callable[[DecisionLog], Any],
    before: tvm.IRModule,
    expected: dict[str, int] | tvm.IRModule | None = None,
    *,
    tol: float = 1e-5,
    numbers: bool = True,
) -> tvm.IRModule:
    """Assert a rewrite; gives the rewritten module.

    The result has exactly the operators `expected` (or is structurally equal to it; None means unchanged),
    the input module was left alone, a second run changes nothing, the result is well formed, and random
    inputs give equal numbers to `tol`, relative to the largest of each output.
    """
    text = before.script()
    after = make(DecisionLog())(before)
    assert before.script() == text, "the pass changed its input"
    if expected is None:
        assert tvm_ffi.structural_equal(after, before), f"changed:\n{after.script()}"
    elif isinstance(expected, dict):
        assert dict(ops(after)) == expected, f"{dict(ops(after))}\n{after.script()}"
    else:
        assert tvm_ffi.structural_equal(after, expected, map_free_vars=True), after.script()
    relax.analysis.well_formed(after)  # raises
    again = make(DecisionLog())(after)
    assert tvm_ffi.structural_equal(again, after), f"not idempotent:\n{after.script()}\n{again.script()}"
    if numbers and expected is not None:
        inputs = random_inputs(before)
        for a, b in zip(run(after, inputs), run(before, inputs), strict=True):
            same_numbers(a, b, tol)
    return after


def same_numbers(actual: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], tol: float = 1e-5) -> None:
    """Shapes, types and values agree, to `tol` relative to the largest value."""
    assert actual.shape == reference.shape and actual.dtype == reference.dtype
    if actual.dtype.kind != "f":
        assert (actual == reference).all()
        return
    limit = tol * max(1.0, float(np.abs(reference[np.isfinite(reference)]).max(initial=0)))
    np.testing.assert_allclose(actual, reference, rtol=0, atol=limit)
