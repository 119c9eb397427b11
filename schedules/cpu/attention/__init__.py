"""Attention, CPU: one kernel a head, in vectors over the queries."""

from tvmopt.operators import caches, masked
from tvmopt.schedules.cpu.attention.compute import attention, cached_attention
from tvmopt.schedules.cpu.attention.schedule import apply, knobs, open_sizes, recognise

NAME, VERSION = "attention", 1
LOWERS = {"relax.nn.attention": attention, "relax.nn.attention_bias": attention, masked.OP: attention} | {
    caches.ATTEND: cached_attention
}
REREADS = True
