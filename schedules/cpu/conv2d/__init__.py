"""Convolution, CPU, NHWC: dense and in groups, weights in panels, a register tile."""

from tvmopt.lowering.window import kept_pad
from tvmopt.schedules._operators.convolutions import LOWERS as OTHER_FORMS
from tvmopt.schedules.cpu._inside import finish
from tvmopt.schedules.cpu.conv2d.compute import conv2d
from tvmopt.schedules.cpu.conv2d.schedule import apply, knobs, open_pixels, recognise
from tvmopt.scheduling.family import row_by_row as open_rows
from tvmopt.scheduling.normalize import groups_apart

NAME, VERSION = "conv2d", 3
LOWERS = {"relax.nn.conv2d": conv2d, **OTHER_FORMS}
KEEPS = {"relax.nn.pad": kept_pad}
REREADS = True
normalise = groups_apart("conv2d")
