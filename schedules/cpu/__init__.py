"""The families for CPUs, in the order in which they are asked to lower an operator and to recognise a kernel.

Nothing else names a family: shared code asks :func:`tvmopt.scheduling.discover.families`.
"""

FAMILIES = (
    "checked",  # an operator of ours, which no other family knows
    "recurrent",  # likewise
    "packed",  # likewise
    "cache",  # likewise
    "resample",  # likewise
    "amx_attention",  # before `attention`, which takes every size
    "attention",
    "conv_transpose",  # NCHW; what a graph pass left as it is
    "planes",  # NCHW; the other convolutions are NHWC
    "depthwise",  # before the dense convolutions, which leave one input channel a group to it
    "winograd",  # before the direct convolutions: it takes only those where it is faster
    "rows",  # before the products, of which it takes those with few columns; before `reduce`, which takes other axes
    "amx_gemm",  # before `gemm`: it takes only products for which tiles pay
    "amx_conv2d",  # before `gemm`, which takes 1x1 convolutions of any size
    "gemm",  # before `conv2d`: a 1x1 convolution is a product; before `batch_gemm`: constant weights are packed
    "conv2d",
    "batch_gemm",
    "pool",
    "reduce",
    "layout",
    "elementwise",  # before TVM's own forms of the operators that it lowers
    "generic",  # last: what no other family takes
)
