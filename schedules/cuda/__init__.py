"""The families for CUDA GPUs, in the order in which they are asked to lower an operator and to recognise a kernel.

Nothing else names a family: shared code asks :func:`tvmopt.scheduling.discover.families`.
"""

FAMILIES = (
    "attention",
    "depthwise",  # before `conv2d`, which leaves one input channel a group to it
    "gemm",  # before `conv2d`: a 1x1 convolution is a product
    "gemv",  # recognises the products of few rows that `gemm` leaves
    "conv2d",
    "split_sum",  # the second kernel of a product whose sum is cut in parts
    "pool",
    "rows",  # before `reduce`, which takes what is not over last axes
    "reduce",
    "layout",
    "elementwise",
    "generic",  # last: what no other family takes
)
