"""A Sphinx extension: the parts of the reference that come from the code - for `docs/conf.py`.

A page holds a marker, `<!-- generated: commands -->`, and gets what it names: the commands' options as Typer
itself documents them, the passes in their order with their docstrings, the schedule families with theirs, the
machines. A line in italics below the marker says to readers of the repository what they miss, and gives way, too.
Notebooks are copied from `notebooks/` before the pages are looked for.
"""

from __future__ import annotations

import ast
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"<!-- generated: (\w+) -->(\n_.*_$)?", re.MULTILINE)


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("config-inited", _copy_notebooks)
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _copy_notebooks(app: Any, _config: Any) -> None:
    """`notebooks/*.ipynb` as pages; their links into `docs/` become links within it."""
    folder = Path(app.srcdir) / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        (folder / file.name).write_text(file.read_text().replace("](../docs/", "](../"))
    names = "\n".join(sorted(file.stem for file in folder.glob("*.ipynb")))
    contents = f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    (folder / "index.md").write_text((ROOT / "notebooks/README.md").read_text() + contents)


def _fill(app: Any, name: str, source: list[str]) -> None:
    makers = {"commands": commands, "passes": passes, "families": families, "machines": machines}
    makers |= {"failures": failures, "stages": stages}
    source[0] = MARKER.sub(lambda marker: makers[marker[1]](), source[0])
    depth = name.count("/")  # in the repository the notebooks are beside docs/, in the site within it
    source[0] = source[0].replace(f"]({'../' * (depth + 1)}notebooks/", f"]({'../' * depth}notebooks/")
    source[0] = source[0].replace("notebooks/README.md)", "notebooks/index.md)")
    if "(the rest)" in source[0]:
        source[0] = source[0].replace("(the rest)", _rest(app, name, source[0]))


def _rest(app: Any, name: str, text: str) -> str:
    """The pages beside an index that it does not name: a new page needs no entry (an empty glob warns)."""
    folder = Path(app.srcdir, name).parent
    pages = sorted(p.stem for p in folder.iterdir() if p.suffix in (".md", ".ipynb") and p.stem != "index")
    return "\n".join(page for page in pages if not re.search(rf"^{re.escape(page)}$", text, re.MULTILINE))


def commands() -> str:
    """Every command's arguments and options, as Typer's own `utils docs` writes them."""
    from typer import Context, Typer
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from tvmopt.cli import COMMANDS

    pages = []
    for name in COMMANDS:
        application: Typer = import_module(f"tvmopt.cli.{name}").app
        command = get_command(application)
        text = get_docs_for_click(obj=command, ctx=Context(command), name=f"tvmopt {name}")
        pages.append(re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE))  # one level down
    return "\n".join(pages)


def passes() -> str:
    """The graph passes in the order of `pipeline.py`; a docstring is the rewrite."""
    from tvmopt import pipeline
    from tvmopt.report import DecisionLog
    from tvmopt.targets import Machine

    seen: dict[str, Any] = {}
    for item in pipeline.graph_passes(Machine.load("x86-64-v3"), DecisionLog()):
        name = str(item.info.name)
        if name.startswith("tvmopt."):
            seen.setdefault(name.removeprefix("tvmopt."), item)
    return "\n".join(_literal(name, _class_docstring(name)) for name in seen)


def stages() -> str:
    """The whole list of stages for a CPU, as a table."""
    from tvmopt import pipeline
    from tvmopt.targets import Machine

    rows = ["| | stage | part | can be left out |", "|---:|---|---|---|"]
    for part in pipeline.stages(pipeline.Job(Machine.load("x86-64-v3"), lift=True)):
        for stage in part.stages:
            optional = "" if stage.needed else "yes"
            rows.append(f"| {len(rows) - 1} | {stage.short} | {part.heading} | {optional} |")
    return "\n".join(rows)


def families() -> str:
    """The schedule families that ship, with the arithmetic of their docstrings."""
    parts = []
    for kind in ("cpu", "cuda"):
        parts.append(f"## {'CPUs' if kind == 'cpu' else 'CUDA'}\n")
        for folder in sorted(p.parent for p in (ROOT / "schedules" / kind).glob("[a-z]*/__init__.py")):
            files = (folder / "schedule.py", folder / "compute.py")
            text = next(file for file in files if file.exists()).read_text()
            parts.append(_literal(folder.name, ast.get_docstring(ast.parse(text)) or "", level=3))
    return "\n".join(parts)


def machines() -> str:
    """The machines that ship, as a table."""
    from tvmopt.targets import Machine, names

    rows = [
        "| name | kind | LLVM's or CUDA's name | cores | vector bits | GHz |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name in names():
        m = Machine.load(name)
        bits = str(m.vector_bits) if m.kind == "llvm" else ""
        rows.append(f"| {name} | {m.kind} | {m.mcpu} | {m.cores} | {bits} | {m.ghz:g} |")
    return "\n".join(rows)


def failures() -> str:
    """Why cases of ONNX's own suite fail, from the tests' list of expected failures."""
    reasons: dict[str, list[str]] = {}
    for line in (ROOT / "tests/onnx_backend/expected_failures.txt").read_text().splitlines():
        if line.startswith("test_"):
            case, _, reason = line.partition(": ")
            reasons.setdefault(reason, []).append(case.removeprefix("test_"))
    rows = ["| reason | cases | such as |", "|---|---:|---|"]
    for reason, cases in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        rows.append(f"| {reason} | {len(cases)} | {cases[0]} |")
    return "\n".join(rows)


def _literal(name: str, text: str, level: int = 2) -> str:
    return f"{'#' * level} {name}\n\n```text\n{text}\n```\n"


def _class_docstring(name: str) -> str:
    """The docstring of the class or function of this name, found in `passes/` without importing it."""
    for file in sorted((ROOT / "frontend/tvmopt/passes").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return ast.get_docstring(node) or ""
    return ""
