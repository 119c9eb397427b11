"""Batched matrix product of two activations, CPU."""

from tvmopt.schedules.cpu.batch_gemm.compute import matmul
from tvmopt.schedules.cpu.batch_gemm.schedule import apply, knobs, recognise
from tvmopt.scheduling.family import row_by_row as open_rows
from tvmopt.scheduling.normalize import one_row_loop

NAME, VERSION = "batch_gemm", 1
LOWERS = {"relax.matmul": matmul}
REREADS = True
normalise = one_row_loop("batch_gemm", batched=True)
