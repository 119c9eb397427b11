"""Several targets in one word, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvmopt.errors import TargetError
from tvmopt.targets import Machine
from tvmopt.targets.fleet import MOST, machines


def test_names_are_taken_in_order(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("kind = 'llvm'\nmcpu = 'x86-64-v3'\n")
    found = machines(f"x86-64-v4 + {mine}+x86-64-v2")
    assert [m.name for m in found] == ["x86-64-v4", "mine", "x86-64-v2"]
    assert machines("x86-64-v3") == (Machine.load("x86-64-v3"),)
    assert machines(found[0]) == (found[0],)


def test_a_file_whose_name_has_a_plus_is_one_target(tmp_path: Path) -> None:
    mine = tmp_path / "a+b.toml"
    mine.write_text("kind = 'llvm'\nmcpu = 'x86-64-v3'\n")
    assert [m.name for m in machines(mine)] == ["a+b"]
    with pytest.raises(TargetError):
        machines(f"x86-64-v3+{mine}")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x86-64-v3+", "a name is missing"),
        ("+x86-64-v3", "a name is missing"),
        ("x86-64-v3++x86-64-v4", "a name is missing"),
        ("+", "a name is missing"),
        ("x86-64-v3+x86-64-v9", "unknown target 'x86-64-v9', did you mean"),
        ("x86-64-v3+cuda", "'cuda' is a GPU"),
        ("sm_90+x86-64-v3", "'sm_90' is a GPU"),
        ("x86-64-v3+x86-64-v4+x86-64-v3", "'x86-64-v3' is there twice"),
        ("sapphirerapids+sapphire-rapids", r"twice \(sapphirerapids and sapphire-rapids\)"),
        (f"{Machine.load('cpu').name}+cpu", "is there twice"),
    ],
)
def test_what_is_no_fleet(target: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        machines(target)


def test_names_that_cannot_name_a_part_of_a_file_and_too_many(tmp_path: Path) -> None:
    odd = tmp_path / "odd.toml"
    odd.write_text("name = '../x'\nkind = 'llvm'\nmcpu = 'x86-64-v3'\n")
    with pytest.raises(TargetError, match="cannot name a part of a file"):
        machines(f"x86-64-v3+{odd}")
    many = []
    for number in range(MOST + 1):
        many.append(tmp_path / f"m{number}.toml")
        many[-1].write_text("kind = 'llvm'\nmcpu = 'x86-64-v3'\n")
    assert len(machines("+".join(map(str, many[:-1])))) == MOST
    with pytest.raises(TargetError, match=f"{MOST} at most"):
        machines("+".join(map(str, many)))


def test_only_a_compile_takes_several() -> None:
    with pytest.raises(TargetError, match="several targets, and only a compile"):
        Machine.load("x86-64-v3+x86-64-v4")
