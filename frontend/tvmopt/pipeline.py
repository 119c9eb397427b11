"""How a model flows through: every stage in one ordered list, with the reason for each order constraint - read
:func:`stages` top to bottom.

    import -> the graph -> lowering to loops -> fusion -> schedules -> weights apart -> kernels -> memory -> loops

`tvmopt compile --dump-after NAME DIR` writes the module behind any stage, `without` leaves one out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import tvm
import tvm.relax.backend
from tvm import relax, tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline

from tvmopt import passes as P
from tvmopt.extensions import extended
from tvmopt.importer.provenance import without_names
from tvmopt.importer.sizes import named_sizes
from tvmopt.lowering import STAGE as LOWER
from tvmopt.lowering import (
    faster_as_it_lies,
    finish,
    keeps_fp32,
    lower_operators,
    lower_ordered,
    predicted,
    why_unrolled,
)
from tvmopt.lowering.drop_argument_checks import DropArgumentChecks
from tvmopt.lowering.drop_empty_launches import DropEmptyLaunches
from tvmopt.lowering.drop_sequence_marks import DropSequenceMarks
from tvmopt.lowering.guard_divisors import GuardDivisors
from tvmopt.lowering.lookups import FEATURE as TABLES
from tvmopt.lowering.lookups import LowerLookups
from tvmopt.lowering.loop_passes import all_loop_passes
from tvmopt.lowering.lower_choices import LowerChoices
from tvmopt.lowering.lower_doubles import LowerDoubles
from tvmopt.lowering.lower_extrema import LowerExtrema
from tvmopt.lowering.lower_infinities import LowerInfinities
from tvmopt.lowering.lower_remainders import LowerRemainders
from tvmopt.lowering.lower_rounding import LowerRounding
from tvmopt.lowering.masked_stores import PLAIN, overruns, stores_integers
from tvmopt.lowering.name_values import name_values
from tvmopt.lowering.order_stores import order_stores
from tvmopt.lowering.overlap import overlap_vectors
from tvmopt.lowering.pairs import lower_pairs
from tvmopt.lowering.partition import bound_partitions
from tvmopt.lowering.prefetch import lower_prefetch
from tvmopt.lowering.quads import lower_quads
from tvmopt.lowering.round_products import RoundProducts
from tvmopt.lowering.split_wraps import SplitWraps, wraps
from tvmopt.lowering.stack_buffers import StackBuffers
from tvmopt.lowering.stream_stores import name_streams
from tvmopt.lowering.unroll_truths import UnrollTruths
from tvmopt.lowering.widen_intrinsics import WidenIntrinsics
from tvmopt.operators.stored import CHOICES, FLOAT
from tvmopt.passes.bound_outputs import bound_outputs
from tvmopt.passes.distinct_storages import distinct_storages
from tvmopt.passes.graph import sharing
from tvmopt.passes.keep_caches import IN_PLACE, ONE_TOKEN, STORED
from tvmopt.passes.keep_views import reshapes_to_views, views_again
from tvmopt.passes.lift_constants import Weights, lift_constants
from tvmopt.passes.lower_conv_transpose import LowerConvTranspose
from tvmopt.passes.mark_planned import mark_planned
from tvmopt.passes.name_sizes import SizeNames
from tvmopt.passes.order_sizes import order_sizes
from tvmopt.passes.place_tokens import PLACED
from tvmopt.passes.provenance import Provenance, shapes_of_calls
from tvmopt.passes.relax_alignment import relax_alignment
from tvmopt.passes.run_loops import Loop, callable_loops, joined, without_loops, write_loops
from tvmopt.passes.share_tensors import share_tensors
from tvmopt.passes.stages import Part, Run, Stage, Watch, check_names, each_kernel, stage, through
from tvmopt.report import DecisionLog, Kernel
from tvmopt.scheduling import concat_in_place
from tvmopt.scheduling.apply import STAGE as APPLY
from tvmopt.scheduling.apply import Lookup, Scheduled, apply_families, tasks_of
from tvmopt.scheduling.cost import kernel_cost
from tvmopt.scheduling.open_loops import without_pool
from tvmopt.scheduling.open_rows import at_shapes
from tvmopt.targets import Machine
from tvmopt.targets.precision import multiplies_bytes

T = relax.transform

MOST_FUSED = 64
"""Operators that one kernel may take: the code of longer chains (200 times Tanh) nests deeper than the recursion of TVM
and Python goes, and compiles for minutes."""

BUILD_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}, "tirx.UnrollLoop": {"auto_max_depth": -1}}
"""Families hint which row loop has a tail; without the first TVM keeps the tail's branch in the inner loop. Without the
second it writes out loops of 2**29 steps that nobody marked, as their number times that of their statements leaves 32
bits."""

LEFT_TO_LLVM = ["tirx.RemoveNoOp", "s_tir.RenormalizeSplitPattern", "tirx.CommonSubexprElim"]
"""Passes of TVM that look through every unrolled statement for what LLVM finds again. Without the first two the passes
of loops take a quarter less time for PP-OCRv6's detector, and 74 of its 77 kernels are the same machine code; without
the third a fifth less, and 160 drawn layers take 0.997 of their time. (LLVM's level 2 in place of 3 would save as much
again, but costs a concatenation and strided convolutions half their speed.)"""


@dataclass
class Lowered:
    """A module ready to build, and how it came to be.

    Attributes:
        module: scheduled PrimFuncs and `main`, memory not yet planned.
        kernels: every kernel with its family, knobs, ONNX nodes, FLOPs and bytes.
        log: what each pass did and declined.
        seconds: wall time of each part of the list.
        unscheduled: the module before families were applied: the workloads of the tuner's tasks.
        weights: those that were lifted out of the module, in the order of its parameters.
        job: what was asked for.
        loops: those that a run goes through; the functions of their bodies are in the module.
    """

    module: tvm.IRModule
    kernels: tuple[Kernel, ...]
    log: DecisionLog
    seconds: dict[str, float]
    unscheduled: tvm.IRModule
    weights: Weights
    job: Job
    loops: tuple[Loop, ...] = ()

    @property
    def decoder(self) -> dict[str, Any]:
        """What the code of a decoder does, by the names of `tvmopt.runtime.roles.Roles`: whether its caches are buffers
        that stay where they are and how these are stored, whether its tokens have places."""
        attributes = dict(self.module["main"].attrs or {})
        return {
            "in_place": IN_PLACE in attributes, "placed": PLACED in attributes, "one_token": ONE_TOKEN in attributes,
            "kept": str(attributes.get(STORED, FLOAT)),
        }  # fmt: skip


@dataclass
class Job:
    """What the list of stages depends on, and what stages leave for each other.

    Attributes:
        machine: for which it is.
        log: what stages did and declined.
        lookup: finds tuned knobs; None: analytic points only.
        exact: no algorithm that rounds differently from the operator's definition (Winograd).
        precision: see `tvmopt.targets.precision`.
        int8: which quantised products are integer products: see `tvmopt.targets.precision.INT8_CHOICES`.
        kv_cache: how a decoder's caches are stored: see `tvmopt.operators.stored.CHOICES`.
        without: names of stages to leave out.
        generic: kernels that only the generic family may schedule (``"*"``: all) - with `without`, how `tvmopt compare`
            finds the one to blame.
        lift: weights become parameters of `main`.
        watch: is shown the module after each stage.
        provenance: which ONNX nodes each binding computes.
        unscheduled, how: the kernels before they were scheduled, and how each was.
        weights: those that were lifted.
    """

    machine: Machine
    log: DecisionLog = field(default_factory=DecisionLog)
    lookup: Lookup | None = None
    exact: bool = False
    precision: str = "fp32"
    int8: str = "auto"
    kv_cache: str = "fp32"
    without: Collection[str] = ()
    generic: Collection[str] = ()
    lift: bool = False
    watch: Watch | None = None
    provenance: Provenance | None = None
    unscheduled: tvm.IRModule | None = None
    how: dict[str, Scheduled] = field(default_factory=dict)
    weights: Weights = field(default_factory=list)


def stages(job: Job) -> list[Part]:
    """The whole way, from the imported module to the code generator, in order.

    The first five parts are :func:`lower`'s, the others :func:`build`'s. Behind memory planning `main` becomes code of
    the virtual machine, and only kernels are left.
    """
    machine = job.machine
    # before memory is planned: a view of an input is still a reshape
    inputs = [Stage("tvmopt.RelaxAlignment", relax_alignment, needed=True), Stage("tvmopt.MarkPlanned", mark_planned)]
    return [
        Part("graph passes", _graph(job)),
        Part(
            "lower",
            [
                # scans and top-k, before TVM's own kernels of them
                Stage("tvmopt.LowerOrdered", lambda m: lower_ordered(m, machine, job.exact, job.log)),
                stage(relax.backend.DispatchSortScan(), needed=True),  # sorting, on GPUs all three: TVM's own kernels
                Stage(LOWER, lambda m: lower_operators(m, machine, job.exact, job.precision, job.log), needed=True),
                stage(P.KeepViews(job.log)),
                stage(relax.transform.LegalizeOps(), needed=True),  # reshapes between open sizes that are no views
                # what lowerings prepare for each of several readers of a value
                Stage("tvmopt.CancelDuplicates", lambda m: _once(m, job.log)),
            ],
        ),
        Part("fuse", fusion_stages()),
        Part(
            "schedule",
            [
                Stage(APPLY, lambda m: _apply_families(m, job), needed=True, follow="kernels"),
                # after families: records are of workloads with tensors of their own
                Stage(concat_in_place.STAGE, lambda m: _concat_in_place(m, job), follow="kernels"),
            ],
        ),
        # after all that wants to see constants
        Part("weights", [Stage("tvmopt.LiftConstants", lambda m: _lift(m, job), needed=True)] if job.lift else []),
        Part("kernels", [*inputs, *kernel_stages()] if machine.kind == "llvm" else []),
        Part("plan memory", memory_stages(machine.kind)),
        Part("loops", loop_stages(machine)),
    ]


def fusion_stages() -> list[Stage]:
    """From operators as loops to one PrimFunc a kernel."""
    names = SizeNames()
    return [
        stage(T.AnnotateTIROpPattern(), needed=True),  # before FuseOps, which decides by pattern
        Stage("tvmopt.NameSizes", names.give),  # before LimitFusion, which looks for sizes that are handed over
        stage(P.LimitFusion),  # a padding that TVM calls elementwise
        Stage("FuseOps", _fuse_ops, follow="functions"),
        stage(T.FuseTIR(), needed=True),
        Stage("tvmopt.SizesAgain", names.take_back, needed=True),  # before views are found by their sizes
        Stage("tvmopt.OrderSizes", order_sizes, needed=True),  # FuseOps orders kernels by their tensors alone
        Stage("tvmopt.ViewsAgain", views_again, needed=True),
        # before schedules: a reshape in threads or vectors is not seen as a view
        Stage("RewriteDataflowReshape", reshapes_to_views),
        stage(T.DeadCodeElimination()),
    ]


def kernel_stages() -> list[Stage]:
    """The rewrites of scheduled kernels for CPUs, before TVM's own passes of loops."""
    return [
        each_kernel("tvmopt.OverlapVectors", overlap_vectors),  # before NameValues, whose buffers are of whole vectors
        each_kernel("tvmopt.NameValues", name_values),  # one transcendental function a statement
        each_kernel("tvmopt.LowerPrefetch", lower_prefetch),  # the next panel of weights
        # what families rewrite behind their schedules: AMX; before LowerPairs, which takes the products that are left
        each_kernel("tvmopt.FinishKernels", finish),
        each_kernel("tvmopt.NameStreams", name_streams),  # results that are written past the caches
        each_kernel("tvmopt.LowerPairs", lower_pairs),  # products of bfloat16
        each_kernel("tvmopt.LowerQuads", lower_quads),  # products of bytes
        each_kernel("tvmopt.BoundPartitions", bound_partitions),  # last: it looks at the loops as TVM will cut them
    ]


def memory_stages(kind: str = "llvm") -> list[Stage]:
    """From calls of kernels to code of the virtual machine, for machines of a kind."""
    return [
        stage(T.ToNonDataflow(), needed=True),
        stage(T.RemovePurityChecking(), needed=True),
        stage(T.CallTIRRewrite(), needed=True),
        Stage("StaticPlanBlockMemory", _plan_memory),
        Stage("tvmopt.BoundOutputs", bound_outputs),  # of what the planner leaves to the runtime
        stage(T.RewriteCUDAGraph()),  # on the planned storage; only under the config that `build` sets for GPUs
        stage(T.LowerAllocTensor(), needed=True),
        *([Stage("tvmopt.DistinctStorages", distinct_storages)] if kind == "llvm" else []),  # behind the last storage
        stage(T.KillAfterLastUse()),
        stage(T.LowerRuntimeBuiltin(), needed=True),
        stage(T.ComputePrimValue(), needed=True),
        stage(T.VMShapeLower(), needed=True),
        # behind all that makes shapes, views and tensors; on a GPU CUDA graphs replay them
        *([Stage("tvmopt.ShareTensors", share_tensors)] if kind == "llvm" else []),
        each_kernel("tvmopt.OrderStores", order_stores),  # the same library from the same model
        stage(T.AttachGlobalSymbol(), needed=True),
    ]


def loop_stages(machine: Machine) -> list[Stage]:
    """From scheduled loops to what the code generator takes."""
    _, host, device = default_s_tir_pipeline()
    return [
        Stage("tirx.BindTarget", tirx.transform.BindTarget(_with_host(machine)), needed=True),
        # empty grids, which TVM launches as one block; and while loops are still marked as vectors
        *([] if machine.kind == "llvm" else [stage(DropEmptyLaunches), stage(RoundProducts), stage(UnrollTruths)]),
        Stage("s_tir.Loops", all_loop_passes(machine.kind), needed=True),  # TVM's own passes of loops, some fifty
        # behind the simplifier, which would fold `v != v`, and behind the reductions of GPU threads
        stage(LowerExtrema),
        stage(LowerRounding),  # likewise: it looks at values, not at places
        stage(LowerRemainders),  # behind the vectorizer: it asks all lanes of a vector at once
        stage(LowerLookups),  # behind the vectorizer, which makes vectors of places
        stage(DropSequenceMarks),
        stage(DropArgumentChecks),  # behind MakePackedAPI, which writes them
        # behind TVM's StorageRewrite, which gives several values one buffer
        *([stage(StackBuffers), stage(SplitWraps), stage(GuardDivisors)] if machine.kind == "llvm" else []),
        # before Finalize, in which TVM lowers intrinsics
        *([] if machine.kind == "llvm" else [stage(WidenIntrinsics)]),
        Stage("tirx.Finalize", lambda m: _finalized(m, host(), device()), needed=True),
        # behind TVM's simplifiers, which undo the first and fold constants
        *([] if machine.kind == "llvm" else [stage(LowerInfinities), stage(LowerDoubles), stage(LowerChoices)]),
    ]


CODEGEN: Any = import_module("tvm.tirx.build")  # the name in the package is a function

LOWERING = 5
"""Parts of the list that are :func:`lower`'s."""


def _graph(job: Job) -> list[Stage]:
    return [stage(one) for one in extended(_graph_passes(job), job.log)]


def _graph_passes(job: Job) -> list[Any]:
    return graph_passes(job.machine, job.log, job.precision, job.exact, job.int8, CHOICES[job.kv_cache])


def graph_passes(
    machine: Machine, log: DecisionLog, precision: str = "fp32", exact: bool = False, int8: str = "auto",
    stored: str = FLOAT,
) -> list[Any]:  # fmt: skip
    """The rewrites of the Relax graph, in order."""
    return [
        P.MarkCaches(log),  # before passes that would move a transpose through the concatenation
        *([P.WidenHalves(log)] if machine.kind == "llvm" else []),  # before all that look for float32
        *quantization_passes(
            machine, log, int8, exact
        ),  # before FoldConstant, which would make floats of quantised weights
        P.UnrollRecurrence(log, lambda call: why_unrolled(call, machine)),  # its steps are operators like any
        # before UnpackWeights, which makes floats of weights without a kernel
        P.RoundActivations(log, lambda call: why_unrolled(call, machine), _why_exact(machine, exact, int8)),
        P.UnpackWeights(log, lambda call: why_unrolled(call, machine)),  # likewise: a product like any
        P.FoldConstant(log),  # before what looks for constant weights
        P.CancelCasts(log),
        P.EliminateIdentities(log),  # before the fusions, which then need not know these spellings
        P.FoldConstant(log),  # a shape or an index that has become constant
        P.CancelDuplicates(log),  # before the fusions, which compare operands by identity
        P.ConvertOneHot(log),  # after FoldConstant; before all that looks for products
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
        P.MergeAddedConvolutions(log, precision == "fp32"),  # after both: norms are in weights, or scales
        # after FoldConstant and the fusions: constants are numbers; before FoldRequantization, which takes products
        *byte_passes(machine, log, int8),
        P.FoldRequantization(log),  # after FoldConstant: a bias is a constant then
        P.ListQuantization(log, why_floats(machine, int8)),  # after it; before names and layouts change
        P.PropagateReshapes(log),  # before FuseOps: they stand between a GEMM and its epilogue
        P.PropagateTransposes(),  # brings those of q, k and v next to their product; the second run logs
        P.CancelReshapes(log),
        P.FuseAttention(log),
        P.CancelDuplicates(),  # after FuseAttention, which writes its mask once a layer
        P.SplitMatmul(log),  # after PropagateReshapes, which brings a split next to its GEMM
        P.CombineParallelMatmul(log),  # after FuseAttention: who reads q, k and v is known then
        P.CombineSlicedMatmul(log),  # after FoldConstant: the weight that steps share is one constant
        # after BatchNorm is folded into its weight, before layouts: it makes convolutions
        LowerConvTranspose(
            log, machine.kind == "llvm", lambda call: faster_as_it_lies(call, machine, precision, exact)
        ),
        P.ConvertConv1d(log),  # before ConvertLayout, which knows 2-d convolutions
        P.TurnColumns(log),  # before ConvertLayout too; beside ConvertConv1d, whose rows it makes
        P.PropagateReshapes(log, ones=True),  # behind both: between a row's convolution and its epilogue
        P.TrimTaps(log),  # after FusePad, before ConvertLayout: borders are in NCHW
        P.ConvertConv3d(log),  # after BatchNorm is folded; what it makes is NHWC already
        # after everything that looks for NCHW convolutions
        P.ConvertLayout(log, lambda call: faster_as_it_lies(call, machine, precision, exact)),
        P.PropagateTransposes(log),  # after FuseAttention and ConvertLayout, whose transposes it cancels
        P.FuseTransposeMatmul(log),  # the flatten that a transpose could not pass
        P.ConvertSoftmax(log, lambda call: _sums_wide(call, machine)),  # after FuseAttention, which looks for softmax
        # after PropagateTransposes: the last axis is that of rows
        P.SplitReductions(log, lanes=machine.kind == "llvm" and precision == "fp32"),
        P.CancelReshapes(log),  # after PropagateTransposes: a transpose travels, a reshape does not
        P.FoldConstant(log),  # what the layout passes left around constants
        P.KeepCaches(machine.kind, log, stored),  # after FuseAttention and the passes of layouts; its inputs are others
        P.KeepLastScores(log),  # after KeepCaches, which makes the parameter that says how many
        P.PlaceTokens(log),  # after KeepCaches and KeepLastScores: its parameters are others again
        P.ZeroSubnormals(log),  # after everything that scales weights
        P.ShareScales(log),  # after everything that knows scales by their number
        *precision_passes(machine, log, precision, exact),  # after everything that looks for float32 patterns
        T.CanonicalizeBindings(),
        T.DeadCodeElimination(),
    ]


def _sums_wide(softmax: Any, machine: Machine) -> bool:
    """Whether a kernel of the machine adds up a softmax of 16 bits in float32: that of rows on GPUs."""
    return machine.kind == "cuda" and int(softmax.attrs.axis) % len(softmax.ty.shape) == len(softmax.ty.shape) - 1


def quantization_passes(machine: Machine, log: DecisionLog, int8: str, exact: bool = False) -> list[Any]:
    """What keeps a quantised graph in integers; nothing where that is not asked for. With "auto" each product is asked
    about: whether it is faster in bytes."""
    if not keeps_bytes(machine, int8):
        return []
    choice = partial(predicted, machine=machine, exact=exact) if int8 == "auto" else None
    return [
        P.FoldChannelScales(log),  # before the passes that know one scale a tensor
        P.ConvertSignedQuantization(log),
        P.PropagateQuantization(log),
        P.ConvertIntegerProducts(
            log, choice
        ),  # after PropagateQuantization, which brings dequantizations next to products
    ]


def byte_passes(machine: Machine, log: DecisionLog, int8: str) -> list[Any]:
    """What makes bounds and tables of functions of a byte."""
    return [P.ConvertByteFunctions(log, TABLES in machine.features)] if keeps_bytes(machine, int8) else []


def keeps_bytes(machine: Machine, int8: str) -> bool:
    """Whether a quantised graph stays in integers."""
    return machine.kind == "llvm" and (int8 == "all" or (int8 == "auto" and multiplies_bytes(machine)))


def _why_exact(machine: Machine, exact: bool, int8: str) -> str:
    """Why rows are not rounded to 8 bits where a file allows it; empty where they are."""
    if exact:
        return "only what rounds as the operators' definitions do is asked for"
    return why_floats(machine, int8)


def why_floats(machine: Machine, int8: str) -> str:
    """Why no product of a quantised model is one of bytes; empty where some may be."""
    if machine.kind != "llvm":
        return "there are no kernels of bytes for GPUs"
    if int8 == "off":
        return "no products of bytes are asked for"
    return "" if keeps_bytes(machine, int8) else "this machine multiplies floats faster than bytes"


def precision_passes(machine: Machine, log: DecisionLog, precision: str, exact: bool) -> list[Any]:
    """What `--precision` adds; nothing for fp32 and tf32, whose values are fp32 in memory."""
    if precision in ("fp32", "tf32"):
        return []
    unsupported = partial(keeps_fp32, machine=machine, precision=precision, exact=exact)
    if precision == "fp16" and machine.kind == "llvm":
        return [P.NarrowWeights(log, unsupported)]
    return [P.ConvertPrecision(log, precision, unsupported)]


def lower(
    module: tvm.IRModule,
    machine: Machine,
    log: DecisionLog | None = None,
    lookup: Lookup | None = None,
    **options: Any,
) -> Lowered:
    """Everything between the importer and memory planning.

    Args:
        log, lookup, options: the further fields of :class:`Job`.

    Raises:
        InputError: `without` names no stage, or one that cannot be left out.
    """
    job = Job(machine, log or DecisionLog(), lookup, **options)
    with machine.tvm_target(), sharing():
        parts = stages(job)
        check_names(parts, job.without, optional=True)
        module, names = without_names(module)
        module, bodies = without_loops(module)
        job.provenance = Provenance(module, names)
        run = Run(module, job.without, job.provenance, job.log, job.watch)
        for part in parts[:LOWERING]:
            run.through(part)
    assert job.unscheduled is not None
    kernels = tuple(_kernels(run.module, job.unscheduled, job.how, job.provenance, machine))
    lowered = Lowered(run.module, kernels, job.log, run.seconds, job.unscheduled, job.weights, job)
    for name, body in bodies.items():
        _join(lowered, name, lower(body, machine, job.log, lookup, **{**options, "watch": None}))
    return lowered


def _join(lowered: Lowered, name: str, body: Lowered) -> None:
    """Put the lowered body of a loop into the module around it."""
    lowered.module, loops, weights = joined(
        lowered.module, name, body.module, body.loops, len(lowered.weights), body.weights
    )
    lowered.loops += tuple(loops)
    lowered.weights += weights
    lowered.kernels += tuple(replace(k, name=f"{name}_{k.name}") for k in body.kernels)
    functions = dict(lowered.unscheduled.functions_items())
    for gvar, func in body.unscheduled.functions_items():
        if isinstance(func, tirx.PrimFunc):
            functions[tvm.ir.GlobalVar(f"{name}_{gvar.name_hint}")] = func
    lowered.unscheduled = tvm.IRModule(functions, attrs=lowered.unscheduled.attrs)


def planned(lowered: Lowered, machine: Machine) -> tvm.IRModule:
    """The module with storage planned and every call in place, for who reads the run off it."""
    memory = memory_stages()
    until = [one.name for one in memory].index("RewriteCUDAGraph")
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3):
        return through([one for one in memory[:until] if not one.left_out(lowered.job.without)], lowered.module)


Link = Callable[[Any], Any]
"""From a `tvm.runtime.Module` of kernels, or None where there are none, to a `relax.VMExecutable`."""


def build(lowered: Lowered, machine: Machine, cuda_graph: bool = True) -> Any:
    """Plan memory and generate code: a `relax.VMExecutable`, whose kernels run on TVM's own threads.

    Args:
        cuda_graph: runs of kernels with static shapes are captured once as CUDA graphs and replayed.
    """
    run, link = plan_memory(lowered, machine, cuda_graph)
    kernels = bool(run.module.functions)
    run.module = _without_pool(run.module)
    lower_loops(run, lowered.job)
    return link(generate(run.module, machine) if kernels else None)


def plan_memory(lowered: Lowered, machine: Machine, cuda_graph: bool = True) -> tuple[Run, Link]:
    """Everything between :func:`lower` and the passes of loops: the kernels that are left, and what puts their code
    together with the virtual machine's.
    """
    config: dict[str, Any] = {"relax.backend.use_cuda_graph": cuda_graph} if machine.kind == "cuda" else BUILD_CONFIG
    parts = stages(lowered.job)
    number = sum(len(part.stages) for part in parts[:LOWERING])
    run = Run(lowered.module, lowered.job.without, watch=lowered.job.watch, seconds=lowered.seconds, number=number)
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3, config=config):
        for part in parts[LOWERING:-1]:
            run.through(part)
        builder = relax.ExecBuilder()
        left = tvm.get_global_func("relax.VMCodeGen")(builder, callable_loops(run.module, lowered.loops))
        write_loops(builder, lowered.loops)
        # what computes sizes has one tensor; a function without this attribute costs TVM's generator that of all others
        kernels = {
            g: f.with_attr("tirx.noalias", True) for g, f in left.functions_items() if isinstance(f, tirx.PrimFunc)
        }
        run.module = tvm.IRModule(kernels, attrs=left.attrs)
    constants = dict((left.attrs or {}).get("const_name_to_constant", {}))

    def link(library: Any) -> Any:
        linked = tvm.get_global_func("relax.VMLink")(builder, machine.tvm_target(), library, [], constants)
        return relax.VMExecutable(linked)

    return run, link


def lower_loops(run: Run, job: Job) -> None:
    """The last part of the list, for all kernels together."""
    with job.machine.tvm_target(), loop_context(job.machine):
        run.through(stages(job)[-1])


def loop_context(machine: Machine) -> tvm.transform.PassContext:
    """Under what TVM's own passes of loops run."""
    if machine.kind != "llvm":
        return tvm.transform.PassContext(opt_level=3)
    return tvm.transform.PassContext(opt_level=3, config=BUILD_CONFIG, disabled_pass=LEFT_TO_LLVM)


def compile_kernels(module: tvm.IRModule, machine: Machine) -> tvm.runtime.Executable:
    """Scheduled kernels alone, with the code that they have in a model."""
    rewrites = kernel_stages() if machine.kind == "llvm" else []
    with machine.tvm_target(), loop_context(machine):
        lowered = through([*rewrites, *loop_stages(machine)], _without_pool(module))
        return tvm.runtime.Executable(generate(lowered, machine))


def _without_pool(module: tvm.IRModule) -> tvm.IRModule:
    """A module whose kernels need no `pool.c`, which only an artifact's library has."""
    kernels = {g: without_pool(f) if isinstance(f, tirx.PrimFunc) else f for g, f in module.functions_items()}
    return tvm.IRModule(kernels, attrs=module.attrs, global_infos=module.global_infos)


def rewrite_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """A module whose kernels went through :func:`kernel_stages`; TVM's own passes are left to do."""
    return through(kernel_stages(), module)


# -- the stages that are not a pass of their own ---------------------------------------------------------------------


def _once(module: tvm.IRModule, log: DecisionLog) -> tvm.IRModule:
    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    if any(isinstance(binding, relax.MatchCast) for binding in bindings):  # what computes a size must stay
        return module
    cancel: Any = P.CancelDuplicates(log)
    return cancel(module)


def _fuse_ops(module: tvm.IRModule) -> tvm.IRModule:
    """FuseOps under the current pass context, with :data:`MOST_FUSED`."""
    now = tvm.transform.PassContext.current()
    config = {**now.config, "relax.FuseOps.max_depth": MOST_FUSED}
    with tvm.transform.PassContext(now.opt_level, now.required_pass, now.disabled_pass, now.instruments, config):
        return T.FuseOps()(module)


def _apply_families(module: tvm.IRModule, job: Job) -> tvm.IRModule:
    job.unscheduled = module
    generic = [concat_in_place.whole_name(name) for name in job.generic]
    module, job.how = apply_families(module, job.machine, job.log, job.lookup, generic)
    return module


def _concat_in_place(module: tvm.IRModule, job: Job) -> tvm.IRModule:
    assert job.unscheduled is not None and job.provenance is not None
    done = concat_in_place.concat_in_place(module, job.unscheduled, job.how, job.machine, job.log)
    job.unscheduled, job.how = done.unscheduled, done.how
    job.provenance.joined(done.nodes)
    return done.module


def _lift(module: tvm.IRModule, job: Job) -> tvm.IRModule:
    module, job.weights = lift_constants(module)
    return module


def _plan_memory(module: tvm.IRModule) -> tvm.IRModule:
    """Storage is planned once, and freed never in between; not for a function with branches. TVM takes an If for
    straight code: what the branch that runs reuses, the other one would have allocated. So there each tensor is
    allocated when it is made."""
    functions = [func for _, func in module.functions_items() if isinstance(func, relax.Function)]
    return module if any(map(_has_branches, functions)) else T.StaticPlanBlockMemory()(module)


def _has_branches(func: relax.Function) -> bool:
    """Whether an If chooses at run time."""
    return any(isinstance(binding.value, relax.If) for block in func.body.blocks for binding in block.bindings)


def _with_host(machine: Machine) -> tvm.target.Target:
    target = machine.tvm_target()
    return target.with_host(target.host or target)


def _finalized(module: tvm.IRModule, host: Any, device: Any) -> tvm.IRModule:
    """TVM's last passes, of host and device functions each."""
    on_host, on_devices = CODEGEN.split_host_device_mods(module)
    functions = dict(host(on_host).functions_items())
    for one in on_devices.values():
        functions |= dict(device(one).functions_items())
    return tvm.IRModule(functions, attrs=module.attrs)


def generate(module: tvm.IRModule, machine: Machine) -> Any:
    """Machine code of kernels that went through all stages, a `tvm.runtime.Module`.

    It is made without LLVM's vectorizer of loops where that may take elements that wrap around for others, and again
    without it where it makes a kernel store too much; no other thread should generate code meanwhile.
    """
    on_cpu = machine.kind == "llvm"
    if not (on_cpu and wraps(module)):
        library = generate_once(module, machine)
        if not (on_cpu and stores_integers(module) and overruns(library)):
            return library
    return generate_once(module, machine, vectorizes=False)


def generate_once(module: tvm.IRModule, machine: Machine, vectorizes: bool = True) -> Any:
    """The same, whatever LLVM makes a kernel store.

    Args:
        vectorizes: LLVM may vectorize loops. Its options are the whole process's.
    """
    host = _with_host(machine).host
    if not vectorizes:
        host = tvm.target.Target({**host.export(), "cl-opt": [PLAIN]})
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3):
        on_host, on_devices = CODEGEN.split_host_device_mods(module)
        return CODEGEN.tir_to_runtime(on_host, on_devices, host)


def _kernels(
    module: tvm.IRModule,
    unscheduled: tvm.IRModule,
    how: dict[str, Scheduled],
    provenance: Provenance,
    machine: Machine,
) -> Iterator[Kernel]:
    """One record a kernel, in the order of first call; what it costs is that at the named sizes."""
    shapes = shapes_of_calls(module, named_sizes(module))
    calls = provenance.calls(module)
    for name, sites in calls.items():
        func = unscheduled[name]
        if not isinstance(func, tirx.PrimFunc):
            continue
        done = how.get(name, Scheduled("none", "generic"))
        cost = kernel_cost(at_shapes(func, shapes.get(name, ())))
        yield Kernel(
            name, done.family, done.source, done.knobs, len(sites), tuple(sites), cost.flops, cost.bytes, done.note,
            precision=cost.precision, tasks=tasks_of(module[name]) if machine.kind == "llvm" else 0,
        )  # fmt: skip
