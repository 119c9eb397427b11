"""For all tests: each compile compiles, so that a test which plants an error is not handed an earlier artifact, no
kernel loads from where a choice decides, and NumPy's products take one thread: several tests run side by side, and
threads of theirs that wait for a core took five times the processor time."""

from __future__ import annotations

import os

import pytest

os.environ["TVMOPT_ARTIFACTS_MB"] = "0"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported, which pytest does not


@pytest.fixture(scope="session", autouse=True)
def safe_choices() -> None:
    """See :mod:`fuzz.arms`."""
    from fuzz.arms import install

    install()
