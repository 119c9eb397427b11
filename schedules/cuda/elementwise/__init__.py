"""Elementwise chains, GPU."""

from tvmopt.schedules._operators.elementwise import LOWERS
from tvmopt.schedules.cuda.elementwise.schedule import apply, knobs, recognise

NAME, VERSION = "elementwise", 1
