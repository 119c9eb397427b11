"""The steps of `Dockerfile`, run in order in an empty folder, where there is no Docker.

    python benchmarks/container.py

COPY copies from the clone; RUN runs with the folder in place of /src and a new virtual environment in place of the
image's Python. Steps that change the system (apt-get, useradd, USER) are not run: that their programs are here is
looked at instead. At last the entry point is called, and compiles and runs a small model.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_THE_SYSTEM = ("apt-get", "useradd", "rm -rf /var")


@dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile and what follows it."""

    word: str
    rest: str


def steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, lines that end with a backslash joined.

    >>> steps("# image\\nFROM python\\nRUN a && \\\\\\n  b\\n")
    [Step(word='FROM', rest='python'), Step(word='RUN', rest='a &&   b')]
    """
    lines = [line for line in text.replace("\\\n", "").splitlines() if line.strip() and not line.startswith("#")]
    return [Step(*line.split(maxsplit=1)) for line in lines]


def copied(step: Step, root: Path) -> None:
    """COPY: files, or the content of a folder."""
    *sources, target = step.rest.split()
    place = root / target.lstrip("/")
    for source in sources:
        path = ROOT / source
        if not path.exists():
            sys.exit(f"COPY {step.rest}: there is no {source}")
        if path.is_dir():
            shutil.copytree(
                path, place, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place / path.name)


def run_step(step: Step, root: Path, path: str) -> None:
    """RUN: the commands that change nothing but the image's folder and its Python."""
    for command in (part.strip() for part in step.rest.split("&&")):
        if command.startswith(OF_THE_SYSTEM):
            print(f"  not run: {command}")
            continue
        command = command.replace("/src", str(root / "src"))
        print(f"  {command}", flush=True)
        subprocess.run(shlex.split(command), check=True, env={**os.environ, "PATH": path, "PYTHONPATH": ""}, cwd=root)


def main() -> None:
    """Run all steps; the exit code is that of the first one that fails."""
    entry: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tvmopt-image-") as folder:
        root = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", root / "python"], check=True)
        path = f"{root / 'python' / 'bin'}:/usr/bin:/bin"
        for step in steps((ROOT / "Dockerfile").read_text()):
            print(step.word, step.rest, flush=True)
            if step.word == "COPY":
                copied(step, root)
            elif step.word == "RUN":
                run_step(step, root, path)
            elif step.word == "ENTRYPOINT":
                entry = json.loads(step.rest)
            elif step.word == "CMD":
                called(entry, json.loads(step.rest), root, path)
    print("every step ran")


def called(entry: list[str], default: list[str], root: Path, path: str) -> None:
    """The entry point: as it is by default, and at work in an empty home."""
    if shutil.which("gcc", path=path) is None:
        sys.exit("there is no gcc, which the image installs")
    home = root / "home"
    home.mkdir()
    environment = {"PATH": path, "HOME": str(home)}
    model = (
        "import onnx; from onnx import helper as h; v = h.make_tensor_value_info; onnx.save(h.make_model(h.make_graph(["
    )
    model += "h.make_node('Relu', ['x'], ['y'])], 'g', [v('x', 1, [2, 3])], [v('y', 1, [2, 3])])), 'm.onnx')"
    work = [[*entry, *default], ["python", "-c", model], [*entry, "compile", "m.onnx"], [*entry, "run", "m.tvmopt"]]
    for command in work:
        print("  " + " ".join(command[:3]), flush=True)
        subprocess.run(command, check=True, cwd=home, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
