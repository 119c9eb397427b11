"""Reductions over axes that are not the last, CPU."""

from tvmopt.lowering.quantized import mean
from tvmopt.schedules._operators.extremes import LOWERS as EXTREMES
from tvmopt.schedules.cpu.reduce.schedule import apply, knobs, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "reduce", 1
LOWERS = {**EXTREMES, "relax.mean": mean}
REREADS = True
