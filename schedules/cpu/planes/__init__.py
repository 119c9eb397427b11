"""Convolution, CPU, NCHW: of a layer beside which nothing asks for channels-last."""

from tvmopt.schedules.cpu.planes.choice import stays
from tvmopt.schedules.cpu.planes.compute import conv2d
from tvmopt.schedules.cpu.planes.copy import finish
from tvmopt.schedules.cpu.planes.schedule import apply, knobs, recognise

NAME, VERSION = "planes", 1
LOWERS = {"relax.nn.conv2d": conv2d}
STAYS = {"relax.nn.conv2d": stays}
REREADS = True
