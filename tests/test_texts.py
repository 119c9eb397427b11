"""What comes from a foreign model and reaches a terminal is shown, never obeyed."""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tvmopt import cli
from tvmopt.cli import common
from tvmopt.errors import ModelError, collect

NAME = "\x1b]0;owned\x07\x1b[31m[red]x[/red][/]\u202e\nnew"


def obeyed(text: str) -> set[str]:
    return set(text) & {"\x1b", "\x07", "\u202e", "\r", "\x9b"}


def test_errors() -> None:
    told = str(collect([ModelError(NAME, where=NAME, fix=NAME), ModelError(f"second {NAME}")]))
    assert not obeyed(told)
    assert "\\x1b]0;owned\\x07" in told and "where: \\x1b" in told and "\\nnew" in told


def test_tables_on_a_terminal_and_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        console = common.Terminal(file=stream, force_terminal=terminal, color_system=None, width=200, highlight=False)
        monkeypatch.setattr(common, "out", console)
        common.table((NAME, "n"), [(NAME, 1)], title=NAME)
        console.print(f"[bold]{common.escape(NAME)}[/]")
        told = stream.getvalue()
        assert not obeyed(told.replace("\x1b[1m", "").replace("\x1b[0m", "")), told
        assert told.count("[red]x[/red][/]\\u202e\\nnew") == 3, told


@pytest.mark.parametrize("operator", ["Relu", f"Relu{NAME}"])
def test_commands(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = [helper.make_tensor_value_info(name + NAME, TensorProto.FLOAT, [4]) for name in "xy"]
    node = helper.make_node(operator, ["x" + NAME], ["y" + NAME], name="[/]" + NAME)
    graph = helper.make_graph([node], "g" + NAME, value[:1], value[1:])
    path = tmp_path / "model\x1b[31m[red].onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    for arguments in (["inspect", str(path)], ["explain", str(path)], ["inspect", f"{path}{NAME}"]):
        cli.main(arguments)
        told = capsys.readouterr()
        assert not obeyed(told.out + told.err), (arguments, told)
