"""The server's page in a browser: what is served, and one request by hand."""

from __future__ import annotations

import pytest

from tests.browser import chromium
from tests.serving.conftest import Running


@pytest.mark.parametrize("width", [1300, 390])
def test_a_person_tries_one_input(running: Running, width: int) -> None:
    with chromium() as browser:
        context = browser.new_context(viewport={"width": width, "height": 850})
        page = context.new_page()
        page.set_default_timeout(180_000)
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://{running.http}/")
        page.locator("#models tr", has_text="rows").first.wait_for()
        page.locator("#which").select_option("rows 1")
        assert "FP32" in page.locator("#request").input_value()
        page.locator("#send").click()
        page.get_by_text("200, ").wait_for()
        assert '"y"' in page.locator("#answer").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
        page.locator("#request").fill("{}")
        page.locator("#send").click()
        page.get_by_text("400, ").wait_for()
        assert said == []
        context.close()


@pytest.mark.parametrize(("model", "prompt"), [("talk 1", "w3 w1"), ("mute 1", "3, 1")])
def test_a_person_sees_a_text_as_it_is_computed(talking: Running, model: str, prompt: str) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(180_000)
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://{talking.http}/")
        page.locator("#models tr", has_text="talk").first.wait_for()
        page.locator("#which").select_option(model)
        assert not page.locator("#request").is_visible()
        page.locator("#prompt").fill(prompt)
        page.locator("#send").click()
        page.get_by_text(" tokens in ").wait_for()
        assert len(page.locator("#answer").inner_text().split()) > 10
        page.locator("#prompt").fill("")
        page.locator("#send").click()
        page.get_by_text("400").wait_for()
        assert "tokens" in page.locator("#answer").inner_text()
        assert said == []
