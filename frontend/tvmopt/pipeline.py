"""How a model flows through: the ordered list of passes, with the reason for each order constraint - read it top
to bottom.

    import -> graph passes -> layout -> legalize -> fuse -> schedule (families) -> plan memory -> build
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
import tvm.relax.backend
from tvm import relax, tirx

from tvmopt import passes as P
from tvmopt.extensions import extended
from tvmopt.importer.provenance import without_names
from tvmopt.legalize import legalize, lower_extrema, recurrent
from tvmopt.legalize.name_values import name_module
from tvmopt.legalize.ordered import lower_ordered
from tvmopt.legalize.winograd import instead_of_bf16
from tvmopt.passes.lower_conv_transpose import LowerConvTranspose
from tvmopt.passes.provenance import Provenance
from tvmopt.passes.relax_alignment import relax_alignment
from tvmopt.report import DecisionLog, Kernel
from tvmopt.scheduling.apply import Lookup, Scheduled, apply_families
from tvmopt.scheduling.concat_in_place import STAGE, InPlace, concat_in_place, whole_name
from tvmopt.scheduling.cost import kernel_cost
from tvmopt.targets import Machine

T = relax.transform

BUILD_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}
"""Families hint which row loop has a tail; without this TVM keeps the tail's branch in the inner loop."""


@dataclass
class Lowered:
    """A module ready to build, and how it came to be.

    Attributes:
        module: scheduled PrimFuncs and `main`, memory not yet planned.
        kernels: every kernel with its family, knobs, ONNX nodes, FLOPs and bytes.
        log: what each pass did and declined.
        seconds: wall time of each stage.
        unscheduled: the module before families were applied: the workloads of the tuner's tasks.
    """

    module: tvm.IRModule
    kernels: tuple[Kernel, ...]
    log: DecisionLog
    seconds: dict[str, float]
    unscheduled: tvm.IRModule


def graph_passes(machine: Machine, log: DecisionLog, precision: str = "fp32", exact: bool = False) -> list[Any]:
    """The rewrites of the Relax graph, in order."""
    return [
        P.UnrollRecurrence(log, lambda call: recurrent.declines(call, machine)),  # its steps are operators like any
        P.FoldConstant(log),  # before what looks for constant weights
        P.CancelCasts(log),
        P.EliminateIdentities(log),  # before the fusions, which then need not know these spellings
        P.FoldConstant(log),  # a shape or an index that has become constant
        P.CancelDuplicates(log),  # before the fusions, which compare operands by identity
        P.FuseLayerNorm(log),
        P.FuseRmsNorm(log),  # after FuseLayerNorm: the centred half of a LayerNorm looks like an RMSNorm
        P.FuseGroupNorm(log),  # before the passes of layouts and reshapes, which then see one operator
        P.FuseActivations(log),
        P.FuseSoftmax(log),  # before FuseAttention, which looks for softmax
        P.FuseGlobalPool(log),  # before ConvertLayout: axes are NCHW's
        P.FusePad(log),  # before ConvertConv1d and ConvertLayout, which know fewer forms of it
        P.FoldProducts(log),  # before FoldScaleShift, which folds the multiply that is left
        P.FoldBatchNorm(log),
        P.FoldScaleShift(log),  # after FoldBatchNorm, which leaves a multiply and an add where it cannot fold
        P.PropagateReshapes(log),  # before FuseOps: they stand between a GEMM and its epilogue
        P.PropagateTransposes(),  # brings those of q, k and v next to their product; the second run logs
        P.CancelReshapes(log),
        P.FuseAttention(log),
        P.CancelDuplicates(),  # after FuseAttention, which writes its mask once a layer
        P.SplitMatmul(log),  # after PropagateReshapes, which brings a split next to its GEMM
        P.CombineParallelMatmul(log),  # after FuseAttention: who reads q, k and v is known then
        LowerConvTranspose(log),  # after BatchNorm is folded into its weight, before layouts: it makes convolutions
        P.ConvertConv1d(log),  # before ConvertLayout, which knows 2-d convolutions
        P.ConvertConv3d(log),  # after BatchNorm is folded; what it makes is NHWC already
        P.ConvertLayout(log),  # after everything that looks for NCHW convolutions
        P.PropagateTransposes(log),  # after FuseAttention and ConvertLayout, whose transposes it cancels
        P.FuseTransposeMatmul(log),  # the flatten that a transpose could not pass
        P.CancelReshapes(log),  # after PropagateTransposes: a transpose travels, a reshape does not
        P.FoldConstant(log),  # what the layout passes left around constants
        *precision_passes(machine, log, precision, exact),  # after everything that looks for float32 patterns
        T.CanonicalizeBindings(),
        T.DeadCodeElimination(),
    ]


def precision_passes(machine: Machine, log: DecisionLog, precision: str, exact: bool) -> list[Any]:
    """What `--precision` adds; nothing for fp32 and tf32, whose values are fp32 in memory."""
    if precision in ("fp32", "tf32"):
        return []

    def unsupported(name: str, call: Any) -> str | None:
        winograd = name == "nn.conv2d" and machine.kind == "llvm" and not exact
        return "Winograd in fp32 is faster" if winograd and instead_of_bf16(call, machine) else None

    return [P.ConvertPrecision(log, precision, unsupported)]


def fusion_passes() -> list[Any]:
    """From legalized operators to one PrimFunc a kernel."""
    return [
        T.AnnotateTIROpPattern(),  # before FuseOps, which decides by pattern
        P.LimitFusion,  # a padding that TVM calls elementwise
        T.FuseOps(),
        T.FuseTIR(),
        T.RewriteDataflowReshape(),  # before schedules: a reshape in threads or vectors is not recognised as a view
        T.DeadCodeElimination(),
    ]


MOST_FUSED = 64
"""Operators that one kernel may take: the code of longer chains (200 times Tanh) nests deeper than the recursion of TVM
and Python goes, and compiles for minutes."""


def _fusion_context() -> Any:
    """The current pass context, instruments included, with :data:`MOST_FUSED` for FuseOps."""
    now = tvm.transform.PassContext.current()
    config = {**now.config, "relax.FuseOps.max_depth": MOST_FUSED}
    return tvm.transform.PassContext(now.opt_level, now.required_pass, now.disabled_pass, now.instruments, config)


def memory_passes(main: relax.Function) -> list[Any]:
    """From scheduled kernels to VM code: storage planned once, freed never in between.

    Storage is not planned for a function with branches. TVM takes an If for straight code: what the branch that runs
    reuses, the other one would have allocated. So there each tensor is allocated when it is made.
    """
    return [
        T.ToNonDataflow(),
        T.RemovePurityChecking(),
        T.CallTIRRewrite(),
        *([] if _has_branches(main) else [T.StaticPlanBlockMemory()]),
        T.RewriteCUDAGraph(),  # on the planned storage; only under the config that `build` sets for GPUs
        T.LowerAllocTensor(),
        T.KillAfterLastUse(),
        T.LowerRuntimeBuiltin(),
        T.ComputePrimValue(),
        T.VMShapeLower(),
        T.AttachGlobalSymbol(),
    ]


def _has_branches(func: relax.Function) -> bool:
    """Whether an If chooses at run time."""
    return any(isinstance(binding.value, relax.If) for block in func.body.blocks for binding in block.bindings)


def lower(
    module: tvm.IRModule,
    machine: Machine,
    log: DecisionLog | None = None,
    lookup: Lookup | None = None,
    exact: bool = False,
    precision: str = "fp32",
    without: Collection[str] = (),
    generic: Collection[str] = (),
) -> Lowered:
    """Everything between the importer and the code generator.

    Args:
        lookup: finds tuned knobs; None: analytic points only.
        exact: no algorithm that rounds differently from the operator's definition (Winograd).
        precision: see `tvmopt.targets.precision`.
        without: names of passes to leave out, of the graph's and `tvmopt.ConcatInPlace`, and `generic`: kernels that
            only the generic family may schedule (``"*"``: all) - how `tvmopt compare` finds the one to blame.
    """
    log = log or DecisionLog()
    seconds: dict[str, float] = {}
    with machine.tvm_target():
        with _timed(seconds, "graph passes"):
            passes = extended(graph_passes(machine, log, precision, exact), log)
            module, names = without_names(module)
            provenance = Provenance(module, names)
            module = provenance.through([p for p in passes if p.info.name not in without], module, log)
        with _timed(seconds, "legalize"):
            unlegalized = module["main"]
            module = lower_ordered(module, machine)  # scans and top-k, before TVM's own kernels of them
            module = relax.backend.DispatchSortScan()(module)  # sorting, and on GPUs all three: TVM's own kernels
            module = legalize(module, machine, exact, precision)
            provenance.follow(unlegalized, module["main"])
            if not relax.analysis.defined_symbolic_vars(module["main"]):  # the binding that computes a size must stay
                once = P.CancelDuplicates(log)  # what legalizers prepare for each of several readers of a value
                module = provenance.through([once], module, log)
        with _timed(seconds, "fuse"):
            unfused = module["main"]
            with _fusion_context():
                module = tvm.transform.Sequential(fusion_passes()[:3])(module)
            provenance.fused(unfused, module)
            module = provenance.through(fusion_passes()[3:], module, log)
        with _timed(seconds, "schedule"):
            unscheduled = module
            module, how = apply_families(module, machine, log, lookup, [whole_name(g) for g in generic])
            done = InPlace(module, unscheduled, how)
            if STAGE not in without:  # after families: records are of workloads with tensors of their own
                done = concat_in_place(module, unscheduled, how, machine, log)
            provenance.joined(done.nodes)
    kernels = tuple(_kernels(done.module, done.unscheduled, done.how, provenance))
    return Lowered(done.module, kernels, log, seconds, done.unscheduled)


def build(lowered: Lowered, machine: Machine, cuda_graph: bool = True) -> Any:
    """Plan memory and generate code: a `relax.VMExecutable`.

    Args:
        cuda_graph: runs of kernels with static shapes are captured once as CUDA graphs and replayed.
    """
    config: dict[str, Any] = {"relax.backend.use_cuda_graph": cuda_graph} if machine.kind == "cuda" else BUILD_CONFIG
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3, config=config):
        with _timed(lowered.seconds, "plan memory"):
            module = name_module(relax_alignment(lowered.module)) if machine.kind == "llvm" else lowered.module
            module = tvm.transform.Sequential(memory_passes(module["main"]))(module)
        with _timed(lowered.seconds, "generate code"):
            return relax.build(
                module, target=machine.tvm_target(), relax_pipeline=None, tir_pipeline=lower_extrema.PIPELINE
            )


def _kernels(
    module: tvm.IRModule, unscheduled: tvm.IRModule, how: dict[str, Scheduled], provenance: Provenance
) -> Iterator[Kernel]:
    """One record a kernel, in the order of first call."""
    calls = provenance.calls(module)
    for name, sites in calls.items():
        func = unscheduled[name]
        if not isinstance(func, tirx.PrimFunc):
            continue
        done = how.get(name, Scheduled("none", "generic"))
        cost = kernel_cost(func)
        yield Kernel(
            name, done.family, done.source, done.knobs, len(sites), tuple(sites), cost.flops, cost.bytes, done.note
        )


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
