"""Depthwise convolution, CPU, NHWC."""

from tvmopt.schedules.cpu.depthwise.compute import depthwise
from tvmopt.schedules.cpu.depthwise.schedule import apply, knobs, open_pixels, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "depthwise", 1
LOWERS = {"relax.nn.conv2d": depthwise}
REREADS = True
