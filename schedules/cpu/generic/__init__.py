"""What no other family takes, CPU."""

from tvmopt.schedules.cpu.generic.compute import LOWERS
from tvmopt.schedules.cpu.generic.open_sizes import schedule as open_sizes
from tvmopt.schedules.cpu.generic.schedule import apply, knobs, recognise

NAME, VERSION = "generic", 1
FALLBACK = True
