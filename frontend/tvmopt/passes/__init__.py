"""Graph rewrites, one per file, each named for what it does; `tvmopt.pipeline` has their order."""

from tvmopt.passes.cancel_casts import CancelCasts
from tvmopt.passes.cancel_duplicates import CancelDuplicates
from tvmopt.passes.cancel_reshapes import CancelReshapes
from tvmopt.passes.combine_parallel_matmul import CombineParallelMatmul
from tvmopt.passes.combine_sliced_matmul import CombineSlicedMatmul
from tvmopt.passes.convert_byte_functions import ConvertByteFunctions
from tvmopt.passes.convert_conv1d import ConvertConv1d
from tvmopt.passes.convert_conv3d import ConvertConv3d
from tvmopt.passes.convert_integer_products import ConvertIntegerProducts
from tvmopt.passes.convert_layout import ConvertLayout
from tvmopt.passes.convert_one_hot import ConvertOneHot
from tvmopt.passes.convert_precision import ConvertPrecision
from tvmopt.passes.convert_signed_quantization import ConvertSignedQuantization
from tvmopt.passes.convert_softmax import ConvertSoftmax
from tvmopt.passes.eliminate_identities import EliminateIdentities
from tvmopt.passes.fold_batch_norm import FoldBatchNorm
from tvmopt.passes.fold_channel_scales import FoldChannelScales
from tvmopt.passes.fold_constant import FoldConstant
from tvmopt.passes.fold_products import FoldProducts
from tvmopt.passes.fold_requantization import FoldRequantization
from tvmopt.passes.fold_scale_shift import FoldScaleShift
from tvmopt.passes.fuse_activations import FuseActivations
from tvmopt.passes.fuse_attention import FuseAttention
from tvmopt.passes.fuse_global_pool import FuseGlobalPool
from tvmopt.passes.fuse_group_norm import FuseGroupNorm
from tvmopt.passes.fuse_layer_norm import FuseLayerNorm
from tvmopt.passes.fuse_pad import FusePad
from tvmopt.passes.fuse_rms_norm import FuseRmsNorm
from tvmopt.passes.fuse_softmax import FuseSoftmax
from tvmopt.passes.fuse_transpose_matmul import FuseTransposeMatmul
from tvmopt.passes.keep_caches import KeepCaches
from tvmopt.passes.keep_last_scores import KeepLastScores
from tvmopt.passes.keep_views import KeepViews
from tvmopt.passes.limit_fusion import LimitFusion
from tvmopt.passes.list_quantization import ListQuantization
from tvmopt.passes.mark_caches import MarkCaches
from tvmopt.passes.merge_added_convolutions import MergeAddedConvolutions
from tvmopt.passes.narrow_weights import NarrowWeights
from tvmopt.passes.place_tokens import PlaceTokens
from tvmopt.passes.propagate_quantization import PropagateQuantization
from tvmopt.passes.propagate_reshapes import PropagateReshapes
from tvmopt.passes.propagate_transposes import PropagateTransposes
from tvmopt.passes.round_activations import RoundActivations
from tvmopt.passes.share_scales import ShareScales
from tvmopt.passes.split_matmul import SplitMatmul
from tvmopt.passes.split_reductions import SplitReductions
from tvmopt.passes.trim_taps import TrimTaps
from tvmopt.passes.turn_columns import TurnColumns
from tvmopt.passes.unpack_weights import UnpackWeights
from tvmopt.passes.unroll_recurrence import UnrollRecurrence
from tvmopt.passes.widen_halves import WidenHalves
from tvmopt.passes.zero_subnormals import ZeroSubnormals

__all__ = [
    "CancelCasts",
    "CancelDuplicates",
    "CancelReshapes",
    "CombineParallelMatmul",
    "CombineSlicedMatmul",
    "ConvertByteFunctions",
    "ConvertConv1d",
    "ConvertConv3d",
    "ConvertIntegerProducts",
    "ConvertLayout",
    "ConvertOneHot",
    "ConvertPrecision",
    "ConvertSignedQuantization",
    "ConvertSoftmax",
    "EliminateIdentities",
    "FoldBatchNorm",
    "FoldChannelScales",
    "FoldConstant",
    "FoldProducts",
    "FoldRequantization",
    "FoldScaleShift",
    "FuseActivations",
    "FuseAttention",
    "FuseGlobalPool",
    "FuseGroupNorm",
    "FuseLayerNorm",
    "FusePad",
    "FuseRmsNorm",
    "FuseSoftmax",
    "FuseTransposeMatmul",
    "KeepCaches",
    "KeepLastScores",
    "KeepViews",
    "LimitFusion",
    "ListQuantization",
    "MarkCaches",
    "MergeAddedConvolutions",
    "NarrowWeights",
    "PlaceTokens",
    "PropagateQuantization",
    "PropagateReshapes",
    "PropagateTransposes",
    "RoundActivations",
    "ShareScales",
    "SplitMatmul",
    "SplitReductions",
    "TrimTaps",
    "TurnColumns",
    "UnpackWeights",
    "UnrollRecurrence",
    "WidenHalves",
    "ZeroSubnormals",
]
