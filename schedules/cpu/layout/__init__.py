"""Data movement, CPU."""

from tvmopt.schedules._operators.concat import LOWERS as CONCAT
from tvmopt.schedules._operators.scatter import LOWERS as SCATTER
from tvmopt.schedules._operators.take import LOWERS as TAKE
from tvmopt.schedules.cpu.layout.lower import finish
from tvmopt.schedules.cpu.layout.schedule import apply, knobs, recognise

NAME, VERSION = "layout", 2
LOWERS = TAKE | CONCAT | SCATTER
RESCHEDULED_FOR_PARTS = True
MOVES = True
