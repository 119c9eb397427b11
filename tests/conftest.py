"""For all tests: each compile compiles, so that a test which plants an error is not handed an earlier artifact."""

from __future__ import annotations

import os

os.environ["TVMOPT_ARTIFACTS_MB"] = "0"
