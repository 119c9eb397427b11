"""Graph rewrites, one a file, each named for what it does; `tvmopt.pipeline` has their order."""

from tvmopt.passes.fold_batch_norm import FoldBatchNorm
from tvmopt.passes.fold_constant import FoldConstant
from tvmopt.passes.fold_scale_shift import FoldScaleShift

__all__ = ["FoldBatchNorm", "FoldConstant", "FoldScaleShift"]
