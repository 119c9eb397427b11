"""Max and average pooling, CPU."""

from tvmopt.schedules.cpu.pool.compute import LOWERS
from tvmopt.schedules.cpu.pool.schedule import apply, knobs, recognise

NAME, VERSION = "pool", 1
RESCHEDULED_FOR_PARTS = True
REREADS = True
