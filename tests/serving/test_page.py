"""The server's page in a browser: what is served, and one request by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser import chromium
from tests.serving.conftest import Running


@contextmanager
def opened(server: Running, model: str, width: int = 1300) -> Iterator[Any]:
    """The server's page with one model chosen; an error of its scripts fails the test."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 850})
        page.set_default_timeout(180_000)
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://{server.http}/")
        page.locator("#models tr", has_text=model.split()[0]).first.wait_for()
        page.locator("#which").select_option(model)
        yield page
        assert said == []


@pytest.mark.parametrize("width", [1300, 390])
def test_a_person_tries_one_input(running: Running, width: int) -> None:
    with opened(running, "rows 1", width) as page:
        assert "FP32" in page.locator("#request").input_value()
        page.locator("#send").click()
        page.get_by_text("200, ").wait_for()
        assert '"y"' in page.locator("#answer").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
        page.locator("#request").fill("{}")
        page.locator("#send").click()
        page.get_by_text("400, ").wait_for()


@pytest.mark.parametrize(("model", "prompt"), [("talk 1", "w3 w1"), ("mute 1", "3, 1")])
def test_a_person_sees_a_text_as_it_is_computed(talking: Running, model: str, prompt: str) -> None:
    with opened(talking, model) as page:
        assert not page.locator("#request").is_visible()
        page.locator("#prompt").fill(prompt)
        page.locator("#send").click()
        page.get_by_text(" tokens in ").wait_for()
        assert len(page.locator("#answer").inner_text().split()) > 10
        page.locator("#prompt").fill("")
        page.locator("#send").click()
        page.get_by_text("400").wait_for()
        assert "tokens" in page.locator("#answer").inner_text()
