"""Matrix product of rows and a constant matrix, CPU: weights in panels, a register tile."""

from tvmopt.schedules.cpu.gemm.compute import conv1x1, matmul
from tvmopt.schedules.cpu.gemm.schedule import apply, knobs, open_rows, recognise
from tvmopt.scheduling.normalize import one_row_loop

NAME, VERSION = "gemm", 4
LOWERS = {"relax.matmul": matmul, "relax.nn.conv2d": conv1x1}
REREADS = True
normalise = one_row_loop("gemm")
