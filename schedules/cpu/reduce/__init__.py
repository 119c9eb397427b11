"""Reductions over axes that are not the last, CPU."""

from tvmopt.schedules._operators.extremes import LOWERS
from tvmopt.schedules.cpu.reduce.schedule import apply, knobs, recognise

NAME, VERSION = "reduce", 1
REREADS = True
