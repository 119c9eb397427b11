"""Plots are well-formed, inside their axes, and escape what they are told."""

import xml.etree.ElementTree as ET

import pytest

from tvmopt.analysis.svg import Plot, html_table, page, ticks


def test_a_plot_is_well_formed_and_escapes():
    plot = Plot((1, 1000), (0, 1), title="a < b & 'c'", xlabel="<x>", xlog=True)
    plot.line([(1, 0), (1000, 1)], "#123456", dash="4 2")
    plot.dot(10, 0.5, "#123456", "x < y & z")
    plot.box((1, 10), (0.2, 0.4), "#123456", "<b>")
    plot.text(10, 0.5, "<i>")
    root = ET.fromstring(plot.render())
    assert root.get("aria-label") == "a < b & 'c'"


@pytest.mark.parametrize("log", [False, True])
def test_points_outside_stay_near_the_axes(log):
    plot = Plot((1, 10), (1, 10), xlog=log, ylog=log, size=(200, 100))
    for x, y in ((-5, 1e9), (1e9, 0), (1, 1), (10, 10)):
        a, b = plot.at(x, y)
        assert -10 <= a <= 210 and -10 <= b <= 110


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 1e-6), (3.2, 3.4), (-2, 7), (0, 123456)])
def test_linear_ticks(low, high):
    found = ticks(low, high)
    assert 3 <= len(found) <= 8
    assert all(low - 1e-12 <= v <= high * (1 + 1e-9) + 1e-12 for v, _ in found)


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.5, 2), (0.01, 1e4), (1, 1e12)])
def test_log_ticks(low, high):
    found = ticks(low, high, log=True)
    assert found and all(low * 0.99 <= v <= high * 1.01 for v, _ in found)


def test_a_range_without_width_is_widened():
    assert "<svg" in Plot((3, 3), (0, 0)).render()
    assert "<svg" in Plot((3, 3), (5, 5), xlog=True, ylog=True).render()


def test_page_and_table():
    text = page("t", html_table(("a", "b"), [("1", "2")]))
    assert text.startswith("<!doctype html>") and "<td>2</td>" in text
    ET.fromstring(text.split("<body>")[1].split("</body>")[0])
