"""One graph of TorchDynamo's: which arguments are weights, sizes or inputs, and what it returns - for the backend.

TorchDynamo hands over a graph whose arguments are all that it reads: parameters, buffers, inputs, and the open sizes of
inputs as integers. Parameters and buffers become constants, a size that is an axis of an input is read from that input,
and any other integer is a constant of one compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmopt.errors import ModelError, UnsupportedOp


class Graph:
    """What a graph takes and gives.

    Attributes:
        module: the `torch.fx.GraphModule`.
        inputs: places of the arguments that are inputs, of those that are weights in `weights`.
        numbers: places of integers that are no axis of an input.
        open: the open axes of each input.

    Raises:
        UnsupportedOp: an argument is no tensor on the CPU and no integer.
    """

    def __init__(self, torch: Any, module: Any, examples: Sequence[Any]) -> None:
        self.torch, self.module = torch, module
        nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._place = {node: i for i, node in enumerate(nodes)}
        self.inputs: list[int] = []
        self.weights: list[int] = []
        self.numbers: list[int] = []
        self._axes: dict[int, tuple[int, int]] = {}  # of an integer: which input, which axis
        self.open: list[tuple[int, ...]] = []
        integers = []
        for i, (node, example) in enumerate(zip(nodes, examples, strict=True)):
            if isinstance(example, torch.Tensor):
                _check(torch, node, example)
                is_weight = isinstance(example, torch.nn.Parameter) or node.meta.get("tensor_dict", {}).get(
                    "_dynamo_static_input_type"
                )
                (self.weights if is_weight else self.inputs).append(i)
            elif isinstance(example, int | torch.SymInt):
                integers.append(i)
            else:
                what = f"the argument {node.name} is a {type(example).__name__}, neither a tensor nor an integer."
                raise UnsupportedOp(what, where="a graph of torch.compile")
        self._names = [node.name for node in nodes]
        self._symbols(nodes, examples, integers)
        self._returns(next(n for n in module.graph.nodes if n.op == "output").args[0])

    def _symbols(self, nodes: Sequence[Any], examples: Sequence[Any], integers: Sequence[int]) -> None:
        axes: dict[str, tuple[int, int]] = {}
        for k, i in enumerate(self.inputs):
            value = nodes[i].meta.get("example_value", examples[i])
            sizes = list(enumerate(value.shape))
            self.open.append(tuple(axis for axis, size in sizes if not isinstance(size, int)))
            for axis, size in sizes:
                if not isinstance(size, int) and size.node.expr.is_symbol:
                    axes.setdefault(str(size.node.expr), (k, axis))
        self._symbol_places = {}
        for i in integers:
            symbol = None if isinstance(examples[i], int) else str(examples[i].node.expr)
            if symbol is not None:
                self._symbol_places[symbol] = i
            if symbol in axes:
                self._axes[i] = axes[symbol]
            else:
                self.numbers.append(i)

    def _returns(self, results: Sequence[Any]) -> None:
        """Results are tensors that are computed, arguments as they came, or sizes."""
        self.computed: list[Any] = []  # nodes, each once
        self._plan: list[tuple[str, Any]] = []
        for result in results:
            if not isinstance(result, self.torch.fx.Node):
                self._plan.append(("value", result))
            elif result in self._place:
                self._plan.append(("argument", self._place[result]))
            elif isinstance(result.meta.get("example_value"), self.torch.Tensor):
                if result not in self.computed:
                    self.computed.append(result)
                self._plan.append(("tensor", self.computed.index(result)))
            else:
                self._plan.append(("size", result.meta["example_value"]))

    def results(self, tensors: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """What the graph returns, from the tensors that were computed and the arguments of the call."""
        found = []
        for kind, value in self._plan:
            if kind == "tensor":
                found.append(tensors[value])
            elif kind == "argument":
                found.append(args[value])
            else:
                found.append(self._size(value, args) if kind == "size" else value)
        return tuple(found)

    def _size(self, value: Any, args: Sequence[Any]) -> Any:
        if not hasattr(value, "node"):
            return value
        expression = value.node.expr
        sizes = {s: args[self._symbol_places[str(s)]] for s in expression.free_symbols}
        number = expression.subs(sizes)
        return bool(number) if isinstance(value, self.torch.SymBool) else int(number)

    def as_module(self, args: Sequence[Any]) -> Any:
        """A module of the inputs alone that gives the computed tensors; weights and numbers are those of `args`."""
        graph, torch = self, self.torch
        taken = {i: f"weight_{i}_{self._names[i].strip('_')}" for i in self.weights}
        numbers = {i: int(args[i]) for i in self.numbers}

        class Inference(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.graph = graph.module
                for i, name in taken.items():
                    self.register_buffer(name, args[i].detach())

            def forward(self, *inputs: Any) -> tuple[Any, ...]:
                given: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True)) | numbers
                given |= {i: getattr(self, name) for i, name in taken.items()}
                given |= {i: inputs[k].shape[axis] for i, (k, axis) in graph._axes.items()}
                results = self.graph(*[given[i] for i in range(len(args))])
                first = {value: n for n, (kind, value) in reversed([*enumerate(graph._plan)]) if kind == "tensor"}
                return tuple(results[first[k]] for k in range(len(graph.computed)))

        return Inference().eval()


def _check(torch: Any, node: Any, example: Any) -> None:
    if example.device.type != "cpu":
        what = f"{node.name} is on {example.device}; this backend compiles for the CPU."
        raise UnsupportedOp(what, where="a graph of torch.compile", fix="move the model and its inputs to the CPU")
    if example.layout is not torch.strided or example.is_quantized:
        raise ModelError(f"{node.name} is no dense tensor.", where="a graph of torch.compile", fix="make it dense")
