"""Lower rooms never import upper ones, and no two files import each other: docs/explanation/rooms.md has the order."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"tvmopt": "frontend/tvmopt"} | {f"tvmopt.{n}": n for n in ("schedules", "targets", "tuning_logs")}
Imports = dict[str, set[str]]


def layers() -> dict[str, int]:
    """Room -> height, from the list in the docs; 0 is the lowest layer."""
    text = (ROOT / "docs/explanation/rooms.md").read_text()
    lines = text.partition("<!-- rooms -->\n```\n")[2].partition("\n```")[0].splitlines()
    return {room: height for height, line in enumerate(reversed(lines)) for room in line.partition("  ")[0].split()}


def modules() -> dict[str, Path]:
    """Every module of the package, by its name."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = file
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file names in an import, wherever it stands in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def all_imports() -> Imports:
    known = modules()
    found = {name: set(imported(ast.parse(file.read_text()), known)) - {name} for name, file in known.items()}
    found["tvmopt"] = set()  # the front door
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def climbing(imports: Imports, heights: dict[str, int]) -> list[str]:
    """Imports that do not go down."""
    return [
        f"{name} imports {other}"
        for name, others in imports.items()
        for other in others - {"tvmopt"}
        if room(name) != room(other) and heights[room(name)] <= heights[room(other)]
    ]


def test_imports_go_down() -> None:
    heights, imports = layers(), all_imports()
    assert {room(name) for name in imports if name != "tvmopt"} == set(heights)
    assert climbing(imports, heights) == []


def test_no_two_files_import_each_other() -> None:
    graphlib.TopologicalSorter(all_imports()).prepare()  # CycleError names the circle


def test_every_import_is_absolute() -> None:
    """A relative one would be overlooked here."""
    for file in modules().values():
        for node in ast.walk(ast.parse(file.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}:{node.lineno}"


def test_a_wrong_import_is_found() -> None:
    """Also for types only, also inside a function."""
    known = modules()
    text = "def f():\n    if TYPE_CHECKING:\n        from tvmopt.cli import common\n    import tvmopt.api"
    imports = {"tvmopt.passes.graph": set(imported(ast.parse(text), known))}
    assert sorted(climbing(imports, layers())) == [
        "tvmopt.passes.graph imports tvmopt.api",
        "tvmopt.passes.graph imports tvmopt.cli.common",
    ]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
