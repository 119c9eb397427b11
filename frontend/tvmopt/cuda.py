"""Compile for NVIDIA GPUs, with or without one in the machine - for `--target cuda`.

It happens in a child process that `cuda_toolkit.py` gives a CUDA compiler and, without a GPU, a stand-in for the
driver: a kernel that nvcc refuses is an error now.

The stages are those of `pipeline.py`; kernels that no family in `schedules/cuda` takes get TVM's dlight, and
the report says so.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmopt import children
from tvmopt.children import Progress
from tvmopt.cuda_toolkit import compiler, environment, find_toolkit
from tvmopt.errors import InputError, MissingDependency, ScheduleError
from tvmopt.linking import export, structure_hash
from tvmopt.outcome import make_manifest, make_report
from tvmopt.ptxas import Recorder, recording, unfit
from tvmopt.report import DecisionLog, Report
from tvmopt.request import Progressed, Request, as_file, record_lookup
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.tuning.logs import RecordLookup


def compile_cuda(request: Request, progress: Progress | None) -> tuple[Artifact, Report]:
    """Compile in a child process; see the module's text.

    Raises:
        MissingDependency: no CUDA compiler, libcudart or C compiler.
    """
    if request.values:
        raise InputError("values are not taken with --target cuda yet.", where=request.machine.name)
    toolkit = find_toolkit()
    with as_file(request.source) as model, tempfile.TemporaryDirectory(prefix="tvmopt-cuda-") as folder:
        arguments = {
            "model": str(model),
            "machine": request.machine.as_dict(),
            "precision": request.precision,
            "exact": request.exact,
            "cuda_graph": request.cuda_graph,
            "shapes": {name: list(shape) for name, shape in request.shapes.items()},
            "name": request.name,
            "records": request.records,
            "store": None if request.store is None else str(request.store),
            "output": str(Path(folder) / "out.tvmopt"),
        }
        answer = children.call("tvmopt.cuda:in_child", arguments, progress=progress, environment=environment(toolkit))
        return read(Path(folder) / "out.tvmopt"), Report.from_dict(answer)


def in_child(
    *,
    model: str,
    machine: dict[str, Any],
    precision: str,
    exact: bool,
    cuda_graph: bool,
    shapes: dict[str, Any],
    name: str,
    records: bool,
    store: str | None,
    output: str,
    progress: Progress,
) -> dict[str, Any]:
    """The child's part: compile, write the artifact, return the report."""
    from tvmopt.flow import plan
    from tvmopt.importer import import_model

    gpu = Machine(**{**machine, "features": tuple(machine["features"])})
    request = Request(
        model, gpu, precision, shapes, exact=exact, name=name, cuda_graph=cuda_graph, records=records, store=store
    )
    stages = Progressed(progress)
    with stages.stage("importing"):
        imported = import_model(model, shapes)

    import tvm

    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        raise MissingDependency(
            "TVM's CUDA part cannot be loaded.",
            where=f"libtvm_runtime_cuda.so, with {os.environ['LD_LIBRARY_PATH']}",
            fix="it needs libcudart.so.13: install NVIDIA's CUDA 13 toolkit",
        )
    lookup = record_lookup(request)
    made = _with_records(request, imported, stages, lookup)
    made.recorder.check()
    lowered = made.lowered
    lowered.kernels = tuple(
        replace(k, launches=tuple(launch.as_dict() for launch in made.recorder.of(k.name))) for k in lowered.kernels
    )
    notes = lookup.tell(lowered.log) if lookup else ()
    with stages.stage("linking"):
        library = export(made.executable, host_arch())
    report = make_report(
        request,
        imported,
        lowered,
        made.weights,
        stages.seconds,
        plan(lowered, gpu, imported),
        (*notes, *_warnings(lowered), *made.recorder.warnings()),
    )
    manifest = make_manifest(request, imported, made.structure, report, lookup.used_lines() if lookup else ())
    Artifact.build(manifest, library, made.weights).save(output)
    return report.as_dict()


@dataclass(frozen=True)
class _Built:
    """A lowered module, its weights and its structure's hash; the executable, and what the CUDA compiler said of it."""

    lowered: Any
    weights: Any
    structure: str
    executable: Any
    recorder: Recorder


def _with_records(request: Request, imported: Any, stages: Any, lookup: RecordLookup | None) -> _Built:
    """Build; once more without those records whose kernels this GPU cannot launch, that spill, or do not compile."""
    try:
        made = _machine_code(request, imported, stages, lookup)
    except ScheduleError as error:
        if lookup is None or not lookup.used:
            raise
        lookup.ignored |= {r.key: (r, error.what.replace("\n", " ")[:200]) for r, _ in lookup.used}
    else:
        if lookup is None or not _refuse_records(made, request.machine, lookup):
            return made
    lookup.used.clear()
    return _machine_code(request, imported, stages, lookup)


def _machine_code(request: Request, imported: Any, stages: Any, lookup: RecordLookup | None) -> _Built:
    from tvmopt import pipeline
    from tvmopt.passes.lift_constants import lift_constants

    gpu = request.machine
    with stages.stage("optimizing"):
        lowered = pipeline.lower(
            imported.module, gpu, DecisionLog(), lookup, exact=request.exact, precision=request.precision
        )
        lowered.module, weights = lift_constants(lowered.module)
        structure = structure_hash(lowered.module, gpu.tvm_target())
    with stages.stage("generating code"):
        with recording(gpu, compiler()) as recorder:
            executable = pipeline.build(lowered, gpu, request.cuda_graph)
        if lowered.kernels and not recorder.binaries:
            raise ScheduleError(
                "TVM made no machine code for the GPU.",
                where=str(request.source),
                fix="please report it with the model",
            )
    return _Built(lowered, weights, structure, executable, recorder)


def _refuse_records(made: _Built, machine: Machine, lookup: RecordLookup) -> int:
    """Turn down the records whose kernels cannot be launched or spill; how many."""
    from tvmopt.scheduling.discover import families
    from tvmopt.scheduling.normalize import normalize

    count = 0
    for kernel in made.lowered.kernels:
        problems = unfit(made.recorder.of(kernel.name), machine) if kernel.source == "tuned" else []
        if problems:
            family = next(f for f in families(machine.kind) if kernel.family == f.NAME)
            lookup.refused(normalize(made.lowered.unscheduled[kernel.name]), family, "; ".join(problems))
            count += 1
    return count


def _warnings(lowered: Any) -> tuple[str, ...]:
    """What a user must know: kernels that no family of ours scheduled, by rule and number."""
    rules = Counter(k.family for k in lowered.kernels if k.family.startswith("dlight."))
    if not rules:
        return ()
    told = ", ".join(f"{number} by {rule}" for rule, number in sorted(rules.items()))
    return (f"no family of tvmopt scheduled {rules.total()} of {len(lowered.kernels)} kernels: {told}",)
