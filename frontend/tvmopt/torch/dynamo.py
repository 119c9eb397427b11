"""`torch.compile(model, backend="tvmopt")`: graphs that TorchDynamo finds, compiled when they are first called."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError, ModelError, TvmoptError, first_line
from tvmopt.torch.export import export, import_torch
from tvmopt.torch.graph import Graph
from tvmopt.variants import Variants

OPTIONS = {"threads": None, "precision": "fp32", "verify": True, "exact": False, "fallback": True, "quiet": False}
"""What `torch.compile(..., options={...})` takes, with the defaults."""

MOST = 64
"""Exports of one graph that are kept: one for each value of an integer that is no size."""


def backend(graph: Any, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_mode: Any) -> Any:
    """The backend: what `torch.compile` calls for each graph.

    Args:
        graph: a `torch.fx.GraphModule`. examples: its arguments.
        options: `threads`, `precision`, `verify`, `exact` as :func:`tvmopt.compile` takes them; `fallback` (True): what
            cannot be compiled runs in PyTorch, and stderr says so; `quiet`: stderr says nothing.

    Returns:
        A function of the graph's arguments.

    Raises:
        InputError: an unknown option. MissingDependency: the exporter is not installed.
        TvmoptError: the graph cannot be compiled, with ``fallback=False``; else when it is first called.
    """
    torch = import_torch()
    unknown = sorted({*(options or {})} - {*OPTIONS})
    if unknown:
        raise InputError(
            f"the backend has no option {', '.join(map(repr, unknown))}.",
            where="torch.compile",
            fix=f"the options are {', '.join(OPTIONS)}",
        )
    asked = OPTIONS | dict(options or {})
    try:
        if torch.is_grad_enabled() and any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples):
            what = "gradients are wanted here, and compiled models have none."
            raise ModelError(what, where="torch.compile", fix="call the model under torch.inference_mode()")
        if not any(n.op not in ("placeholder", "output", "get_attr") for n in graph.graph.nodes):
            return graph.forward
        found = Graph(torch, graph, examples)
        if not found.computed:
            return graph.forward
        return Compiled(found, asked)
    except ModelError as error:
        return _eager(graph, error, asked)


class Compiled:
    """One graph, ready to be called: it is exported and compiled for what it is called with.

    A weight that is another one than before, or was written to, makes all of it compile anew.
    """

    def __init__(self, graph: Graph, options: Mapping[str, Any]) -> None:
        self._graph, self._options = graph, options
        self._routes: dict[tuple[int, ...], list[_Route]] = {}
        self._weights: list[tuple[Any, int]] | None = None
        self._last: tuple[Any, _Route, Any] | None = None  # most calls have the numbers and shapes of the one before
        self._eager: Any = None
        self._lock = threading.RLock()

    def __call__(self, *args: Any) -> Any:
        if self._eager is not None:
            return self._eager(*args)
        graph, torch = self._graph, self._graph.torch
        inputs = [args[i] for i in graph.inputs]
        try:
            route, model = self._prepared(args, inputs)
        except ModelError as error:
            self._eager = _eager(graph.module, error, self._options)
            return self._eager(*args)
        given = {f"x{k}": value for k, value in enumerate(inputs)}
        results = model.run({info.name: _array(torch, given[info.name]) for info in model.inputs})
        return graph.results([_tensor(torch, results[name]) for name in route.outputs], args)

    def _prepared(self, args: Sequence[Any], inputs: Sequence[Any]) -> tuple[_Route, Any]:
        with self._lock:
            if self._weights is None or not self._are_same(args):
                self._weights = [(args[i], _version(args[i])) for i in self._graph.weights]
                self._routes.clear()
                self._last = None
            numbers = tuple(int(args[i]) for i in self._graph.numbers)
            key = (numbers, [x.shape for x in inputs])
            if self._last is not None and self._last[0] == key:
                return self._last[1:]
            routes = self._routes.setdefault(numbers, [])
            if len(self._routes) > MOST:
                del self._routes[next(iter(self._routes))]
            shapes = [tuple(x.shape) for x in inputs]
            route = next((r for r in routes if r.takes(shapes)), None)
            if route is None:
                route = self._exported(args, inputs, is_open=not routes)
                routes.append(route)
        model = route.model(inputs)
        with self._lock:
            if self._routes.get(numbers) is routes:  # else weights have changed meanwhile
                self._last = (key, route, model)
        return route, model

    def _are_same(self, args: Sequence[Any]) -> bool:
        assert self._weights is not None
        return all(
            args[i] is known and _version(known) == version
            for i, (known, version) in zip(self._graph.weights, self._weights, strict=True)
        )

    def _exported(self, args: Sequence[Any], inputs: Sequence[Any], is_open: bool) -> _Route:
        """An export with the open sizes that TorchDynamo found; if that fails, of this call's sizes."""
        module = self._graph.as_module(args)
        if is_open and any(self._graph.open):
            try:
                return _Route(self._graph, module, inputs, self._options, self._graph.open)
            except ModelError:
                pass  # a size turned out to be a number
        return _Route(self._graph, module, inputs, self._options, [()] * len(inputs))


class _Route:
    """One export of a graph and the compiled models that come of it."""

    def __init__(
        self, graph: Graph, module: Any, inputs: Sequence[Any], options: Mapping[str, Any],
        open_axes: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        import onnx

        torch, self._torch = graph.torch, graph.torch
        self._folder = tempfile.TemporaryDirectory(prefix="tvmopt-torch-")
        path = Path(self._folder.name) / "model.onnx"
        self.outputs = [f"y{k}" for k in range(len(graph.computed))]
        dynamic = tuple({axis: torch.export.Dim.AUTO for axis in axes} for axes in open_axes)
        export(
            torch, module, tuple(x.detach().clone() for x in inputs), path,
            dynamic_shapes=(dynamic,) if any(open_axes) else None,
            input_names=[f"x{k}" for k in range(len(inputs))], output_names=self.outputs,
        )  # fmt: skip
        model = onnx.load(str(path), load_external_data=False)
        self._shapes = {value.name: _sizes(value) for value in model.graph.input}
        self._order = list(self._shapes)
        left_open = {n: s for n, s in self._shapes.items() if not all(isinstance(d, int) for d in s)}
        self._variants = Variants(
            path, model, "a graph of torch.compile", left_open, frozenset(), options["quiet"],
            threads=options["threads"], precision=options["precision"], verify=options["verify"],
            exact=options["exact"],
        )  # fmt: skip

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether the exported model has these shapes."""
        given = {f"x{k}": shape for k, shape in enumerate(shapes)}
        return all(
            len(shape) == len(given[name]) and all(d in (n, None) for d, n in zip(shape, given[name], strict=True))
            for name, shape in self._shapes.items()
        )

    def model(self, inputs: Sequence[Any]) -> Any:
        """The compiled model for these inputs."""
        feeds = {name: inputs[int(name[1:])] for name in self._order}
        return self._variants.model(feeds)[0]


def _sizes(value: Any) -> tuple[int | None, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)


def _version(tensor: Any) -> int:
    """How often a tensor was written to; PyTorch does not count for tensors made in inference mode."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _array(torch: Any, tensor: Any) -> Any:
    """A tensor as what `Model` takes, over the same memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor  # NumPy has no name for it: by DLPack
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.numpy()


def _tensor(torch: Any, array: Any) -> Any:
    """A result as a tensor, over the same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(array)


def _eager(graph: Any, error: TvmoptError, options: Mapping[str, Any]) -> Any:
    """The graph as PyTorch runs it, in place of one that cannot be compiled."""
    if not options["fallback"]:
        raise error
    if not options["quiet"]:
        fix = f" ({error.fix})" if error.fix else ""
        tell(f"tvmopt: a graph runs in PyTorch: {first_line(error.what)}{fix}")
    return graph.forward


def tell(text: str) -> None:
    """Say what the user should know."""
    print(text, file=sys.stderr, flush=True)
