"""What the tests of the drop-in session share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmopt.cache import FOLDER


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of compiled models that the tests of one file have for themselves."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv(FOLDER, str(folder))
        yield folder
