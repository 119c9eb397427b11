"""Processes in a network of their own that has this machine only: Ray takes its outward address where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALONE = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def alone(*command: str) -> subprocess.Popen[str]:
    """Start a command there; the test is skipped where none can be made."""
    if (
        not all(map(shutil.which, ("unshare", "ip")))
        or subprocess.run([*ALONE, "true"], capture_output=True).returncode
    ):
        pytest.skip("no network namespace can be made here (unshare, ip)")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [*ALONE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT
    )
