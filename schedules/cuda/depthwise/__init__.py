"""Depthwise convolution, GPU, NHWC."""

from tvmopt.schedules.cuda.depthwise.compute import depthwise, keeps_fp32
from tvmopt.schedules.cuda.depthwise.schedule import apply, knobs, recognise

NAME, VERSION = "depthwise", 1
LOWERS = {"relax.nn.conv2d": depthwise}
REREADS = True
