"""`--target a+b`, from end to end: one file, the right code on this machine and on older processors, every refusal."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmopt as package
from tests.cli.command import COMMAND, tvmopt
from tests.decoders.small import greedy, small_decoder
from tests.runtime.small import expected, small_model
from tests.toolchain.test_emulation import PROCESSORS, missing
from tvmopt import api
from tvmopt.runtime.model import load
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch

pytestmark = pytest.mark.skipif(host_arch() != "x86_64", reason="compiles for levels of x86-64, and runs them")
HERE = Machine.load("cpu").features
BEST = "x86-64-v4" if "avx512vl" in HERE else "x86-64-v3" if "avx2" in HERE else "x86-64-v2"
LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    onnx.save(small_model(), str(folder / "small.onnx"))
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 9)).astype("float32")
    np.save(folder / "x.npy", x)
    done = tvmopt("compile", "small.onnx", "--target", "+".join(LEVELS), "-o", "fleet.tvmopt", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    for name in LEVELS:
        assert f"small.onnx for {name}, fp32" in done.stdout
    assert done.stdout.count("agrees with float64 and onnxruntime") == LEVELS.index(BEST) + 1
    assert done.stdout.count("not verified: this machine lacks") == 2 - LEVELS.index(BEST)
    chosen = [line.split()[0] for line in done.stdout.splitlines() if " chosen " in line]
    assert chosen == [BEST]
    return folder


def test_run_and_inspect_tell_the_choice(folder: Path, tmp_path: Path) -> None:
    done = tvmopt("run", "fleet.tvmopt", "-i", "x=x.npy", "-o", tmp_path / "y.npy", cwd=folder)
    assert done.returncode == 0
    assert f"fleet.tvmopt is for {', '.join(LEVELS)}; the code for {BEST} was run" in done.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), expected(0, np.load(folder / "x.npy")), rtol=1e-4, atol=1e-5
    )
    found = json.loads(tvmopt("run", "fleet.tvmopt", "--json", "--target", "x86-64-v2", cwd=folder).stdout)
    assert (found["target"], found["fleet"]) == ("x86-64-v2", LEVELS)
    shown = json.loads(tvmopt("inspect", "fleet.tvmopt", "--json", cwd=folder).stdout)
    assert shown["target"] == BEST
    assert {m["target"]: m["chosen"] for m in shown["fleet"]} == {name: name == BEST for name in LEVELS}
    assert [m["target"] for m in shown["fleet"] if not m["lacks"]] == LEVELS[: LEVELS.index(BEST) + 1]
    table = tvmopt("inspect", "fleet.tvmopt", "--target", "x86-64-v2", cwd=folder).stdout
    assert "x86-64-v2 (llvm, x86-64-v2)" in table and "targets of the file" in table


def test_each_target_is_taken_from_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was compiled alone; what no machine here verified is not kept."""
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TVMOPT_ARTIFACTS_MB", "64")
    words = ["compile", folder / "small.onnx", "--threads", "2", "--json", "-o", tmp_path / "a.tvmopt", "--target"]
    assert tvmopt(*words, "x86-64-v2").returncode == 0
    files = []
    for cached in ([True, False], [True, True]):
        done = json.loads(tvmopt(*words, "x86-64-v2+x86-64-v3").stdout)
        assert [r["cached"] for r in done["reports"]] == (cached if BEST != "x86-64-v2" else [True, False])
        assert done["report"]["target"] == min(BEST, "x86-64-v3")
        files.append((tmp_path / "a.tvmopt").read_bytes())
    assert files[0] == files[1]
    text = tvmopt(*[word for word in words if word != "--json"], "x86-64-v2+x86-64-v3").stdout
    assert "taken from the cache of an earlier compile" in text


def test_code_for_several_numbers_of_threads(folder: Path, tmp_path: Path) -> None:
    words = ("small.onnx", "--target", "x86-64-v2", "--threads", "1+2", "--no-verify", "-o", tmp_path / "t.tvmopt")
    done = tvmopt("compile", *words, cwd=folder)
    assert done.returncode == 0 and "small.onnx for x86-64-v2@2, fp32" in done.stdout
    for threads in (1, 2):
        found = tvmopt("run", tmp_path / "t.tvmopt", "--threads", threads)
        assert f"is for x86-64-v2@1, x86-64-v2@2; the code for x86-64-v2@{threads} was run" in found.stderr


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["compile", "small.onnx", "--target", "x86-64-v3+cuda"], "'cuda' is a GPU"),
        (["compile", "small.onnx", "--target", "x86-64-v3+x86-64-v3"], "is there twice"),
        (["compile", "small.onnx", "--target", "x86-64-v3+x86-46-v4"], "did you mean 'x86-64-v4'"),
        (["compile", "small.onnx", "--target", "x86-64-v2+x86-64-v3", "--dump-all", "d"], "dumps are of one target"),
        (["compile", "small.onnx", "--target", "x86-64-v3+x86-64-v4", "--precision", "bf16"], "bf16"),
        (["compile", "small.onnx", "--threads", "1+2+2"], "give each once"),
        (["compile", "small.onnx", "--threads", "0"], "--threads is '0'"),
        (["compile", "small.onnx", "--threads", "1+"], "--threads is '1+'"),
        (["compile", "small.onnx", "--threads", "4000"], "1 to 1024"),
        (["compile", "none.onnx", "--target", "x86-64-v3+x86-64-v4"], "target x86-64-v3"),
        (["run", folder / "fleet.tvmopt", "--target", "x86-64-v5"], f"it is for {', '.join(LEVELS)}"),
        (["tune", "small.onnx", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
        (["report", "small.onnx", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
        (["run", "small.onnx", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
        (["profile", "small.onnx", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
        (["explain", "small.onnx", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
        (["inspect", "small.onnx", "--html", "a.html", "--target", "x86-64-v3+x86-64-v4"], "only a compile"),
    ):
        shutil.copy(folder / "small.onnx", tmp_path / "small.onnx")
        done = tvmopt(*arguments, cwd=tmp_path)
        assert done.returncode == 2, (arguments, done)
        assert words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(p.name for p in tmp_path.iterdir()) == ["small.onnx"]


@pytest.mark.skipif(bool(missing("x86_64")), reason=missing("x86_64"))
@pytest.mark.parametrize(("target", "processor"), PROCESSORS.items())
def test_older_processors_take_their_own_code(folder: Path, tmp_path: Path, target: str, processor: str) -> None:
    """The instruction CPUID is emulated; the kernel's list is this machine's."""
    emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64") or ""
    words = ["run", "fleet.tvmopt", "-i", "x=x.npy", "-o", str(tmp_path / "y.npy"), "--json"]
    done = subprocess.run(
        [emulator, "-cpu", processor, *COMMAND, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["target"] == target
    x = np.load(folder / "x.npy")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(0, x), rtol=1e-4, atol=1e-5)


def test_a_decoder_of_open_sizes(tmp_path: Path) -> None:
    model = small_decoder("plain")
    api.compile(model, target="x86-64-v2+x86-64-v3", output=tmp_path / "d.tvmopt", verify=False)
    prompt = [1, 5, 9, 22]
    for name in ("x86-64-v2", "x86-64-v3"):
        ours = list(load(tmp_path / "d.tvmopt", target=name).decoder().generate(prompt, max_new_tokens=12))
        assert ours == greedy(model, prompt, len(ours))


def test_the_drop_in_session_takes_it(folder: Path) -> None:
    from tvmopt import onnxruntime

    x = np.load(folder / "x.npy")
    session = onnxruntime.InferenceSession(str(folder / "fleet.tvmopt"))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(0, x), rtol=1e-4, atol=1e-5)


def test_refit_of_a_level_that_this_machine_has_the_name_of(folder: Path, tmp_path: Path) -> None:
    """`x86-64-v4` is what a machine of that level is called here, too, with the more that it has."""
    made = package.compile(folder / "small.onnx", target=BEST, output=tmp_path / "one.tvmopt", verify=False)
    fitted = package.refit(tmp_path / "one.tvmopt", folder / "small.onnx", verify=False)
    assert fitted.artifact.library == made.artifact.library
