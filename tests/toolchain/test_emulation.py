"""Artifacts in another process and under QEMU: the numbers, the errors, and processors that lack instructions."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.children import Crash
from tvmopt.errors import ArtifactError, InputError, MissingDependency
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain import emulation
from tvmopt.toolchain.emulation import EmulatedModel, Emulator, find_emulator, user_land

OWN = Emulator((sys.executable,), {"PYTHONPATH": str(Path(tvmopt.__file__).parent.parent)}, "Python itself")
PROCESSORS = {"x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}


def missing(arch: str) -> str:
    """Why code for an instruction set cannot be emulated here."""
    if not (shutil.which(f"qemu-{arch}-static") or shutil.which(f"qemu-{arch}")):
        return f"needs qemu-{arch}: apt install qemu-user-static"
    try:
        if arch != host_arch():
            user_land(arch)
    except MissingDependency as error:
        return f"{error.what} {error.fix}"
    return ""


def network(folder: Path) -> Path:
    """A convolution, a pooling, a product and a softmax."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32) / 4, name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 17, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [weight("w", 33, 3, 3, 3), weight("b", 33), weight("v", 33, 10)],
    )
    path = folder / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def quantised(folder: Path) -> Path:
    """A convolution and a product of bytes, with extreme weights and a zero point in the middle."""
    rng = np.random.default_rng(3)

    def tensor(name: str, value: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(value, name)

    weights = rng.integers(-128, 128, (33, 17, 3, 3), dtype=np.int8)
    weights[0], weights[1] = -128, 127
    constants = [
        tensor("s", np.float32(0.02)), tensor("z", np.uint8(128)), tensor("sw", np.float32(0.003)),
        tensor("s2", np.float32(0.05)), tensor("w", weights),
        tensor("v", rng.integers(-128, 128, (33, 9), dtype=np.int8)),
    ]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "sw"], ["dw"]),
        helper.make_node("Conv", ["d", "dw"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "s2", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s2", "z"], ["d2"]),
        helper.make_node("Transpose", ["d2"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("DequantizeLinear", ["v", "sw"], ["dv"]),
        helper.make_node("MatMul", ["t", "dv"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 17, 9, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 9, 8, 9])],
        constants,
    )
    path = folder / "quantised.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def compiled(path: Path, target: str, **options: str) -> tuple[Artifact, tvmopt.api.Compiled]:
    output = path.with_name(f"{target}.tvmopt")
    done = tvmopt.compile(path, target=Machine.load(target), output=output, **options)
    return read(output), done


def test_another_process_gives_the_same_numbers_and_errors(tmp_path: Path) -> None:
    artifact, done = compiled(network(tmp_path), "cpu")
    x = np.random.default_rng(1).standard_normal((1, 3, 17, 16), dtype=np.float32)
    with EmulatedModel(artifact, OWN) as model:
        np.testing.assert_array_equal(model.run({"x": x})["y"], done(x))
        with pytest.raises(InputError, match="x"):
            model.run({"x": x[:, :2]})
        np.testing.assert_array_equal(model.run({"x": x})["y"], done(x))
        assert [i.name for i in model.inputs_beside({})] == ["x"]


def test_a_process_that_ends_is_told(tmp_path: Path) -> None:
    artifact, _ = compiled(network(tmp_path), "cpu")
    with pytest.raises(Crash, match="exit code 3 while loading"):
        EmulatedModel(artifact, Emulator((sys.executable, "-c", "import sys; sys.exit(3)"), told="nothing"))


def test_without_an_emulator_the_way_to_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = compiled(network(tmp_path), "cpu")[0].manifest
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="no emulator"):
        find_emulator(manifest)
    monkeypatch.setenv("TVMOPT_AARCH64", str(tmp_path / "nothing"))
    with pytest.raises(MissingDependency, match="scripts/emulator aarch64"):
        user_land("aarch64")


@pytest.mark.skipif(bool(missing("x86_64")), reason=missing("x86_64"))
@pytest.mark.skipif(host_arch() != "x86_64", reason="runs this machine's own Python")
@pytest.mark.parametrize("target", PROCESSORS)
def test_older_processors_run_what_is_for_them(tmp_path: Path, target: str) -> None:
    artifact, done = compiled(network(tmp_path), target)
    emulator = find_emulator(artifact.manifest)
    assert PROCESSORS[target] in emulator.told
    x = np.random.default_rng(2).standard_normal((1, 3, 17, 16), dtype=np.float32)
    with EmulatedModel(artifact, emulator) as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], done(x), rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(bool(missing("x86_64")), reason=missing("x86_64"))
@pytest.mark.skipif("avx2" not in Machine.load("cpu").features, reason="this machine has no AVX2")
def test_an_instruction_that_the_processor_lacks_is_no_number(tmp_path: Path) -> None:
    """It is refused by name; where the manifest says nothing of it, it ends the process."""
    artifact, _ = compiled(network(tmp_path), "x86-64-v3")
    emulator = find_emulator(compiled(network(tmp_path), "x86-64-v2")[0].manifest)
    with pytest.raises(ArtifactError, match="this machine lacks instructions the artifact uses: avx2"):
        EmulatedModel(artifact, emulator)
    silent = replace(artifact, manifest=replace(artifact.manifest, features=()))
    with EmulatedModel(silent, emulator) as model, pytest.raises(Crash, match=r"signal 4|exit code 132"):
        model.run({"x": np.zeros((1, 3, 17, 16), np.float32)})


@pytest.mark.skipif(bool(missing("aarch64")), reason=missing("aarch64"))
def test_code_for_aarch64_is_verified_and_run(tmp_path: Path) -> None:
    _, done = compiled(network(tmp_path), "aarch64")
    assert done.report.accuracy["verified"]
    assert "cortex-a57" in done.report.accuracy["emulator"]
    result = tvmopt.run(tmp_path / "aarch64.tvmopt")
    assert result.outputs["y"].shape == (1, 10)
    assert "QEMU" in result.notes[0]
    with pytest.raises(InputError, match="times say nothing"):
        tvmopt.run(tmp_path / "aarch64.tvmopt", print_time=True)
    with pytest.raises(ArtifactError, match="this machine is"):
        tvmopt.load(tmp_path / "aarch64.tvmopt")


@pytest.mark.skipif(bool(missing("aarch64")), reason=missing("aarch64"))
@pytest.mark.parametrize("target", ["aarch64", "neoverse-n1", "neoverse-v1"])
def test_bytes_are_multiplied_alike_on_every_processor(tmp_path: Path, target: str) -> None:
    """By `sdot`, `usdot` or arithmetic: the same integers as here."""
    artifact, done = compiled(quantised(tmp_path), target, int8="all")
    assert done.report.accuracy["verified"]
    _, here = compiled(quantised(tmp_path), "cpu", int8="all")
    x = 3 * np.random.default_rng(4).standard_normal((1, 17, 9, 8), dtype=np.float32)
    with EmulatedModel(artifact, find_emulator(artifact.manifest)) as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], here(x), rtol=1e-6)


@pytest.mark.skipif(bool(missing("aarch64")), reason=missing("aarch64"))
def test_pairs_of_bfloat16_are_multiplied_on_arm(tmp_path: Path) -> None:
    _, done = compiled(network(tmp_path), "neoverse-v1", precision="bf16")
    assert done.report.accuracy["verified"]
    assert 1e-5 < done.report.accuracy["max_relative_error"] < 0.02


def test_each_processor_is_one_that_qemu_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "_said", lambda *command: "Available CPUs:\n  cortex-a57\n  neoverse-n1\n  max\n")
    assert emulation._processor("qemu", "neoverse-n1") == "neoverse-n1"
    assert emulation._processor("qemu", "generic") == "cortex-a57"
    assert emulation._processor("qemu", "neoverse-v9") == "max"
