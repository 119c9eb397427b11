"""All about one model on one page with nothing to load: what was compiled, its graph, a profile, memory, accuracy and a
comparison layer by layer - for `tvmopt report`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from tvmopt.analysis import graph_html, profile_html
from tvmopt.analysis.graph_html import POLICY
from tvmopt.analysis.profile import Profile, profile
from tvmopt.analysis.svg import html_table, page
from tvmopt.analysis.told import FAMILIES, families, records, verification
from tvmopt.children import Progress
from tvmopt.debug import html as comparison_html
from tvmopt.debug.compare import compare
from tvmopt.debug.records import CompareResult
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, TvmoptError, first_line
from tvmopt.files import check_writable, write_text
from tvmopt.report import Report
from tvmopt.runtime.artifact import is_artifact, read_manifest
from tvmopt.runtime.manifest import Manifest

STYLE = """<style>
nav { display: flex; flex-wrap: wrap; gap: 0.2em 1.2em; margin: 1em 0; }
iframe { width: 100%; height: 80vh; border: 1px solid #8886; border-radius: 6px; }
section { margin-top: 3em; } pre { overflow-x: auto; }
</style>"""


@dataclass(frozen=True)
class Combined:
    """A page that was written.

    Attributes:
        path: the file. sections: headings of what is on it.
        left_out: headings of what is not, and why.
        comparison: of the compiled model with the reference, where it was made.
    """

    path: Path
    sections: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    comparison: CompareResult | None = None


def report_page(
    source: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    target: str | Path = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    duration: float = 3.0,
    progress: Progress | None = None,
) -> Combined:
    """Write the page. What cannot be made here (a profile of code for another machine) is left out; the page says why.

    Args:
        source: an ONNX file, which is compiled and verified, or an artifact.
        model: the ONNX file that an artifact was compiled from, for the comparison.
        target, precision, shape, values, threads: for an ONNX file: as for :func:`tvmopt.compile`.
        duration: seconds of profiling, at most.

    Raises:
        InputError: `model` beside an ONNX file; and whatever :func:`tvmopt.compile` raises.
    """
    from tvmopt.api import compile_isolated
    from tvmopt.compiler.request import model_files
    from tvmopt.targets import Machine

    check_writable(output, reads=model_files(source, model))
    tell = progress or (lambda stage: None)
    compiled = is_artifact(source)
    if model is not None and not compiled:
        raise InputError("the first file is an ONNX model itself.", where=str(source), fix="leave --model out")
    with tempfile.TemporaryDirectory(prefix="tvmopt-report-") as folder:
        file = Path(source)
        cached = False
        if not compiled:
            file = Path(folder) / f"{Path(source).stem}.tvmopt"
            made = compile_isolated(
                source, target=Machine.load(target), precision=precision, shape=shape, values=values, threads=threads,
                output=file, progress=progress,
            )  # fmt: skip
            cached, model = made.report.cached, source
        manifest = read_manifest(file)
        told = Report.from_dict({**manifest.report, "cached": cached})
        made_of = _Sections()
        timed = made_of.profiled(file, threads, duration, tell)
        made_of.add("Compiled", lambda: _compiled(told, manifest))
        made_of.add("Graph", lambda: _graph(told, timed))
        if timed is not None:
            parts = profile_html.sections(timed)
            made_of.parts["Profile"] = f"<p>{profile_html.summary(timed)}</p>{parts['Roofline']}{parts['One run']}"
            made_of.parts |= {"Kernels": parts["Kernels"], "Memory": parts["Memory"]}
        made_of.add("Accuracy", lambda: _accuracy(told))
        found = made_of.comparison(file, model, manifest, shape, values, threads, tell)
    write_text(output, _page(told, made_of))
    return Combined(Path(output), tuple(made_of.parts), made_of.left_out, found)


class _Sections:
    """The sections of the page, in order, and those that are left out."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def add(self, heading: str, make: Callable[[], str]) -> None:
        """A section; one that cannot be made is left out."""
        try:
            self.parts[heading] = make()
        except TvmoptError as error:
            self.left_out[heading] = first_line(error.what)

    def profiled(self, file: Path, threads: int | None, duration: float, tell: Progress) -> Profile | None:
        """The profile, where this machine can run the code."""
        tell("timing kernels")
        try:
            return profile(file, threads=threads, seconds=duration)
        except TvmoptError as error:
            self.left_out["Profile and memory"] = first_line(error.what)
            return None

    def comparison(
        self, file: Path, model: str | Path | None, manifest: Manifest, shape: Shapes | None,
        values: Mapping[str, Any] | None, threads: int | None, tell: Progress,
    ) -> CompareResult | None:  # fmt: skip
        """The section of the comparison, layer by layer."""
        if model is None:
            self.left_out["Comparison"] = "it needs the ONNX file (--model MODEL)"
            return None
        named = {i.name: tuple(_at_named(d, manifest) for d in i.shape) for i in manifest.inputs}
        try:
            found = compare(
                model, file, shape=named if manifest.symbols or shape else manifest.options.get("shapes"),
                values=values or manifest.values, threads=threads, layers=True, bisect=False, progress=tell,
            )  # fmt: skip
        except TvmoptError as error:
            self.left_out["Comparison"] = first_line(error.what)
            return None
        self.parts["Comparison"] = re.sub(r"<(/?)h2>", r"<\1h3>", comparison_html.body(found))
        return found


def _at_named(size: Any, manifest: Manifest) -> int:
    """A size at the named sizes."""
    from tvmopt.dims import at

    return int(at((size,), {name: known.opt for name, known in manifest.symbols.items()})[0])


def _compiled(told: Report, manifest: Manifest) -> str:
    rows = [tuple(escape(str(cell)) for cell in row) for row in families(told)]
    tensors = "; ".join(f"{name} {escape(', '.join(map(str, infos)))}" for name, infos in (
        ("inputs", manifest.inputs), ("outputs", manifest.outputs)))  # fmt: skip
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in told.warnings)
    made = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
    return (
        f"<p>For <b>{escape(told.target)}</b>, {escape(told.precision)}: {told.flops / 1e9:.3g} GFLOP executed, "
        f"{told.parameters / 1e6:.3g} million parameters, {told.weight_bytes / 1e6:.3g} MB of weights, "
        f"{told.activation_bytes / 1e6:.3g} MB of activations; {tensors}.</p>"
        f"{html_table(FAMILIES, rows, {0, 1})}<p>{escape(records(told))}. Made by {escape(made)} of a model with "
        f"SHA-256 <code>{manifest.model_sha256[:16]}</code>.</p>{notes}"
    )


def _graph(told: Report, timed: Profile | None) -> str:
    inner = escape(graph_html.html(told, timed), quote=True)
    return (
        "<p>Each box is a kernel; choose one to see the ONNX nodes in it, and why not more of them are.</p>"
        f'<iframe title="graph of kernels" sandbox="allow-scripts" srcdoc="{inner}"></iframe>'
    )


def _accuracy(told: Report) -> str:
    found = told.accuracy
    words = f"<p>{escape(verification(told))}.</p>"
    if not found.get("verified"):
        return words
    rows = [(escape(name), f"{error:.2e}") for name, error in found.get("outputs", {}).items()]
    sizes = "; ".join(", ".join(f"{n} = {v}" for n, v in one.items()) for one in found.get("sizes", ()))
    more = f" Open sizes: {escape(sizes)}." if sizes else ""
    return (
        f"{words}<p>{len(found['seeds'])} sets of inputs; {found['kernels']} kernels' results were compared one by one."
        f"{more}</p>{html_table(('output', 'largest error, of its largest value'), rows)}"
    )


def _page(told: Report, made: _Sections) -> str:
    title = f"{told.model} on {told.target}"
    links = "".join(f'<a href="#{heading.lower()}">{heading}</a>' for heading in made.parts)
    missing = "".join(f'<p class="note">{h} is left out: {escape(why)}</p>' for h, why in made.left_out.items())
    sections = "".join(f'<section id="{h.lower()}"><h2>{h}</h2>{text}</section>\n' for h, text in made.parts.items())
    return page(title, f"{STYLE}<h1>{escape(title)}</h1><nav>{links}</nav>{missing}\n{sections}", POLICY)
