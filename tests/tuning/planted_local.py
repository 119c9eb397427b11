"""Sets the traps of `planted`. Imported by the fork server of workers (`LocalRunner(preload=...)`), never by a test: its
process would be left with them, and the tests behind it, too."""

from __future__ import annotations

from tests.tuning import planted
from tvmopt.tuning import kernel

kernel.Bench.scheduled = planted.scheduled
kernel.Bench.build = planted.build
kernel.disturbed = lambda seconds, delay: False  # or a busy machine would have no samples; a trap is 8 times slower
