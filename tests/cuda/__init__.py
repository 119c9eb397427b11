"""CUDA without a GPU: what tests of several rooms need."""

import pytest

from tvmopt.errors import MissingDependency
from tvmopt.toolchain import cuda as cuda_toolkit


def _toolkit() -> bool:
    try:
        cuda_toolkit.find_toolkit()
    except MissingDependency:
        return False
    return True


needs_toolkit = pytest.mark.skipif(not _toolkit(), reason="no CUDA toolkit")
