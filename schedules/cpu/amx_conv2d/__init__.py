"""Convolution of bfloat16 or uint8, CPU, NHWC, by AMX tiles."""

from tvmopt.schedules.cpu.amx_conv2d.compute import conv2d
from tvmopt.schedules.cpu.amx_conv2d.lower import finish
from tvmopt.schedules.cpu.amx_conv2d.schedule import apply, knobs, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "amx_conv2d", 1
LOWERS = {"relax.nn.conv2d": conv2d}
NEEDS = ("amx-bf16", "amx-int8", "amx-tile")
READS_PARTS = False  # tiles are loaded by row pitch, of a kernel not yet written
REREADS = True
