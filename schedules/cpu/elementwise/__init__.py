"""Elementwise chains, CPU."""

from tvmopt.schedules._operators.elementwise import LOWERS
from tvmopt.schedules.cpu.elementwise.schedule import apply, knobs, recognise

NAME, VERSION = "elementwise", 1
RESCHEDULED_FOR_PARTS = True
