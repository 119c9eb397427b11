"""Attention, CPU: one kernel a head, in vectors over the queries."""

from tvmopt.operators import masked
from tvmopt.schedules.cpu.attention.compute import attention
from tvmopt.schedules.cpu.attention.schedule import apply, knobs, open_sizes, recognise

NAME, VERSION = "attention", 1
LOWERS = {"relax.nn.attention": attention, "relax.nn.attention_bias": attention, masked.OP: attention}
REREADS = True
