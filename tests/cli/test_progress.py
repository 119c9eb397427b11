"""What long commands say while they work."""

from __future__ import annotations

import pytest

from tvmopt.cli.common import progress


@pytest.mark.parametrize(
    ("options", "told"), [({"lines": True}, "a\nb\na\n"), ({}, ""), ({"lines": True, "quiet": True}, "")]
)
def test_stages_are_lines_where_there_is_no_terminal(
    options: dict[str, bool], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress(**options) as show:
        for stage in ("a", "a", "b", "a"):
            show(stage)
    assert capsys.readouterr().err == told
