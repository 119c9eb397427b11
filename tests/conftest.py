"""For all tests: each compile compiles, so that a test which plants an error is not handed an earlier artifact, and no
kernel loads from where a choice decides."""

from __future__ import annotations

import os

import pytest

os.environ["TVMOPT_ARTIFACTS_MB"] = "0"


@pytest.fixture(scope="session", autouse=True)
def safe_choices() -> None:
    """See :mod:`fuzz.arms`."""
    from fuzz.arms import install

    install()
