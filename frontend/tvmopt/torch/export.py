"""A PyTorch module as an ONNX file, by torch.export and torch.onnx - for `from_torch` and the backend."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.api import Compiled, compile
from tvmopt.errors import MissingDependency, ModelError, TvmoptError

if TYPE_CHECKING:
    from tvmopt.dims import Shapes

LARGEST = 1 << 30
"""Bytes of weights from which on they lie in a file of their own: Protobuf takes 2 GB."""

UNBOUNDED = 1 << 31
"""A largest size from which on it says nothing."""


def from_torch(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    shape: Shapes | None = None,
    **options: Any,
) -> Compiled:
    """Compile a PyTorch module as it is in evaluation, exported by `torch.export` and `torch.onnx`.

    Args:
        module: a `torch.nn.Module`; its mode (training or not) is left as it is.
        args, kwargs: example inputs, as the module is called.
        dynamic_shapes: which sizes stay open, as `torch.export.export` takes it; a `Dim`'s name, smallest and largest
            size become the artifact's. A name as text is a size without bounds: ``({0: "batch"},)``.
        input_names, output_names: what inputs and outputs are called; default: as the exporter calls them.
        shape: further ranges, by name: ``{"seq": "1..512@128"}``.
        options: of :func:`tvmopt.compile`.

    Raises:
        MissingDependency: PyTorch or its ONNX exporter is not installed.
        ModelError: the module cannot be exported; and whatever :func:`tvmopt.compile` raises.
    """
    torch = import_torch()
    was = module.training
    module.eval()
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-torch-") as folder:
            path = Path(folder) / f"{type(module).__name__}.onnx"
            ranges = export(
                torch, module, tuple(args), path, kwargs=dict(kwargs or {}), dynamic_shapes=dynamic_shapes,
                input_names=input_names, output_names=output_names,
            )  # fmt: skip
            return compile(path, shape={**ranges, **(shape or {})}, **options)
    finally:
        module.train(was)


def import_torch() -> Any:
    """PyTorch and what its exporter needs.

    Raises:
        MissingDependency: one of them is not installed.
    """
    try:
        import onnxscript  # noqa: F401
        import torch
        import torch.onnx
    except ImportError as error:
        what = f"PyTorch models are exported by torch and onnxscript, and {error.name} is not installed."
        raise MissingDependency(what, fix="pip install 'tvmopt[torch]'") from error
    return torch


def export(torch: Any, module: Any, args: tuple[Any, ...], path: Path, **options: Any) -> dict[str, tuple[str]]:
    """Write a module as an ONNX file; the ranges of its open sizes, by name, where PyTorch knows of bounds.

    Args:
        options: of `torch.onnx.export`.

    Raises:
        ModelError: it cannot be exported, or changes its own tensors or an input.
    """
    where = type(module).__name__
    try:
        with torch.no_grad(), _silent():
            program = torch.onnx.export(module, args, dynamo=True, verbose=False, **options)
    except TvmoptError:
        raise
    except Exception as error:  # of many classes, which are not public
        fix = "torch.export.export says more; torch.compile(module, backend='tvmopt') takes the parts that it can"
        raise ModelError(f"torch.onnx cannot export it: {_cause(error)}", where=where, fix=fix) from error
    signature = program.exported_program.graph_signature
    changed = sorted({*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()})
    if changed:
        what = f"it changes {', '.join(changed)} in place, and a compiled model changes nothing."
        raise ModelError(what, where=where, fix="call eval(), or return the new values as outputs")
    model = program.model
    for part in (model.graph, *model.functions.values()):  # stacks of calls, with the paths of this machine
        part.metadata_props.clear()
        for node in part:
            node.metadata_props.clear()
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    program.save(str(path), external_data=size > LARGEST)
    return _ranges(program)


def _ranges(program: Any) -> dict[str, tuple[str]]:
    """Bounds that PyTorch has for the open sizes of the inputs."""
    exported = program.exported_program
    names = set(exported.graph_signature.user_inputs)
    tensors = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names]
    shapes = [t.shape for t in tensors if hasattr(t, "shape")]
    found: dict[str, tuple[str]] = {}
    if len(shapes) != len(program.model.graph.inputs):
        return found
    for value, shape in zip(program.model.graph.inputs, shapes, strict=True):
        for name, size in zip(value.shape, shape, strict=True):
            known = None if isinstance(size, int) else exported.range_constraints.get(size.node.expr)
            if known is not None and isinstance(getattr(name, "value", None), str) and known.upper < UNBOUNDED:
                found[name.value] = (f"{max(1, int(known.lower))}..{int(known.upper)}",)
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Without what the exporter says of its own work."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _cause(error: BaseException) -> str:
    """The first sentence of what began it: the exporter wraps errors in its own, with a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0] if lines else type(error).__name__}".rstrip(".")[:300] + "."
