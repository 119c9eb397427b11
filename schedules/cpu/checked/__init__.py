"""Values that must be in range, CPU: a kernel that comes with its schedule."""

from tvmopt.operators.checks import OP
from tvmopt.schedules.cpu.checked.compute import check

NAME, VERSION = "checked", 1
LOWERS = {OP: check}
