"""LSTM, GRU and RNN, CPU: all steps in one kernel."""

from tvmopt.operators.recurrence import OP
from tvmopt.schedules.cpu.recurrent.compute import declines, recurrent
from tvmopt.schedules.cpu.recurrent.schedule import apply, knobs, open_sizes, recognise

NAME, VERSION = "recurrent", 1
LOWERS = {OP: recurrent}
UNROLLED = {OP: declines}
