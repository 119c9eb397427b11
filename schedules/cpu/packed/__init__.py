"""Rows by a constant matrix of 2, 4 or 8 bits, CPU: the codes are read as they are, and sums are float32."""

from tvmopt.operators.packed_product import OP
from tvmopt.schedules.cpu.packed.compute import declines, product
from tvmopt.schedules.cpu.packed.schedule import apply, finish, knobs, open_sizes, recognise

NAME, VERSION = "packed", 2
LOWERS = {OP: product}
UNROLLED = {OP: declines}
