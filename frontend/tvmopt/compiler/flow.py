"""The compiled run as data: its steps in order, the tensors between them, where memory planning put each -
for `inspect --html`, memory plots and profiles.

It is read off `main` after memory planning, when every tensor's storage is known, and kept in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from onnx.shape_inference import InferenceError
from tvm import relax

from tvmopt.analysis.metrics import metrics
from tvmopt.importer import Imported
from tvmopt.importer.protos import node_name
from tvmopt.passes.graph import inputs_of
from tvmopt.passes.run_loops import is_loop
from tvmopt.pipeline import planned
from tvmopt.report import Flow, Kernel, OnnxNode, Step, Value
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine


def plan(lowered: Any, machine: Machine, imported: Imported) -> Flow:
    """The flow of a lowered module; nothing is compiled."""
    reader = _Reader(lowered.kernels, onnx_nodes(imported))
    reader.read(planned(lowered, machine)["main"])
    return Flow(
        nodes=reader.nodes,
        values=tuple(Value(**v) for v in reader.values),
        steps=tuple(reader.steps),
        outputs=tuple(reader.outputs),
        storages=tuple(reader.storages),
        folded=imported.folded,
    )


def onnx_nodes(imported: Imported) -> dict[str, OnnxNode]:
    """Every node of the imported model by its name, as steps, kernels and decisions call it."""
    try:
        costs = {op.name: op for op in metrics(imported.model).ops}
    except (ValueError, RuntimeError, InferenceError):  # onnx's shape inference refuses some models that compile
        costs = {}
    known = {node_name(node): node for node in imported.model.graph.node}
    found = {}
    for name in imported.nodes.values():
        node, cost = known.get(name), costs.get(name)
        found[name] = OnnxNode(
            name=name,
            op_type=node.op_type if node else "",
            inputs=tuple(node.input) if node else (),
            outputs=tuple(node.output) if node else (),
            shape=cost.shape if cost else (),
            flops=cost.flops if cost else None,
        )
    return found


class _Reader:
    """Walks the planned `main`; `env` maps a variable to a value's index, a list of these, or a storage."""

    def __init__(self, kernels: Sequence[Kernel], nodes: dict[str, OnnxNode]) -> None:
        self.sites = {k.name: iter(k.nodes) for k in kernels}
        self.nodes = nodes
        self.values: list[dict[str, Any]] = []
        self.steps: list[Step] = []
        self.storages: list[int] = []
        self.outputs: list[int] = []
        self.env: dict[str, Any] = {}
        self.written: set[int] = set()

    def read(self, main: Any) -> None:
        count = len(inputs_of(main))
        for index, param in enumerate(main.params):
            kind = "input" if index < count else "weight"
            self.env[param] = self._value(str(param.name), param.ty, kind)
            self.written.add(self.env[param])
        self._sequence(main.body)
        self.outputs = list(dict.fromkeys(self._indices(main.body.body)))
        for index, value in enumerate(self.values):  # where nothing is planned, each tensor has memory of its own
            if value["kind"] == "output" and index not in self.outputs:
                value |= {"kind": "activation", "storage": len(self.storages)}
                self.storages.append(value["bytes"])

    def _sequence(self, body: Any) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.If):
                    self._sequence(binding.value.true_branch)
                    self._sequence(binding.value.false_branch)
                    taken = self._indices(binding.value.true_branch.body)
                    self.env[binding.var] = taken[0] if len(taken) == 1 else taken
                else:
                    self.env[binding.var] = self._bind(binding.var, binding.value)

    def _bind(self, var: Any, value: Any) -> Any:
        if not isinstance(value, relax.Call):
            found = self._indices(value)
            return found[0] if len(found) == 1 else found
        name = getattr(value.op, "name", "")
        if name == "relax.memory.alloc_storage":
            self.storages.append(max(0, _extent(value.args[0].values[0])))
            return ("storage", len(self.storages) - 1)
        if name == "relax.memory.alloc_tensor":
            return self._value(var.name, var.ty, "activation", self.env[value.args[0]][1])
        if name == "relax.builtin.alloc_tensor":
            return self._value(var.name, var.ty, "output")
        if name == "relax.reshape" and value.args[0] in self.env:
            return self.env[value.args[0]]
        if isinstance(value.op, tvm.ir.GlobalVar | relax.ExternFunc) or name.startswith("relax.call_"):
            return self._step(value)
        return []

    def _step(self, call: Any) -> list[int]:
        """One call of a kernel or of a function of the runtime: what was not written yet is written here."""
        symbol = getattr(call.op, "name_hint", None) or getattr(call.op, "global_symbol", None)
        args = list(call.args)
        if symbol is None:  # call_packed(f, args...)
            symbol = str(getattr(args[0], "global_symbol", args[0]))
        used = list(dict.fromkeys(i for a in args for i in self._indices(a)))
        if is_loop(symbol):
            results = [self._value(symbol, kind, "output") for kind in call.ty_args[0].fields]
            self.written.update(results)
            self.steps.append(Step(symbol, (), tuple(used), tuple(results)))
            return results
        # one that writes a part of what others have begun has it as its last argument
        outputs = [i for i in used if i not in self.written] or (self._indices(args[-1]) if args else [])
        self.written.update(outputs)
        nodes = next(self.sites.get(symbol, iter(())), ())
        last = self.nodes.get(nodes[-1]) if nodes else None
        for index in outputs if nodes else ():
            self.values[index]["name"] = last.outputs[0] if last and last.outputs else nodes[-1]
        self.steps.append(Step(symbol, nodes, tuple(i for i in used if i not in outputs), tuple(outputs)))
        return outputs

    def _value(self, name: str, ty: Any, kind: str, storage: int = -1) -> int:
        shape = tuple(map(_extent, getattr(getattr(ty, "shape", None), "values", ())))
        dtype = str(getattr(ty, "dtype", "") or "")
        known = dtype and min(shape, default=0) >= 0
        size = TensorInfo(name, shape, dtype).nbytes if known else 0
        self.values.append(
            {"name": name, "shape": shape, "dtype": dtype, "bytes": size, "kind": kind, "storage": storage}
        )
        return len(self.values) - 1

    def _indices(self, expr: Any) -> list[int]:
        """The values that an expression holds."""
        if isinstance(expr, relax.Tuple):
            return [i for field in expr.fields for i in self._indices(field)]
        if isinstance(expr, relax.TupleGetItem):
            found = self._indices(expr.tuple_value)
            return found[expr.index : expr.index + 1]
        if not isinstance(expr, relax.Var):
            return []
        held = self.env.get(expr, [])
        return [held] if isinstance(held, int) else list(held) if isinstance(held, list) else []


def _extent(dim: Any) -> int:
    """A dimension; -1 where it is known at run time only."""
    return int(dim) if isinstance(dim, tvm.tirx.IntImm | int) else -1
