"""Data movement, CPU."""

from tvmopt.schedules._operators.take import LOWERS
from tvmopt.schedules.cpu.layout.lower import finish
from tvmopt.schedules.cpu.layout.schedule import apply, knobs, recognise

NAME, VERSION = "layout", 2
RESCHEDULED_FOR_PARTS = True
MOVES = True
