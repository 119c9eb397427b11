"""Transposed convolution, CPU, NCHW in and out: of a layer beside which nothing asks for channels-last."""

from tvmopt.schedules.cpu.conv_transpose.choice import stays
from tvmopt.schedules.cpu.conv_transpose.compute import conv2d_transpose, finish
from tvmopt.schedules.cpu.conv_transpose.schedule import apply, knobs, recognise

NAME, VERSION = "conv_transpose", 1
LOWERS = {"relax.nn.conv2d_transpose": conv2d_transpose}
STAYS = {"relax.nn.conv2d_transpose": stays}
REREADS = True
