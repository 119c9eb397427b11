"""A headless Chromium for tests of pages: whatever one finds installed, driven by playwright."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


@contextmanager
def chromium():
    """A browser; the test is skipped where there is none, or nothing to drive it with."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
    path = next((p for p in map(shutil.which, NAMES) if p), None)
    if path is None:
        pytest.skip(f"no browser is installed: one of {', '.join(NAMES)} (apt install chromium)")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, file, scheme="light", width=1300, height=850):
    """A page read from disk with the network off. Afterwards: no error was logged, nothing was asked for."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.set_default_timeout(180_000)  # a busy machine must not fail a test
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{file}")
    yield page
    assert said == []
    assert asked == [f"file://{file}"]
    context.close()
