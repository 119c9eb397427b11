"""Matrix product of rows of bfloat16 or uint8 and a constant matrix, CPU, by AMX tiles."""

from tvmopt.schedules.cpu.amx_gemm.compute import conv1x1, matmul
from tvmopt.schedules.cpu.amx_gemm.lower import finish
from tvmopt.schedules.cpu.amx_gemm.schedule import apply, knobs, open_rows, recognise
from tvmopt.scheduling.normalize import one_row_loop

NAME, VERSION = "amx_gemm", 2
LOWERS = {"relax.matmul": matmul, "relax.nn.conv2d": conv1x1}
NEEDS = ("amx-bf16", "amx-int8", "amx-tile")
READS_PARTS = False  # tiles are loaded by row pitch, of a kernel not yet written
REREADS = True
normalise = one_row_loop("amx_gemm")
