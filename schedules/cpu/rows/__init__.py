"""Softmax, norms, reductions, scans and top-k of rows, CPU: a row's data in L1 for all its passes."""

from tvmopt.schedules.cpu.rows.columns import LOWERS as COLUMNS
from tvmopt.schedules.cpu.rows.norm import KEEPS
from tvmopt.schedules.cpu.rows.norm import LOWERS as NORMS
from tvmopt.schedules.cpu.rows.picked import LOWERS as PICKED
from tvmopt.schedules.cpu.rows.positions import LOWERS as POSITIONS
from tvmopt.schedules.cpu.rows.scan import LOWERS as SCANS
from tvmopt.schedules.cpu.rows.schedule import apply, knobs, open_sizes, recognise
from tvmopt.schedules.cpu.rows.topk import LOWERS as TOPK
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "rows", 1
LOWERS = {**COLUMNS, **NORMS, **PICKED, **POSITIONS, **SCANS, **TOPK}
REREADS = True
