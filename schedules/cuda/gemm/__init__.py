"""Matrix products on tensor cores: constant weights or two activations."""

from typing import Any

from tvmopt.schedules.cuda.gemm.compute import conv1x1, matmul
from tvmopt.schedules.cuda.gemm.schedule import apply, knobs, recognise
from tvmopt.scheduling.normalize import one_row_loop

NAME, VERSION = "gemm", 1
LOWERS = {"relax.matmul": matmul, "relax.nn.conv2d": conv1x1}
REREADS = True


def normalise(func: Any) -> Any:
    """Both kinds of products with all rows in one loop."""
    return one_row_loop("batch_gemm", batched=True)(one_row_loop("gemm")(func))
