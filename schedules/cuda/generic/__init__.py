"""What no other family takes, GPU."""

from tvmopt.schedules.cuda.generic.schedule import apply, knobs, recognise

NAME, VERSION = "generic", 1
FALLBACK = True
