"""Attention, GPU: flash attention on tensor cores."""

from tvmopt.operators import masked
from tvmopt.schedules.cuda.attention.compute import attention, masked_attention
from tvmopt.schedules.cuda.attention.schedule import apply, knobs, recognise

NAME, VERSION = "attention", 1
LOWERS = {"relax.nn.attention": attention, "relax.nn.attention_bias": attention, masked.OP: masked_attention}
REREADS = True
