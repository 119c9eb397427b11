"""Dumps: a file a stage, numbered in their order, for CPUs and GPUs; the code of one kernel; wrong names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tvmopt
from tests.cli.command import tvmopt as in_process
from tests.compiler.small import silu
from tests.cuda import needs_toolkit
from tvmopt import pipeline
from tvmopt.errors import InputError
from tvmopt.targets import Machine

TARGETS = ["x86-64-v3", pytest.param("nvidia-h100", marks=needs_toolkit)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product and a SiLU."""
    return silu(tmp_path_factory.mktemp("model") / "silu.onnx", depth=16)


def stages(target: str) -> list[str]:
    """The files that a dump of everything has."""
    parts = pipeline.stages(pipeline.Job(Machine.load(target), lift=True))
    names = [stage.short for part in parts for stage in part.stages]
    return [f"{number:03d}-{name}.py" for number, name in enumerate(names, 1)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_a_stage_in_order(model: Path, target: str, tmp_path: Path) -> None:
    """What a stage did stands in its file and in none before it."""
    compiled = tvmopt.compile(
        model, target=target, verify=False, records=False, dump_all=tmp_path / "all" / "of it",
        dump_after={"FuseActivations": tmp_path / "one", "tvmopt.FoldConstant": tmp_path / "one"},
    )  # fmt: skip
    files = sorted(path.name for path in (tmp_path / "all" / "of it").iterdir())
    assert files == sorted(stages(target))
    texts = [(tmp_path / "all" / "of it" / name).read_text() for name in files]
    fused = next(i for i, name in enumerate(files) if "FuseActivations" in name)
    assert all("R.sigmoid" in text for text in texts[:fused])
    assert "R.nn.silu" in texts[fused] and "R.sigmoid" not in texts[fused]
    loops = next(i for i, name in enumerate(files) if name.endswith("-LowerOperators.py"))
    assert "T.prim_func" not in texts[loops - 1] and "T.prim_func" in texts[loops]
    bound = next(text for name, text in zip(files, texts, strict=True) if name.endswith("-BindTarget.py"))
    assert ("thread_binding" if target.startswith("nvidia") else "T.vectorized") in bound
    (kernel,) = compiled.report.kernels
    assert kernel.name in texts[-1] and "R.function" not in texts[-1]
    wanted = {name for name in files if "FuseActivations" in name or "FoldConstant" in name}
    assert {path.name for path in (tmp_path / "one").iterdir()} == wanted and len(wanted) == 4
    for name in wanted:
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "all" / "of it" / name).read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_a_dump_changes_nothing(model: Path, target: str, tmp_path: Path) -> None:
    plain = tvmopt.compile(model, target=target, verify=False, records=False)
    (kernel,) = plain.report.kernels
    dumped = tvmopt.compile(
        model, target=target, verify=False, records=False, dump_all=tmp_path, dump_code={kernel.name: tmp_path}
    )
    assert dumped.artifact.library == plain.artifact.library
    texts = {path.name.removeprefix(kernel.name): path.read_text() for path in tmp_path.glob(f"{kernel.name}.*")}
    assert "T.prim_func" in texts[".tir.py"] and "T.prim_func" in texts[".lowered.py"]
    if target.startswith("nvidia"):
        assert "__global__" in texts[".cu"] and ".visible .entry" in texts[".ptx"] and "sm_90" in texts[".ptx"]
    else:
        assert f"@__tvm_ffi_{kernel.name}" in texts[".ll"] and "vfmadd" in texts[".s"]


def test_names_that_do_not_exist(model: Path, tmp_path: Path) -> None:
    for wrong in ({"dump_after": {"FuseLayerNrm": tmp_path}}, {"without": ["FuseLayerNrm"]}):
        with pytest.raises(InputError, match=r"no stage 'FuseLayerNrm'(.|\n)*did you mean FuseLayerNorm(.|\n)*FuseOps"):
            tvmopt.compile(model, verify=False, **wrong)
    with pytest.raises(InputError, match=r"no kernel 'matmul_silu'(.|\n)*did you mean fused_matmul"):
        tvmopt.compile(model, verify=False, dump_code={"matmul_silu": tmp_path})
    with pytest.raises(InputError, match=r"'LowerOperators' cannot be left out"):
        tvmopt.compile(model, verify=False, without=["LowerOperators"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        tvmopt.compile(model, verify=False, dump_all=tmp_path / "file" / "folder")


@pytest.mark.parametrize("stage", ["FuseActivations", "FuseOps", "StaticPlanBlockMemory", "tvmopt.ConcatInPlace"])
def test_a_stage_left_out_keeps_the_numbers(model: Path, stage: str, tmp_path: Path) -> None:
    compiled = tvmopt.compile(model, without=[stage], dump_all=tmp_path)
    assert not any(stage.removeprefix("tvmopt.") in path.name for path in tmp_path.iterdir())
    assert compiled.report.accuracy["verified"]


def test_on_the_command_line(model: Path, tmp_path: Path) -> None:
    words = ["--dump-after", "FuseOps", tmp_path / "a", "--dump-after", "Loops", tmp_path / "b", "--without", "FusePad"]
    command: list[Any] = [sys.executable, "-m", "tvmopt", "compile", model]
    done = in_process(*command[3:], "--no-verify", "-o", tmp_path / "x.tvmopt", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"written: {tmp_path / 'a'}, {tmp_path / 'b'}\n")
    assert [path.name[4:] for folder in "ab" for path in (tmp_path / folder).iterdir()] == ["FuseOps.py", "Loops.py"]
    listed = subprocess.run(
        [sys.executable, "-m", "tvmopt", "compile", "--list-passes"], capture_output=True, text=True
    )
    alone = subprocess.run([*command[:5], "--dump-after", "FuseOps"], capture_output=True, text=True, check=False)
    assert alone.returncode == 2 and "there is no folder to write to" in alone.stderr
    assert listed.returncode == 0 and len(listed.stdout.splitlines()) == 1 + len(stages("cpu"))
    for words in (["--list-passes", "--json"], ["--json", "--list-passes"]):
        found = json.loads(in_process("compile", *words).stdout)
        assert [one["stage"] for one in found] == [line.split()[1] for line in listed.stdout.splitlines()[1:]]
        assert {one["can_be_left_out"] for one in found} == {True, False}
