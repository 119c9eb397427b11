"""The notebooks: what is committed is its source, executed; and every cell still runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
nbformat = pytest.importorskip("nbformat", reason="the extra `notebooks`")
pytest.importorskip("jupytext", reason="the extra `notebooks`")


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"notebooks_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _module("build")
NAMES = build.names()


def test_there_are_eight_in_order() -> None:
    assert [name[0] for name in NAMES] == list("12345678")


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_is_its_source_executed(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    assert build.cells(notebook) == build.cells(build.source(name)), f"python notebooks/build.py {name}"
    nbformat.validate(notebook)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    assert all(o.output_type != "error" for o in outputs)
    assert any("image/png" in o.get("data", {}) for o in outputs), "a plot"
    assert all(cell.get("execution_count") is None for cell in notebook.cells)
    text = str([o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in outputs])
    assert not re.search(r"/tmp/|/home/|/root/", text), "a path of the machine that made it"


@pytest.mark.parametrize("name", NAMES)
def test_no_measured_figure_is_typed_into_the_prose(name: str) -> None:
    """Speeds, times and ratios come from cells; prose may hold sizes and definitions."""
    for cell in build.source(name).cells:
        if cell.cell_type == "markdown":
            found = re.search(r"\d[\d.,]* ?(GFLOP|TFLOP|ms\b|us\b|GB/s|times as fast)", cell.source)
            assert not found, found and found[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(name: str) -> None:
    notebook = build.executed(name)
    assert any(cell.get("outputs") for cell in notebook.cells)


def test_helpers_read_assembly() -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        from looking import hottest, inner_loop
    finally:
        sys.path.remove(str(FOLDER))
    assembly = """
f:
.LBB0_1:
	vmovups	(%rax), %zmm0
.LBB0_2:
	vbroadcastss	(%rdi,%rbx,4), %zmm1
	vfmadd231ps	(%rcx), %zmm1, %zmm2
.Ltmp7:
	vfmadd231ps	%zmm0, %zmm1, %zmm3
	jne	.LBB0_2
	vmovups	%zmm2, (%rdx)
	jne	.LBB0_1
	retq
"""
    assert len(hottest(assembly)) == 4
    assert inner_loop(assembly).splitlines()[0] == "4 instructions: 1 broadcasts, 2 multiply-adds"
