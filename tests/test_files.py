"""Files appear whole or not at all; what cannot be written is refused before the work, by every command."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.runtime.small import small_model
from tvmopt.errors import InputError
from tvmopt.files import atomic_write, check_writable, save_arrays, write_text


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_text(path, "whole")
    with pytest.raises(ValueError, match="half"), atomic_write(path) as file:
        file.write(b"new")
        raise ValueError("half way")
    assert path.read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_what_a_link_points_to_is_replaced_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to("there/page.html")
    write_text(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "there" / "page.html").read_text() == "text"


def test_a_device_is_written_as_it_is() -> None:
    write_text("/dev/null", "text")
    assert not Path("/dev/null").is_file()
    with atomic_write("/dev/null") as file:
        save_arrays(file, {"x": np.zeros(9)})


def test_a_full_disk_is_told() -> None:
    for data in ({"x": np.zeros(9)}, {"x": np.zeros(1 << 20)}):
        with pytest.raises(InputError, match="No space left"), atomic_write("/dev/full") as file:
            save_arrays(file, data)


def test_every_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    check_writable(None, "", tmp_path / "new.html", "/dev/null")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError) as caught:
        check_writable(tmp_path, tmp_path / "missing" / "page.html", "/proc/page.html", f"{tmp_path}/new.html/")
    told = [caught.value, *caught.value.others]
    paths = [str(tmp_path), f"{tmp_path}/missing/page.html", "/proc/page.html", f"{tmp_path}/new.html/"]
    assert [error.where for error in told] == paths
    assert [error.what.split(":")[0] for error in told] == [
        "the output is a folder.", "the folder of the output does not exist.", "cannot write the file",
        "the output is a folder.",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="Permission denied"):
        check_writable(tmp_path / "page.html")


@pytest.mark.parametrize("names", [("file", "allow_pickle"), ("a/b", "c:0"), ()])
def test_arrays_of_any_name_come_back(names: tuple[str, ...], tmp_path: Path) -> None:
    arrays = {name: np.arange(i + 1, dtype=np.float16) for i, name in enumerate(names)}
    save_arrays(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        assert set(file.files) == set(names)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name], array)


@pytest.mark.parametrize(
    "words",
    [
        "compile M -o OUT",
        "inspect M --html OUT",
        "compare M --html OUT",
        "compare M --repro OUT",
        "profile M --html OUT",
        "profile M --svg OUT",
        "profile M --trace OUT",
        "bench M --html OUT",
        "bench M --markdown OUT",
        "bench M --export-times OUT",
        "bench M --save . --export-profile OUT",
        "bench M --save M",
        "bench M --load OUT",
        "bench M --export-profile x.json",
        "surgeon fold M -o OUT",
        "surgeon sanitize M -o OUT",
        "surgeon reduce M -o OUT",
    ],
)
def test_no_command_starts_work_that_it_cannot_write(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(small_model(), str(tmp_path / "m.onnx"))
    started: list[object] = []
    for where in ("tvmopt.children.call", "tvmopt.compiler.driver.compile_model", "tvmopt.bench.run.bench"):
        monkeypatch.setattr(where, lambda *_, **__: started.append(1))
    for bad in ("missing/out.x", "."):
        arguments = [{"M": "m.onnx", "OUT": bad}.get(word, word) for word in words.split()]
        if arguments[-2:] == ["--load", "."]:
            continue
        done = tvmopt(*arguments, cwd=tmp_path)
        assert done.returncode == 2, done
        assert done.stderr.startswith("InputError: ")
        assert done.stdout == ""
    assert not started
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("word", ["run", "inspect", "nightly", "logs"])
def test_a_pipe_in_place_of_a_file_is_refused(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To open it would hang for ever."""
    from tvmopt import cli

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = ["logs", "import", "--store", str(tmp_path / "db")] if word == "logs" else [word]
    assert cli.main([*arguments, str(pipe)]) == 2
    assert "not a plain file" in capsys.readouterr().err
