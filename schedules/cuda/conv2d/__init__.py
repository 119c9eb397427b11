"""Convolution on tensor cores, NHWC, as an implicit matrix product."""

from tvmopt.schedules._operators.convolutions import LOWERS as OTHER_FORMS
from tvmopt.schedules.cuda.conv2d.compute import conv2d
from tvmopt.schedules.cuda.conv2d.schedule import apply, knobs, recognise

NAME, VERSION = "conv2d", 1
LOWERS = {"relax.nn.conv2d": conv2d, **OTHER_FORMS}
REREADS = True
