"""Rows by a constant matrix of 2, 4 or 8 bits, CPU: the codes are read as they are. Sums are float32 or, where the rows
may be rounded to 8 bits, integers a group."""

from tvmopt.operators.packed_product import OP, ROUNDED
from tvmopt.schedules.cpu.packed import rounded
from tvmopt.schedules.cpu.packed.compute import product
from tvmopt.schedules.cpu.packed.operands import declines
from tvmopt.schedules.cpu.packed.schedule import apply, finish, knobs, open_sizes, recognise

NAME, VERSION = "packed", 2
LOWERS = {OP: product, ROUNDED: rounded.product}
UNROLLED = {OP: declines, ROUNDED: declines}
