"""TVM's passes from scheduled loops to what its code generator takes, in TVM's order, with ours between them - for the
pipeline.

They are those of TVM's own list for the settings that kernels are compiled with; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir.transform import Sequential

from tvmopt.lowering.align_stores import AlignStores
from tvmopt.lowering.choose_arms import ChooseArms
from tvmopt.lowering.hoist_borders import HoistBorders
from tvmopt.lowering.keep_remainders import KeepRemainders, PlainRemainders
from tvmopt.lowering.private_buffers import PrivateBuffers
from tvmopt.lowering.spread_bits import SpreadBits
from tvmopt.lowering.stream_stores import StreamStores
from tvmopt.lowering.strided_loads import StridedLoads
from tvmopt.lowering.vector_pieces import VectorPieces
from tvmopt.lowering.widen_zeros import WidenZeros

ON_GPUS = frozenset({
    "s_tir.LowerCrossThreadReduction", "s_tir.LiftThreadBinding", "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.LowerAutoCopy", "s_tir.UnifyThreadBinding", "s_tir.InjectPermutedLayout", "s_tir.InjectSoftwarePipeline",
    "s_tir.TransformMmaBufferLayout", "s_tir.InjectDoubleBuffer", "s_tir.HoistIfThenElse", "s_tir.VerifyVTCMLimit",
    "s_tir.LowerVtcmAlloc", "tirx.VerifyMemory", "s_tir.ThreadSync", "s_tir.InferFragment",
    "s_tir.LowerThreadAllreduce", "s_tir.MergeSharedMemoryAllocations", "tvmopt.AlignStores",
})  # fmt: skip
"""Passes of threads, of memory that these share, and of what only schedules for GPUs ask for: they walk through a
kernel for a CPU and change nothing, which took a twentieth of the time of all (ResNet-50, PP-OCRv4's detector)."""

ON_CPUS = frozenset({
    "tvmopt.ChooseArms", "tvmopt.HoistBorders", "tvmopt.PrivateBuffers", "tvmopt.StreamStores", "tvmopt.VectorPieces",
})  # fmt: skip
"""Passes of ours that are for CPUs alone."""


def loop_passes() -> list[Any]:
    """All of them."""
    s, t = s_tir.transform, tirx.transform
    return [
        s.CanonicalizeLoop(), s.LowerCrossThreadReduction(), s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(), s.ConvertBlocksToOpaque(), s.LiftThreadBinding(),
        s.ManifestSharedMemoryLocalStage(), s.CompactBufferAllocation(), s.LowerAutoCopy(), s.UnifyThreadBinding(),
        s.LowerMatchBuffer(), s.StmtSimplify(), s.InjectPermutedLayout(), s.AnnotateIrregularLoop(),
        s.InjectSoftwarePipeline(), s.TransformMmaBufferLayout(), s.LowerOpaqueBlock(),
        KeepRemainders, t.FlattenBuffer(), PlainRemainders,
        t.BF16ComputeLegalize(), t.NarrowDataType(32), s.LoopPartition(), WidenZeros, VectorPieces, AlignStores,
        t.VectorizeLoop(),
        s.InjectVirtualThread(), s.InjectDoubleBuffer(), t.StorageRewrite(), PrivateBuffers,
        s.HoistIfThenElse(), ChooseArms, HoistBorders, t.UnrollLoop(), s.RenormalizeSplitPattern(), t.StmtSimplify(),
        t.RemoveNoOp(), s.RewriteUnsafeSelect(), StreamStores, t.CommonSubexprElim(),
        t.FP8ComputeLegalize(), s.VerifyVTCMLimit(), s.LowerVtcmAlloc(), t.VerifyMemory(), t.AnnotateEntryFunc(),
        s.ThreadSync("shared"), s.ThreadSync("shared.dyn"), s.ThreadSync("warp"), s.InferFragment(),
        s.LowerThreadAllreduce(), s.MergeSharedMemoryAllocations(), SpreadBits, StridedLoads, t.SplitHostDevice(),
        t.MakePackedAPI(), t.FP8StorageLegalize(), t.BF16StorageLegalize(),
    ]  # fmt: skip


def all_loop_passes(kind: str = "cuda") -> Any:
    """One pass that runs those for a kind of machines."""
    left = ON_GPUS if kind == "llvm" else ON_CPUS
    return Sequential([one for one in loop_passes() if str(one.info.name) not in left])
