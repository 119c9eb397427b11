"""Every report that is a page opens in a browser with the network off, and nothing in it sticks out or overlaps."""

import re

import pytest

from tests.browser import opened
from tvmopt.analysis.profile_html import html, roofline_svg
from tvmopt.analysis.svg import standalone

OUTSIDE = """() => [...document.querySelectorAll('svg text')].filter(t => {
  const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect();
  return a.width && (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1);
}).map(t => t.textContent)"""

OVERLAP = """() => { const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const all = [...svg.querySelectorAll('text:not([transform])')].map(t => [t, t.getBoundingClientRect()]);
    for (const [s, a] of all) for (const [t, b] of all) if (s !== t && s.textContent && t.textContent &&
      a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
        found.push(s.textContent + ' / ' + t.textContent); }
  return found; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_profile(browser, found, tmp_path, scheme):
    file = tmp_path / "profile.html"
    file.write_text(html(found))
    with opened(browser, file, scheme) as page:
        assert page.evaluate(OUTSIDE) == [] and page.evaluate(OVERLAP) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator("svg").count() == 3


def test_the_roofline_alone_has_its_styles(browser, found, tmp_path):
    file = tmp_path / "roofline.svg"
    file.write_text(standalone(roofline_svg(found)))
    with opened(browser, file, "dark") as page:
        fill = page.evaluate("getComputedStyle(document.querySelector('.axis')).fill")
        text = page.evaluate("getComputedStyle(document.querySelector('text')).fill")
        assert fill == "none" and min(map(int, re.findall(r"\d+", text)[:3])) > 150  # light words on dark


def test_the_nightly_report(browser, tmp_path):
    from tvmopt.nightly import report
    from tvmopt.nightly.history import Entry

    nights = [Entry(f"2026-11-{d:02}", "a<b/c", "ok", "t", tuple(0.01 + d * 1e-4 + i * 1e-5 for i in range(9)))
              for d in range(1, 21)]  # fmt: skip
    nights.append(Entry("2026-11-21", "a<b/c", "failed", "t", note="wrong output"))
    file = tmp_path / "night.html"
    file.write_text(report.html("2026-11-21", nights[-1:], {"a<b/c": nights}))
    with opened(browser, file, "dark") as page:
        assert page.evaluate(OUTSIDE) == [] and page.evaluate(OVERLAP) == []
        assert "a<b/c" in page.inner_text("body") and page.locator("circle").count() == 20
