"""Softmax, norms, reductions and scans of rows, GPU."""

from tvmopt.schedules.cuda.rows.compute import LOWERS as NORMS
from tvmopt.schedules.cuda.rows.scan import LOWERS as SCANS
from tvmopt.schedules.cuda.rows.schedule import apply, knobs, recognise

NAME, VERSION = "rows", 1
LOWERS = {**NORMS, **SCANS}
REREADS = True
