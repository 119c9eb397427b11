"""3x3 convolution by Winograd, CPU, NHWC, where it is faster than the direct form."""

from tvmopt.schedules.cpu.winograd.compute import conv2d, float_cycles, keeps_fp32
from tvmopt.schedules.cpu.winograd.schedule import apply, knobs, open_pixels, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "winograd", 3
LOWERS = {"relax.nn.conv2d": conv2d}
ROUNDS_DIFFERENTLY = True
REREADS = True
AT_ROOF = "at the roof with Winograd's few operations: a lower precision does without, for little"
