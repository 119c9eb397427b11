"""Max and average pooling, CPU."""

from tvmopt.schedules.cpu.pool.compute import LOWERS
from tvmopt.schedules.cpu.pool.schedule import apply, knobs, open_pixels, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "pool", 1
RESCHEDULED_FOR_PARTS = True
REREADS = True
