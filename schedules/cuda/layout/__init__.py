"""Data movement, GPU."""

from tvmopt.schedules._operators.take import LOWERS
from tvmopt.schedules.cuda.layout.schedule import apply, knobs, recognise

NAME, VERSION = "layout", 1
MOVES = True
