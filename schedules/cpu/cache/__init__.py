"""Rows written into a decoder's caches, CPU: the buffer stays where it is."""

from tvmopt.operators.caches import APPEND
from tvmopt.schedules.cpu.cache.compute import append_rows
from tvmopt.schedules.cpu.cache.schedule import open_sizes

NAME, VERSION = "cache", 1
LOWERS = {APPEND: append_rows}
MOVES = True
