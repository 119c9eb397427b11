"""Pictures of bytes resampled along one axis, CPU: columns are a product with bands of bytes, rows are sums of rows."""

from tvmopt.operators.resample import COLUMNS, ROWS
from tvmopt.schedules.cpu.resample.columns import columns
from tvmopt.schedules.cpu.resample.rows import rows
from tvmopt.schedules.cpu.resample.schedule import apply, knobs, open_sizes, recognise

NAME, VERSION = "resample", 1
LOWERS = {COLUMNS: columns, ROWS: rows}
