"""An artifact for several targets: weights stored once, the best target chosen, the others by name, all refusals."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmopt
from tests.runtime.small import expected, small_model
from tvmopt.errors import ArtifactError, InputError
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime import choice, container, library
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.fleet import Fleet
from tvmopt.runtime.manifest import FLEET
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine

HERE = Machine.load("cpu").without_tiles()


def member(
    name: str, features: tuple[str, ...], weights: list[np.ndarray], arch: str = "", threads: int = 2
) -> Artifact:
    """An artifact of no code, to be read and never run."""
    base = _TEMPLATE[0].manifest
    manifest = replace(base, target=name, features=features, arch=arch or base.arch, threads=threads)
    manifest = replace(manifest, accuracy={"verified": True})
    pairs = [(TensorInfo(f"w{i}", w.shape, str(w.dtype)), w) for i, w in enumerate(weights)]
    return Artifact.build(manifest, f"code for {name}".encode(), pairs)


_TEMPLATE: list[Artifact] = []


@pytest.fixture(autouse=True)
def template(artifact: Artifact) -> None:
    _TEMPLATE[:] = [artifact]


def array(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(dtype)


@pytest.fixture
def three() -> Fleet:
    """One weight of all three (in one of them twice), one of two, one each, and one without elements."""
    every, two = array(0, 17), array(1, 33, 3)
    none = np.empty((0, 4), np.float32)
    return Fleet(
        (
            member("plain", (), [every, array(2, 5), none]),
            member("better", HERE.features[:1], [two, every, array(3, 1, dtype="int8")]),
            member("best", HERE.features[:2], [array(4, 9, 7), every, two, every.reshape(1, 17)]),
        )
    )


@pytest.fixture
def file(three: Fleet, tmp_path: Path) -> Path:
    return three.save(tmp_path / "three.tvmopt")


@pytest.mark.parametrize("mapped", [False, True])
def test_each_target_gets_its_own_weights_back(three: Fleet, file: Path, mapped: bool) -> None:
    for one in three.members:
        found = artifacts.read(file, mapped=mapped, target=one.manifest.target)
        assert found.library == one.library
        for mine, other in zip(found.weights, one.weights, strict=True):
            assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(mine, other)
            assert mine.ctypes.data % 64 == 0 or not mine.nbytes


def test_weights_of_equal_bytes_are_stored_once(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        assert json.loads(archive.read("manifest.json"))["format"] == FLEET
        assert archive.testzip() is None
    del sizes["manifest.json"]
    assert sizes == {
        "library.plain.so": 14, "library.better.so": 15, "library.best.so": 13,
        "weights.plain+better+best.bin": 128, "weights.better+best.bin": 448,
        "weights.plain.bin": 64, "weights.better.bin": 64, "weights.best.bin": 256,
    }  # fmt: skip


def test_the_best_that_this_machine_can_run_is_chosen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for features, name in ((HERE.features, "best"), (HERE.features[:1], "better"), (HERE.features[1:], "plain")):
        machine = replace(HERE, features=features, vector_bits=128)
        monkeypatch.setattr(choice, "detect_host", lambda machine=machine: machine)
        found = artifacts.read(file)
        assert found.manifest.target == artifacts.read_manifest(file).target == name
        assert [m.target for m in found.manifest.fleet] == ["plain", "better", "best"]
        assert [m.target for m in found.manifest.fleet if m.chosen] == [name]
        assert [m.shared for m in found.manifest.fleet] == [128, 576, 576]
        assert all(m.verified for m in found.manifest.fleet)
    assert [m.lacks for m in found.manifest.fleet] == [(), HERE.features[:1], HERE.features[:1]]


def test_among_equals_the_first_is_chosen(tmp_path: Path) -> None:
    same = [member(name, HERE.features[:1], []) for name in ("one", "other")]
    assert artifacts.read(Fleet(tuple(same)).save(tmp_path / "a.tvmopt")).manifest.target == "one"


def test_a_machine_that_can_run_none_is_told_what_each_needs(tmp_path: Path) -> None:
    fleet = Fleet((member("avx10", ("avx10",), []), member("both", (*HERE.features[:1], "sve9", "avx10"), [])))
    file = fleet.save(tmp_path / "none.tvmopt")
    with pytest.raises(ArtifactError) as told:
        tvmopt.load(file)
    assert "can run none of the artifact's targets" in told.value.what
    assert "avx10 needs avx10 (missing: avx10)" in told.value.what
    assert f"both needs {HERE.features[0]} sve9 avx10 (missing: sve9 avx10)" in told.value.what
    assert "--target avx10+both+cpu" in told.value.fix
    shown = tvmopt.inspect(file)
    assert shown.target == "both" and not any(m.chosen for m in shown.fleet)
    with pytest.raises(ArtifactError, match="this machine lacks instructions the artifact uses: avx10"):
        tvmopt.load(file, target="avx10")


def test_another_instruction_set_is_never_chosen(tmp_path: Path) -> None:
    other = "aarch64" if HERE.arch == "x86_64" else "x86_64"
    fleet = Fleet((member("other", ("a", "b", "c"), [], arch=other), member("mine", (), [])))
    manifest = artifacts.read_manifest(fleet.save(tmp_path / "two.tvmopt"))
    assert manifest.target == "mine"
    assert manifest.fleet[0].lacks == (other,)


@pytest.mark.parametrize(
    ("wanted", "cores", "title"),
    [
        (1, 8, "best@1"), (2, 8, "best@2"), (3, 1, "best@8"), (8, 1, "best@8"), (99, 1, "best@8"),
        (0, 1, "best@1"), (0, 2, "best@2"), (0, 4, "best@8"), (0, 64, "best@8"),
    ],
)  # fmt: skip
def test_code_for_as_many_threads_as_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int, cores: int, title: str
) -> None:
    """Or for the next more: its tasks are finer."""
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    monkeypatch.setattr(library, "usable_cores", lambda: cores)
    plans = [(name, HERE.features[:n], t) for name, n in (("base", 1), ("best", 2)) for t in (8, 1, 2)]
    fleet = Fleet(tuple(member(name, needs, [array(0, 9)], threads=t) for name, needs, t in plans))
    file = fleet.save(tmp_path / "plans.tvmopt")
    found = artifacts.read(file, threads=wanted).manifest
    assert (found.title, found.target, f"@{found.threads}") == (title, "best", title[4:])
    assert [m.title for m in found.fleet] == [f"{name}@{t}" for name, _, t in plans]
    assert artifacts.read(file, threads=wanted, target="base").manifest.title == title.replace("best", "base")
    assert artifacts.read(file, threads=wanted, target="best@8").manifest.threads == 8
    if not wanted:
        assert artifacts.read_manifest(file).title == title
        monkeypatch.setenv("TVM_NUM_THREADS", "2")
        assert artifacts.read(file).manifest.title == "best@2"


def test_a_name_that_is_not_there(file: Path) -> None:
    with pytest.raises(InputError, match=r"no code for 'bset'(.|\n)*plain, better, best"):
        artifacts.read(file, target="bset")


def test_an_artifact_of_one_target_has_no_fleet(artifact: Artifact, artifact_file: Path) -> None:
    assert artifacts.read_manifest(artifact_file).fleet == ()
    assert Fleet.read(artifact_file) is None
    assert artifacts.read(artifact_file, target=artifact.manifest.target).manifest == artifact.manifest
    with pytest.raises(InputError, match="no code for 'other'"):
        tvmopt.load(artifact_file, target="other")


def test_the_same_members_give_the_same_bytes_also_when_they_were_read(
    three: Fleet, file: Path, tmp_path: Path
) -> None:
    first = file.read_bytes()
    assert three.save(tmp_path / "again.tvmopt").read_bytes() == first
    read = Fleet.read(file)
    assert read is not None and read.save(tmp_path / "copy.tvmopt").read_bytes() == first


def test_one_target_of_a_fleet_can_be_saved_alone(three: Fleet, file: Path, tmp_path: Path) -> None:
    alone = artifacts.read(file, target="best").save(tmp_path / "best.tvmopt")
    assert alone.read_bytes() == three.members[2].save(tmp_path / "made.tvmopt").read_bytes()


# -- damage ----------------------------------------------------------------------------------------------------------


def rewritten(file: Path, path: Path, **changes: object) -> Path:
    """The file with fields of its first manifest changed, or whole members replaced (None leaves one out)."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    raw = json.loads(members["manifest.json"])
    for name, value in changes.items():
        if "." in name:
            members = {k: v for k, v in {**members, name: value}.items() if v is not None}
        elif name in raw:
            raw[name] = value
        else:
            raw["fleet"][0][name] = value
    members["manifest.json"] = json.dumps(raw).encode()
    with path.open("wb") as out:
        container.write(out, {name: [data] for name, data in members.items()})
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights.plain.bin": None}, "weights.plain.bin is missing"),
        ({"weights.better.bin": bytes(128)}, "weights.better.bin is missing or has another size"),
        ({"library.best.so": None}, "library.best.so is missing"),
        ({"library.more.so": b"x"}, "library.more.so is missing or has another size"),
        ({"weights.bin": b""}, "weights.bin is missing"),
        ({"weights.plain+better+best.bin": bytes(128)}, "does not match the manifest's hash"),
        ({"library.best.so": b"code for worse"[:13]}, "does not match the manifest's hash"),
        ({"target": "best"}, "two of one name"),
        ({"fleet": []}, "the targets of its fleet are none"),
        ({"fleet": 3}, "damaged"),
        ({"fleet": [3]}, "damaged"),
        ({"format": 7}, "format version 7"),
        ({"weights": []}, "has another size"),
        ({"parts": {}}, "missing or has another size"),
    ],
)
def test_a_fleet_that_lies(file: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        artifacts.read(rewritten(file, tmp_path / "changed.tvmopt", **changes))


def test_a_weight_that_lies_in_two_members(file: Path, tmp_path: Path) -> None:
    """Mapped, each member is memory of its own."""
    weights = [
        {"name": "w0", "shape": [17], "dtype": "float32", "offset": 64},  # the first member has 128 bytes
        {"name": "w1", "shape": [16], "dtype": "float32", "offset": 128},
    ]
    assert artifacts.read(rewritten(file, tmp_path / "a.tvmopt", weights=weights[1:]), target="plain")
    with pytest.raises(ArtifactError, match="has another size than the manifest says"):
        artifacts.read(rewritten(file, tmp_path / "b.tvmopt", weights=weights), mapped=True, target="plain")


def test_only_the_members_of_the_chosen_target_are_read(file: Path, tmp_path: Path) -> None:
    """Damage elsewhere does no harm, and is found by who needs it."""
    damaged = rewritten(file, tmp_path / "damaged.tvmopt", **{"weights.plain.bin": b"\1" * 64})
    artifacts.read(damaged, target="best")
    with pytest.raises(ArtifactError, match=r"weights.plain.bin does not match"):
        artifacts.read(damaged, target="plain")


# -- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> tvmopt.Compiled:
    path = tmp_path_factory.mktemp("levels") / "small.onnx"
    onnx.save(small_model(), str(path))
    return tvmopt.compile(path, target=TARGETS, output=path.with_suffix(".tvmopt"))


TARGETS = "x86-64-v2+x86-64-v3" if HERE.arch == "x86_64" else "aarch64+cortex-a76"
NAMES = TARGETS.split("+")


def test_every_target_runs_and_is_right(levels: tvmopt.Compiled, x: np.ndarray) -> None:
    assert levels.path is not None and [r.target for r in levels.reports] == NAMES
    assert [r.accuracy["verified"] for r in levels.reports] == [True, True]
    for name in NAMES:
        with tvmopt.load(levels.path, target=name) as model:
            assert model.manifest.target == name
            np.testing.assert_allclose(model(x), expected(0, x), rtol=1e-4, atol=1e-5)
    with tvmopt.load(levels.path, threads=8) as model:
        assert model.threads == 8 and model.manifest.threads > 1
        np.testing.assert_array_equal(model(x), levels(x))
    with tvmopt.load(levels.path, mapped=True) as model:
        assert model.manifest.target == NAMES[1] == levels.manifest.target
        np.testing.assert_array_equal(model(x), levels(x))


def test_run_tells_what_was_there_and_what_was_taken(levels: tvmopt.Compiled) -> None:
    assert levels.path is not None
    result = tvmopt.run(levels.path)
    assert (result.target, result.fleet) == (NAMES[1], tuple(NAMES))
    assert f"is for {', '.join(NAMES)}; the code for {NAMES[1]} was run" in result.notes[0]
    assert tvmopt.run(levels.path, target=NAMES[0]).target == NAMES[0]
    with pytest.raises(InputError, match="the model was loaded for"):
        tvmopt.run(tvmopt.load(levels.path), target=NAMES[0])


def test_several_numbers_of_threads(x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the code and the weights of a compile for it alone, and the same numbers with any number of threads."""
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    options = {"target": NAMES[0], "verify": False}
    made = tvmopt.compile(small_model(), threads=(1, 2), output=tmp_path / "both.tvmopt", **options)
    assert [r.target for r in made.reports] == [NAMES[0]] * 2
    for threads in (1, 2):
        alone = tvmopt.compile(small_model(), threads=threads, **options).artifact
        found = artifacts.read(tmp_path / "both.tvmopt", threads=threads)
        assert found.library == alone.library
        for mine, other in zip(found.weights, alone.weights, strict=True):
            np.testing.assert_array_equal(mine, other)
        results = []
        for used in (1, 2, 8, 64):
            with tvmopt.load(tmp_path / "both.tvmopt", threads=used, target=f"{NAMES[0]}@{threads}") as model:
                assert (model.threads, model.manifest.threads) == (used, threads)
                results.append(model(x))
        assert all(np.array_equal(results[0], one) for one in results[1:])
    for wrong in ((), (2, 2)):
        with pytest.raises(InputError, match="the numbers of threads are"):
            tvmopt.compile(small_model(), threads=wrong)
    with pytest.raises(InputError, match=r"threads is 0"):
        tvmopt.compile(small_model(), threads=(1, 0))
    with pytest.raises(InputError, match="threads are of CPUs"):
        tvmopt.compile(small_model(), target="cuda", threads=(1, 2))


def test_each_target_is_explained(levels: tvmopt.Compiled) -> None:
    assert levels.path is not None
    assert tvmopt.explain(levels.path).target == NAMES[1]
    assert tvmopt.explain(levels.path, target=NAMES[0]).target == NAMES[0]


def test_a_stripped_fleet_is_refitted(levels: tvmopt.Compiled, tmp_path: Path, x: np.ndarray) -> None:
    stripped = levels.save(tmp_path / "stripped.tvmopt", strip_weights=True)
    with pytest.raises(ArtifactError, match=r"no weights(.|\n)*tvmopt refit"):
        tvmopt.load(stripped)
    other = tmp_path / "other.onnx"
    onnx.save(small_model(seed=5), str(other))
    fitted = tvmopt.refit(stripped, other, output=tmp_path / "fitted.tvmopt")
    assert [r.accuracy["verified"] for r in fitted.reports] == [True, True]
    for name in NAMES:
        y = tvmopt.load(tmp_path / "fitted.tvmopt", target=name)(x)
        np.testing.assert_allclose(y, expected(5, x), rtol=1e-4, atol=1e-5)
