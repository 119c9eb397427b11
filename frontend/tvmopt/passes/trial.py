"""Parts of a Relax function computed while it is compiled - for passes that try what they cannot prove.

Which keys a mask hides, or whether integers are positions, exporters write in many ways. What such a part gives is
computed by TVM's own kernels, at sizes and for inputs that the pass chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmopt.operators.checks import OP as CHECKED
from tvmopt.passes.graph import Array, Expr, Graph, Var, numpy_dtype, op_name, variables

T = relax.transform

LARGEST = 1 << 22
"""Elements of a constant that is read; a larger one is a weight."""


class Trial:
    """What can be computed of some of the inputs and of sizes alone.

    Args:
        graph: of the function. module: where its kernels are.
        inputs: those that are given. symbols: of the open sizes.

    Attributes:
        computable: these variables, in order.
    """

    def __init__(self, graph: Graph, module: Any, inputs: Sequence[Var], symbols: Sequence[Any]) -> None:
        self._graph, self._module, self._inputs, self._symbols = graph, module, list(inputs), list(symbols)
        self._bindings: list[Any] = []
        known = set(inputs)
        for block in graph.func.body.blocks:
            for binding in block.bindings:
                if self._simple(binding.value) and all(
                    v in known or isinstance(v.ty, tvm.ir.PrimType) for v in variables(binding.value)
                ):
                    known.add(binding.var)
                    self._bindings.append(binding)
        self.computable: list[Var] = [b.var for b in self._bindings]
        self._wanted: list[Var] = []
        self._main: Any = None

    def _simple(self, value: Expr) -> bool:
        """Whether TVM computes it: no operator of ours but a check, which nothing here fails; no large constant."""
        if not isinstance(value, relax.Call | relax.Tuple | relax.TupleGetItem | relax.Var):
            return False
        if op_name(value).startswith("tvmopt.") and op_name(value) != CHECKED:
            return False
        read = [self._graph.value(a) for a in getattr(value, "args", ()) if self._graph.is_const(a)]
        return all(np.prod([int(d) for d in a.ty.shape]) <= LARGEST for a in read)

    def want(self, found: Sequence[Var]) -> None:
        """Say which of the variables :meth:`at` is to give."""
        self._wanted, self._main = list(found), None

    def at(self, sizes: Sequence[int], values: Sequence[Array]) -> dict[Var, Array]:
        """The arrays at these sizes, for these values of the inputs."""
        if not self._wanted:
            return {}
        if self._main is None:
            self._main = self._built()
        given = [
            tvm.runtime.tensor(np.ascontiguousarray(value, numpy_dtype(str(p.ty.dtype))))
            for p, value in zip(self._inputs, values, strict=True)
        ]
        results = self._main(*given, tvm_ffi.Shape(list(sizes)))
        return {var: array.numpy() for var, array in zip(self._wanted, results, strict=True)}

    def _built(self) -> Any:
        """A function of the inputs and sizes that gives the variables."""
        bindings = [
            relax.VarBinding(b.var, b.value.args[0]) if op_name(b.value) == CHECKED else b for b in self._bindings
        ]
        out = relax.Var("wanted", relax.TupleType([v.ty for v in self._wanted]))
        numbers = relax.Var("sizes", relax.ShapeType(self._symbols))
        block = relax.DataflowBlock([*bindings, relax.VarBinding(out, relax.Tuple(self._wanted))])
        func = relax.Function([*self._inputs, numbers], relax.SeqExpr([block], out), out.ty, True)
        functions = {g: f for g, f in self._module.functions_items() if isinstance(f, tirx.PrimFunc)}
        functions[self._module.get_global_var("main")] = func.with_attr("global_symbol", "main")
        module = T.CanonicalizeBindings()(tvm.IRModule(functions))
        target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
        with target:
            built = tvm.compile(T.LegalizeOps()(T.DeadCodeElimination()(module)), target)
        return relax.VirtualMachine(built, tvm.cpu())["main"]
