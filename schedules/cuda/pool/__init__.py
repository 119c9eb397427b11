"""Max and average pooling, GPU."""

from tvmopt.schedules.cuda.pool.schedule import apply, knobs, recognise

NAME, VERSION = "pool", 1
REREADS = True
