"""A family is named in its own folder and in the one ordered list: no other file imports it, or asks for it by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_rooms import all_imports, modules
from tvmopt.scheduling.discover import OURS, families
from tvmopt.scheduling.family import Family
from tvmopt.targets import Machine

KINDS = {"llvm": "cpu", "cuda": "cuda"}
EVERY = [(kind, family) for kind in KINDS for family in families(kind)]


def home(module: str) -> str:
    """The family's folder that a module lies in, as a package; "" for one outside, and for a shared helper, whose file
    or folder begins with an underscore."""
    parts = module.split(".")
    inside = module.startswith(f"{OURS}.") and len(parts) > 3 and not parts[2].startswith("_")
    return ".".join(parts[:4]) if inside and not parts[3].startswith("_") else ""


def strings(node: ast.AST | None) -> Iterator[tuple[int, str]]:
    """Line and text of a string, or of those in a tuple, list, set, or among the keys of a dictionary."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
        for item in node.keys if isinstance(node, ast.Dict) else node.elts:
            yield from strings(item)


def asked_for(node: ast.AST) -> list[ast.AST]:
    """What an expression or statement compares something with, looks a block or a family up by, or keeps under a name
    in capitals.

    A kernel's *source* (tuned, analytic, generic) is no family: a comparison with something of that name is left out.
    """
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return [] if any(getattr(s, "attr", getattr(s, "id", "")) == "source" for s in sides) else list(sides)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("annotated", "consumer", "family_named"):
        return list(node.args[1:])
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id.isupper() for t in node.targets):
        return [node.value] if isinstance(node.value, ast.Tuple | ast.List | ast.Set) else []
    return []


def intruders(module: str, tree: ast.AST) -> list[str]:
    """The families of others that a file asks for by name, or by the beginning of a name."""
    mine = home(module)
    kinds = [k for k, folder in KINDS.items() if not mine or mine.startswith(f"{OURS}.{folder}.")]
    others = [f.NAME for kind, f in EVERY if kind in kinds and mine != f"{OURS}.{KINDS[kind]}.{f.NAME}"]
    found = []
    for node in ast.walk(tree):
        for line, text in (one for part in asked_for(node) for one in strings(part)):
            found += [f"{module}:{line} names {name}" for name in others if text == name]
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            for line, text in (one for part in node.args for one in strings(part) if len(one[1]) > 2):
                found += [f"{module}:{line} names {name}" for name in others if name.startswith(text)]
    return found


def test_no_file_imports_another_ones_family() -> None:
    climbing = [
        f"{name} imports {other}"
        for name, others in all_imports().items()
        for other in others
        if home(other) and home(other) != home(name)
    ]
    assert climbing == []


def test_no_file_asks_for_a_family_by_name() -> None:
    lists = {f"{OURS}.{folder}" for folder in KINDS.values()}
    known = [(m, file) for m, file in modules().items() if m not in lists]
    assert [one for m, file in known for one in intruders(m, ast.parse(file.read_text()))] == []


@pytest.mark.parametrize(
    "text",
    [
        'if kernel.family == "gemm": pass', 'ALIKE = ("elementwise", "layout")', 'family.startswith("amx")',
        'annotated(func, "conv2d")', 'x = family in {"pool": 1}',
    ],
)  # fmt: skip
def test_a_planted_name_is_found(text: str) -> None:
    assert intruders("tvmopt.scheduling.apply", ast.parse(text))


def test_what_is_no_name_of_a_family_is_left_alone() -> None:
    assert not intruders("tvmopt.debug.blame", ast.parse('kernel.source == "generic"'))
    assert not intruders(f"{OURS}.cpu.gemm.schedule", ast.parse('annotated(func, "gemm")'))
    assert home(f"{OURS}.cpu._panels") == "" and home(f"{OURS}.cpu.gemm.compute") == f"{OURS}.cpu.gemm"


@pytest.mark.parametrize(("kind", "family"), EVERY, ids=[f"{k}-{f.NAME}" for k, f in EVERY])
def test_a_familys_folder_has_its_name(kind: str, family: Family) -> None:
    assert family.origin == f"{OURS}.{KINDS[kind]}.{family.NAME}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_holds_every_folder(kind: str) -> None:
    import importlib

    package = importlib.import_module(f"{OURS}.{KINDS[kind]}")
    assert package.__file__ is not None
    folders = {p.parent.name for p in Path(package.__file__).parent.glob("*/__init__.py") if p.parent.name[0] != "_"}
    assert set(package.FAMILIES) == folders
    assert [f.FALLBACK for f in families(kind)] == [False] * (len(folders) - 1) + [True]


def test_a_family_needs_its_instructions() -> None:
    needy = [f for f in families("llvm") if f.NEEDS]
    assert needy
    for family in needy:
        assert family.runs_on(Machine.load("sapphirerapids")) and not family.runs_on(Machine.load("znver5"))
