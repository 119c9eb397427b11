"""Attention of bfloat16, CPU, by AMX tiles."""

from tvmopt.operators import masked
from tvmopt.schedules.cpu.amx_attention.compute import attention
from tvmopt.schedules.cpu.amx_attention.schedule import apply, knobs, recognise

NAME, VERSION = "amx_attention", 1
LOWERS = {"relax.nn.attention": attention, "relax.nn.attention_bias": attention, masked.OP: attention}
NEEDS = ("amx-bf16", "amx-tile")
READS_PARTS = WRITES_PARTS = False  # tiles are loaded by row pitch, of a kernel not yet written
INDEX_BITS = 64  # tile instructions take strides of 64 bits
REREADS = True
