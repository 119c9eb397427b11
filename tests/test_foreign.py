"""Compiling for a processor with other instructions than this one's: the library is made, and never run."""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.schedules.harness import module_of, rand
from tvmopt.errors import ArtifactError, MissingDependency, TvmoptError
from tvmopt.pipeline import BUILD_CONFIG, lower, rewrite_kernels
from tvmopt.runtime.artifact import read
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain import linking

OTHER = "aarch64" if host_arch() == "x86_64" else "x86_64"
ELF = {"x86_64": 62, "aarch64": 183}  # e_machine
MACHINE = Machine.load("aarch64" if OTHER == "aarch64" else "x86-64-v3")


@pytest.mark.parametrize(("target", "words"), [("aarch64", ("fmla", "prfm")), ("x86-64-v3", ("vfmadd", "prefetcht1"))])
def test_code_for_each_has_its_instructions(target: str, words: tuple[str, ...]) -> None:
    machine = Machine.load(target)
    w = rand(128, 256)
    low = lower(module_of(lambda bb, x: relax.op.matmul(x, relax.const(w)), [rand(48, 128)]), machine)
    assert {k.family for k in low.kernels} == {"gemm"}
    kernels = [(g, f) for g, f in low.module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    functions = {g: f.with_attr("global_symbol", g.name_hint) for g, f in kernels}
    with machine.tvm_target(), tvm.transform.PassContext(opt_level=3, config=BUILD_CONFIG):
        code = tvm.compile(rewrite_kernels(tvm.IRModule(functions)), target=machine.tvm_target())
    text = code.mod.inspect_source("asm")
    assert all(word in text for word in words)


def test_only_another_architecture_names_its_triple() -> None:
    assert MACHINE.foreign
    assert MACHINE.tvm_target().attrs["mtriple"] == f"{OTHER}-linux-gnu"
    assert not Machine.load("cpu").foreign
    assert not Machine.load("cuda").foreign


def test_the_linker_is_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TVMOPT_CROSS_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(linking, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=f"no linker for {OTHER}"):
        linking.find_linker(OTHER)
    monkeypatch.setattr(linking, "find_spec", lambda name: object())
    assert linking.find_linker(OTHER) == (sys.executable, "-m", "ziglang", "cc", "-target", f"{OTHER}-linux-gnu")
    for name in (f"{OTHER}-linux-gnu-gcc", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert linking.find_linker(OTHER) == (str(tmp_path / f"{OTHER}-linux-gnu-gcc"),)
    monkeypatch.setenv("TVMOPT_CROSS_CC", "mine")
    assert linking.find_linker(OTHER) == (str(tmp_path / "mine"),)
    monkeypatch.setenv("TVMOPT_CROSS_CC", f"mine --sysroot '{tmp_path}'")
    assert linking.find_linker(OTHER) == (str(tmp_path / "mine"), "--sysroot", str(tmp_path))


@pytest.mark.parametrize("named", ["/nonexistent", "nothing of the kind", "'", tempfile.gettempdir()])
def test_a_compiler_that_is_named_and_not_there(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one in its place would be a surprise."""
    for variable, arch in (("CC", host_arch()), ("TVMOPT_CROSS_CC", OTHER)):
        monkeypatch.setenv(variable, named)
        with pytest.raises(MissingDependency, match=f"^{variable} names a compiler that is not there"):
            linking.find_linker(arch)


def test_a_compiler_that_fails_in_silence_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    for words, told in (
        (["false"], "exit status 1"), (["sh", "-c", "kill -9 $$"], "SIGKILL"), ([str(tmp_path / "text")], "format"),
    ):  # fmt: skip
        with pytest.raises(TvmoptError, match=told):
            linking.run(words, tmp_path, "linking")


def test_an_artifact_of_another_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a linker that keeps the first object: what an ELF file is for stands in objects too; and a compiler of nothing
    linker = tmp_path / "keep"
    linker.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n'
        'for f in "$@"; do case $f in *.o) [ -f "$f" ] && cp "$f" "$2" && exit;; esac; done; : > "$2"\n'
    )
    linker.chmod(0o755)
    monkeypatch.setenv("TVMOPT_CROSS_CC", str(linker))
    monkeypatch.setenv(f"TVMOPT_{OTHER.upper()}", str(tmp_path / "nothing"))  # no emulator either
    w = numpy_helper.from_array(np.ones((8, 4), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [w],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    compiled = tvmopt.compile(tmp_path / "m.onnx", target=MACHINE, output=tmp_path / "m.tvmopt")
    assert any(f"for {OTHER}" in w and "not verified" in w for w in compiled.report.warnings)
    artifact = read(tmp_path / "m.tvmopt")
    assert artifact.manifest.arch == OTHER
    assert struct.unpack_from("<H", artifact.library, 18)[0] == ELF[OTHER]
    with pytest.raises(ArtifactError, match=f"for {OTHER}, this machine is {host_arch()}"):
        tvmopt.load(tmp_path / "m.tvmopt")
