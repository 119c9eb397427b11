"""Sets the traps of `planted`. The fork server of workers imports it (`LocalRunner(preload=...)`), no test does: the
tests behind it would meet the traps."""

from __future__ import annotations

from tests.tuning import planted
from tvmopt.tuning import kernel

kernel.Bench.scheduled = planted.scheduled
kernel.Bench.build = planted.build
kernel.disturbed = lambda seconds, delay: False  # or a busy machine would have no samples; a trap is 8 times slower
