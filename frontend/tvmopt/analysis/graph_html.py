"""The graph of a compiled model as one HTML file with nothing to load - for `tvmopt inspect --html`."""

from __future__ import annotations

import json
import re
from html import escape
from importlib import resources

from tvmopt.analysis.graph_view import view
from tvmopt.analysis.profile import Profile
from tvmopt.errors import InputError
from tvmopt.report import Report

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself then refuses every request."""


def html(report: Report, profile: Profile | None = None) -> str:
    """The file's text.

    Raises:
        InputError: the report has no flow: its artifact was compiled by an older tvmopt.
    """
    if not report.flow.steps:
        raise InputError(
            "the artifact does not say how its kernels are connected, or it has none.",
            where=report.model,
            fix="compile the model again with this tvmopt",
        )
    folder = resources.files("tvmopt.analysis")
    data = json.dumps(view(report, profile), separators=(",", ":")).replace("<", "\\u003c")
    page = (folder / "graph.html").read_text()
    parts = {
        "TITLE": escape(f"{report.model} on {report.target}"),
        "POLICY": POLICY,
        "STYLE": (folder / "graph.css").read_text(),
        "DATA": data,
        "SCRIPT": (folder / "graph.js").read_text(),
    }
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], page)
