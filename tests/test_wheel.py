"""What is installed from a wheel: everything a compile needs, and the tuning records that ship."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import resources
from pathlib import Path

import pytest

from tests.runtime.small import small_model
from tvmopt.targets import Machine
from tvmopt.tuning import logs
from tvmopt.tuning.driver import imported_module, tasks_of
from tvmopt.tuning.record import Candidate, Record, Verdict, fingerprint, log_name

ROOT = Path(__file__).parents[1]
PARTS = ("frontend", "schedules", "targets", "tuning_logs", "pyproject.toml", "README.md", "LICENSE")
COMPILE = """
import json, sys, tvmopt
compiled = tvmopt.compile(sys.argv[1], threads=1)
print(json.dumps([tvmopt.__file__, compiled.report.as_dict()]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import onnx

    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.mark.parametrize("name", ["schedules", "targets", "tuning_logs"])
def test_a_clone_s_packages_are_its_folders(name: str) -> None:
    """The package links to the folders at the top, so that static tools see one package."""
    folder = Path(str(resources.files(f"tvmopt.{name}")))
    assert folder.is_symlink() and (folder / "__init__.py").is_file() and folder.resolve() == ROOT / name


def test_every_shipped_log_is_whole() -> None:
    for path in (ROOT / "tuning_logs").glob("*.jsonl"):
        log = logs.read_log_file(path)
        assert not log.problems and path.name == log_name(log.target)
        assert log.records and all(r.won and r.key.target == log.target for r in log.records)


def test_the_dockerfile_copies_what_the_package_is_made_of() -> None:
    """`benchmarks/container.py` runs its steps, which needs a network."""
    from benchmarks.container import steps

    found = steps((ROOT / "Dockerfile").read_text())
    sources = {part for step in found if step.word == "COPY" for part in step.rest.split()[:-1]}
    assert sources == set(PARTS)
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_through == sources
    assert [step.word for step in found][-2:] == ["ENTRYPOINT", "CMD"]


def left_out(source: Path, place: Path) -> list[str]:
    """Files of the tree's packages, code and data, that the installed package lacks."""
    folders = {source / "frontend/tvmopt": place / "tvmopt"}
    folders |= {source / name: place / "tvmopt" / name for name in ("schedules", "targets", "tuning_logs")}
    return [
        str(file.relative_to(source))
        for folder, copy in folders.items()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix not in (".pyc", ".md") and not (copy / file.relative_to(folder)).exists()
    ]


def built(kind: str, tree: Path) -> Path:
    """The wheel or the sdist of a tree."""
    build = f"from setuptools import build_meta; build_meta.build_{kind}('dist/{kind}')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (file,) = (tree / "dist" / kind).iterdir()
    return file


def test_an_installed_wheel_is_whole_and_uses_its_records(model: Path, tmp_path: Path) -> None:
    """The tree with a planted log, built, unpacked away from here, and used by a process that sees nothing else."""
    source, place = tmp_path / "tree", tmp_path / "installed"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(ROOT / part, source / part)
    shutil.rmtree(source / "tuning_logs")
    machine = Machine.load("cpu").with_cores(1)
    task = next(t for t in tasks_of(imported_module(model, {}), machine) if t.space.size > 1)
    name, values = next((n, v) for n, v in task.space.choices.items() if len(v) > 1)
    won = Verdict(0.9, 0.88, 0.92, 1e-6, 40, True)
    knobs = {**task.space.analytic, name: values[1]}
    record = Record(task.key, Candidate(knobs), "ok", (1e-5,), verdict=won, shape=task.shape, date="2026-01-01")
    (source / "tuning_logs").mkdir()
    (source / "tuning_logs/__init__.py").touch()
    target = fingerprint(machine)
    logs.write_log(source / "tuning_logs" / log_name(target), target, [record])

    wheel = zipfile.ZipFile(built("wheel", source))
    wheel.extractall(place)
    assert not left_out(source, place)
    with tarfile.open(built("sdist", source)) as sdist:
        sdist.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    assert sorted(zipfile.ZipFile(built("wheel", unpacked)).namelist()) == sorted(wheel.namelist())
    shutil.rmtree(source)
    nowhere = {"TVMOPT_STORE": str(tmp_path / "none.db"), "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(model)], cwd=tmp_path, env={**os.environ, **nowhere},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    where, report = json.loads(done.stdout.splitlines()[-1])
    assert Path(where).is_relative_to(place), "the installed package, not this one"
    assert [k["knobs"] for k in report["kernels"] if k["source"] == "tuned"] == [knobs]
    (told,) = (d for d in report["decisions"] if d["stage"] == "tvmopt.TuningRecords")
    assert told["verdict"] == "applied" and "shipped" in told["reason"]
