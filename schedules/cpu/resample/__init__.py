"""Pictures resampled, CPU: of bytes along one axis, where columns are a product with bands of bytes and rows are sums
of rows; of floats in NCHW, plane by plane, or at coordinates of a grid."""

from tvmopt.operators.grid_sample import OP as GRID_SAMPLE
from tvmopt.operators.interpolate import OP as INTERPOLATE
from tvmopt.operators.resample import COLUMNS, ROWS
from tvmopt.schedules.cpu.resample.columns import columns
from tvmopt.schedules.cpu.resample.grid import grid_sample
from tvmopt.schedules.cpu.resample.planes import interpolate, resize2d
from tvmopt.schedules.cpu.resample.rows import rows
from tvmopt.schedules.cpu.resample.schedule import apply, knobs, open_sizes, recognise

NAME, VERSION = "resample", 1
LOWERS = {
    COLUMNS: columns,
    ROWS: rows,
    "relax.image.resize2d": resize2d,
    INTERPOLATE: interpolate,
    GRID_SAMPLE: grid_sample,
}
