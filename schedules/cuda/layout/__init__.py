"""Data movement, GPU."""

from tvmopt.schedules._operators.concat import LOWERS as CONCAT
from tvmopt.schedules._operators.take import LOWERS as TAKE
from tvmopt.schedules.cuda.layout.schedule import apply, knobs, recognise

NAME, VERSION = "layout", 1
LOWERS = TAKE | CONCAT
MOVES = True
