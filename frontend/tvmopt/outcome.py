"""What one compile hands back beside the code: the artifact's manifest, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.extensions import extensions
from tvmopt.linking import versions, without_timings
from tvmopt.precision import notes as precision_notes
from tvmopt.report import Flow, Report
from tvmopt.request import Request, source_hash
from tvmopt.runtime.manifest import FORMAT, Manifest
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.runtime.tiles import FEATURES as TILE_FEATURES
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch

if TYPE_CHECKING:
    from tvmopt.importer import Imported


def make_manifest(
    request: Request, imported: Imported, structure: str, report: Report, records: tuple[str, ...] = ()
) -> Manifest:
    machine = request.machine
    return Manifest(
        format=FORMAT,
        versions=versions(),
        model=request.title,
        model_sha256=source_hash(request.source),
        structure=structure,
        inputs=tuple(TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.inputs),
        outputs=tuple(TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.outputs),
        weights=(),
        target=machine.name,
        kind=machine.kind,
        mcpu=machine.mcpu,
        features=used_features(machine, report) if machine.kind == "llvm" else (),
        arch=machine.arch if machine.kind == "llvm" else host_arch(),
        threads=machine.cores if machine.kind == "llvm" else 1,
        precision=request.precision,
        records=records,
        options={
            "shapes": {name: list(shape) for name, shape in sorted(request.shapes.items())},
            "exact": request.exact,
            **({"extensions": names} if (names := sorted(map(str, extensions()))) else {}),
            "bounds": integer_bounds(imported.model),  # for `tvmopt run --fill random`
        },
        report=without_timings(report.as_dict()),
    )


def used_features(machine: Machine, report: Report) -> tuple[str, ...]:
    """What the code may use: all the machine has, but AMX only where a kernel was written for it (LLVM never uses it
    by itself), so that other code runs where a hypervisor hides AMX."""
    amx = TILE_FEATURES if any(k.family.startswith("amx_") for k in report.kernels) else ()
    return tuple(sorted(f for f in machine.features if not f.startswith("amx-") or f in amx))


def make_report(
    request: Request,
    imported: Imported,
    lowered: Any,
    weights: Sequence[tuple[TensorInfo, Any]],
    seconds: dict[str, float],
    flow: Flow,
    warnings: tuple[str, ...] = (),
) -> Report:
    return Report(
        model=request.title,
        target=request.machine.name,
        precision=request.precision,
        kernels=lowered.kernels,
        decisions=tuple(lowered.log),
        seconds=seconds,
        flops=float(sum(k.flops * k.calls for k in lowered.kernels)),
        parameters=parameter_count(imported.model),
        weight_bytes=sum(info.nbytes for info, _ in weights),
        activation_bytes=sum(flow.storages),
        warnings=(
            *warnings,
            *precision_notes(request.precision, lowered.log),
            *(f"the extension {e} took part" for e in extensions()),
        ),
        flow=flow,
    )


def parameter_count(model: Any) -> int:
    """Elements of the floating-point initializers of an ONNX model."""
    import numpy as np

    floats = {1, 10, 11, 16}  # FLOAT, FLOAT16, DOUBLE, BFLOAT16 (TensorProto.DataType)
    return int(sum(np.prod(i.dims, dtype=np.int64) for i in model.graph.initializer if i.data_type in floats))
