"""Reductions over axes that are not the last, GPU."""

from tvmopt.schedules._operators.extremes import LOWERS
from tvmopt.schedules.cuda.reduce.schedule import apply, knobs, recognise

NAME, VERSION = "reduce", 1
REREADS = True
