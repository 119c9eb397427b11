"""Graph rewrites, one a file, each named for what it does; `tvmopt.pipeline` has their order."""

from tvmopt.passes.cancel_reshapes import CancelReshapes
from tvmopt.passes.convert_layout import ConvertLayout
from tvmopt.passes.eliminate_identities import EliminateIdentities
from tvmopt.passes.fold_batch_norm import FoldBatchNorm
from tvmopt.passes.fold_constant import FoldConstant
from tvmopt.passes.fold_scale_shift import FoldScaleShift
from tvmopt.passes.propagate_transposes import PropagateTransposes

__all__ = [
    "CancelReshapes",
    "ConvertLayout",
    "EliminateIdentities",
    "FoldBatchNorm",
    "FoldConstant",
    "FoldScaleShift",
    "PropagateTransposes",
]
