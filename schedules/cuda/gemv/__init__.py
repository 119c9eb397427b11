"""Matrix products of few rows with constant weights, GPU."""

from tvmopt.schedules.cuda.gemv.schedule import apply, knobs, recognise

NAME, VERSION = "gemv", 1
REREADS = True
