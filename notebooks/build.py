"""Make the notebooks from their sources, with outputs - for whoever changed one.

    python notebooks/build.py                    # all that have changed
    python notebooks/build.py what-a-schedule-is # some, whether they changed or not

A notebook is written as `NAME.py` in Jupytext's percent format, which diffs show well. `NAME.ipynb` is that
source, executed: stable cell ids, no execution counts, no times. The tests execute it and compare the cells.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
HELPERS = {"build", "looking", "making"}
SECONDS = 600


def names() -> list[str]:
    """The notebooks, in reading order."""
    return sorted(f.stem for f in HERE.glob("*.py") if f.stem not in HELPERS)


def source(name: str) -> Any:
    """The notebook of a source, without outputs, with ids that stay."""
    notebook = jupytext.read(HERE / f"{name}.py")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
    return notebook


def executed(name: str) -> Any:
    """The notebook with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = source(name)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `!tvmopt` is this one's
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
        record_timing=False,
    )
    with tempfile.TemporaryDirectory(prefix="kernel-") as private:
        client.create_kernel_manager()
        client.km.transport, client.km.ip = "ipc", f"{private}/socket"  # not a port that others can listen to
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = _merged([o for o in cell.outputs if o.get("name") != "stderr"])
            for output in cell.outputs:
                output.pop("execution_count", None)
                if output.output_type == "execute_result":
                    output.execution_count = None
    return notebook


def _merged(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one."""
    merged: list[Any] = []
    for output in outputs:
        last = merged[-1] if merged else None
        streams = last is not None and output.output_type == last.output_type == "stream"
        if last is not None and streams and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def cells(notebook: Any) -> list[tuple[str, str]]:
    """Kind and source of each cell: what must be the same in source and notebook."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = list(sys.argv[1:] if arguments is None else arguments)
    for name in asked or names():
        path = HERE / f"{name}.ipynb"
        if not asked and path.exists() and cells(nbformat.read(path, 4)) == cells(source(name)):
            continue
        print(name, flush=True)
        nbformat.write(executed(name), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
