"""Elementwise chains, CPU."""

from tvmopt.lowering.gelu import LOWERS as GELU
from tvmopt.lowering.quantized import dequantize, quantize
from tvmopt.schedules._operators.elementwise import LOWERS as PLAIN
from tvmopt.schedules.cpu.elementwise.schedule import apply, knobs, recognise
from tvmopt.scheduling.family import row_by_row as open_rows

NAME, VERSION = "elementwise", 1
LOWERS = {**PLAIN, **GELU, "relax.quantize": quantize, "relax.dequantize": dequantize}
KEEPS = {"relax.dequantize": lambda call: True}
RESCHEDULED_FOR_PARTS = True
