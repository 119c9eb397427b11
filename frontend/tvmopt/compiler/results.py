"""What one compile hands back beside the code: the artifact's manifest, and the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.compiler.request import Request
from tvmopt.extensions import extensions
from tvmopt.report import Decision, Flow, Report
from tvmopt.runtime.manifest import FORMAT, Manifest
from tvmopt.runtime.tensors import TensorInfo, to_plain
from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch

if TYPE_CHECKING:
    from tvmopt.importer import Imported


def make_manifest(
    request: Request,
    imported: Imported,
    structure: str,
    report: Report,
    model: str,
    records: tuple[str, ...] = (),
    decoder: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """The manifest, without what only the artifact knows.

    Args:
        model: its hash. decoder: what the code of one does, by the names of :class:`Roles`.
    """
    machine = request.machine
    return Manifest(
        format=FORMAT,
        versions=versions(),
        model=request.title,
        model_sha256=model,
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
        symbols=imported.ranges,
        conditions=imported.conditions,
        decoder=replace(imported.decoder, **decoder),
        options={
            "shapes": dict(sorted(request.plain_shapes().items())),
            "exact": request.exact,
            "int8": request.int8,
            **({"kv_cache": request.kv_cache} if request.kv_cache != "fp32" else {}),
            **({"values": {n: to_plain(v) for n, v in request.values.items()}} if request.values else {}),
            **({"preprocess": dict(request.preprocess)} if request.preprocess else {}),
            **({"postprocess": dict(request.postprocess)} if request.postprocess else {}),
            **({"labels": {n: list(names) for n, names in request.classes.items()}} if request.classes else {}),
            **({"extensions": names} if (names := sorted(map(str, extensions()))) else {}),
            "bounds": integer_bounds(imported.model),  # for `tvmopt run --fill random`
        },
        report=without_timings(report.as_dict()),
    )


def used_features(machine: Machine, report: Report) -> tuple[str, ...]:
    """What the code may use: all that there is for the machine, but AMX only where a kernel was written for it (LLVM
    never uses it by itself), so that other code runs where a hypervisor hides AMX."""
    used = {k.family for k in report.kernels}
    tiles = {feature for family in families(machine.kind) if family.NAME in used for feature in family.NEEDS}
    return tuple(sorted(f for f in machine.instructions if not f.startswith("amx-") or f in tiles))


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
            *rounding_notes(lowered.log),
            *range_notes(imported),
            *softmax_notes(request),
            *(f"the extension {e} took part" for e in extensions()),
        ),
        flow=flow,
    )


CONDITIONS = 2
"""Conditions of open sizes that the note writes out."""


def range_notes(imported: Imported) -> tuple[str, ...]:
    """What sizes the model takes, in one line for the report; nothing for a static one."""
    if not imported.ranges:
        return ()
    told = ", ".join(f"{name} {known}" for name, known in imported.ranges.items() if known.min < known.max)
    fixed = tuple(
        f"the size {name} is fixed to {known.min}"
        for name, known in imported.ranges.items() if known.min == known.max
    )  # fmt: skip
    if not told:
        return fixed
    count = len(imported.conditions)
    named = (
        ", ".join(imported.conditions)
        if count <= CONDITIONS
        else f"{count} conditions hold that `tvmopt inspect` lists"
    )
    conditions = f"; only where {named}" if count else ""
    return (f"open sizes: {told}{conditions} (--shape NAME:MIN..MAX@BEST sets others)", *fixed)


def softmax_notes(request: Request) -> tuple[str, ...]:
    """That a softmax was asked for of what is one already, a line for each such output."""
    if not any("softmax" in text for text in request.postprocess.values()):
        return ()
    from tvmopt.preprocessing.behind import repeated

    told = "comes from a Softmax in the model: a second one makes its scores nearly equal; leave softmax out"
    return tuple(f"the output {name!r} {told}" for name in repeated(request.whole))


def parameter_count(model: Any) -> int:
    """Elements of the floating-point initializers of an ONNX model."""
    import numpy as np

    floats = {1, 10, 11, 16}  # FLOAT, FLOAT16, DOUBLE, BFLOAT16 (TensorProto.DataType)
    return int(sum(np.prod(i.dims, dtype=np.int64) for i in model.graph.initializer if i.data_type in floats))


def precision_notes(precision: str, decisions: Iterable[Decision]) -> tuple[str, ...]:
    """What was asked for and not done, in one line for the report; nothing where all was done.

    >>> precision_notes("bf16", [Decision("tvmopt.ConvertPrecision", "declined", "dw", "3: a reduction of one term")])
    ('asked for bf16; in it: 0 operators, in fp32: 1 (a reduction of one term)',)
    >>> precision_notes("fp16", [Decision("tvmopt.ConvertPrecision", "declined", "fc", "1: operands are float16")])
    ()
    """
    if precision == "fp32":
        return ()
    if precision == "tf32":
        return (
            "tf32: products and convolutions round their operands to 11 significant bits (by up to 4.9e-4 of "
            "each); sums, attention and all else are fp32",
        )
    stages = ("tvmopt.ConvertPrecision", "tvmopt.NarrowWeights")
    mine = [d for d in decisions if d.stage in stages and d.node != "main"]
    already = f"operands are {dict(fp16='float16', bf16='bfloat16').get(precision)}"  # as the model has it
    left = [d.reason.partition(": ")[2] for d in mine if d.verdict == "declined" and not d.reason.endswith(already)]
    done = len(mine) - len(left)
    if done and not left:
        return ()
    why = f" ({'; '.join(sorted(set(left)))})" if left else ""
    return (f"asked for {precision}; in it: {done} operators, in fp32: {len(left)}{why}",)


def rounding_notes(decisions: Iterable[Decision]) -> tuple[str, ...]:
    """That rows are rounded to 8 bits, in one line for the report; nothing where none are.

    >>> rounding_notes([Decision("tvmopt.RoundActivations", "applied", "fc")])
    ('1 product rounds its rows to 8 bits, as the model allows (accuracy_level 4); --int8 off keeps them',)
    """
    count = sum(d.stage == "tvmopt.RoundActivations" and d.verdict == "applied" for d in decisions)
    who = f"{count} products round their" if count > 1 else "1 product rounds its"
    told = f"{who} rows to 8 bits, as the model allows (accuracy_level 4); --int8 off keeps them"
    return (told,) if count else ()


def structure_hash(module: Any, target: Any) -> str:
    """Hash of a lowered module whose weights are parameters: equal for two models that differ in weights only.

    TVM's structural hash ignores names of variables and sees everything else, schedules and scalar constants included.
    """
    import tvm
    import tvm_ffi

    content = f"{tvm_ffi.structural_hash(module, map_free_vars=True) & (2**64 - 1):016x}|{target}|{tvm.__version__}"
    return hashlib.sha256(content.encode()).hexdigest()


def without_timings(report: dict[str, Any]) -> dict[str, Any]:
    """A report as the artifact keeps it: what differs from run to run is left out."""
    kept = {key: value for key, value in report.items() if key not in ("seconds", "cached")}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def versions() -> dict[str, str]:
    """Versions that made an artifact."""
    from importlib.metadata import version

    from tvmopt import __version__

    return {
        "tvmopt": __version__,
        "apache-tvm": version("apache-tvm"),
        "apache-tvm-ffi": version("apache-tvm-ffi"),
    }
