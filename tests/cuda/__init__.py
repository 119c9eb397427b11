"""CUDA without a GPU: what tests of several rooms need."""

import pytest

from tvmopt import cuda_toolkit
from tvmopt.errors import MissingDependency


def _toolkit() -> bool:
    try:
        cuda_toolkit.find_toolkit()
    except MissingDependency:
        return False
    return True


needs_toolkit = pytest.mark.skipif(not _toolkit(), reason="no CUDA toolkit")
