"""Other people's converters and passes: registered, installed, refused when they clash; in a compile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tvmopt import extensions
from tvmopt.errors import InputError, UnsupportedOp

PLUGIN = '''
from tvm import relax
from tvmopt.passes.graph import Rewrite, op_name, rewrite_pass

def twice(bb, inputs, attrs, ctx):
    return relax.op.add(inputs[0], inputs[0])

@rewrite_pass("example.CancelNegations")
class CancelNegations(Rewrite):
    """Cancel two negations in a row."""

    def rule(self, graph, var, value):
        inner = graph.call(value.args[0], "negative") if op_name(value) == "negative" else None
        if inner is None:
            return None
        self.applied(var)
        return inner.args[0]

CONVERTERS = {("com.example", "Twice"): twice}
PASSES = (("tvmopt.ConvertLayout", CancelNegations),)
'''


def model() -> onnx.ModelProto:
    """y = Twice(-(-x))"""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="second"),
        helper.make_node("Twice", ["b"], ["y"], name="double", domain="com.example"),
    ]
    borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 17])] for n in "xy"]
    graph = helper.make_graph(nodes, "g", *borders)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def plugin() -> Iterator[Any]:
    module = SimpleNamespace(__name__="plugin")
    exec(PLUGIN, module.__dict__)
    extensions.register(module)
    yield module
    extensions.unregister("plugin")


def test_refused_without_the_extension() -> None:
    with pytest.raises(UnsupportedOp, match=r"com\.example::Twice") as caught:
        tvmopt.compile(model(), verify=False)
    assert "docs/how-to/add-operator.md" in str(caught.value)


def test_a_registered_extension_takes_part(plugin: Any) -> None:
    compiled = tvmopt.compile(model(), verify=False)
    x = np.random.default_rng(0).standard_normal((2, 17), dtype=np.float32)
    np.testing.assert_array_equal(compiled.model(x), 2 * x)
    done = {(d.stage, d.verdict) for d in compiled.report.decisions}
    assert ("example.CancelNegations", "applied") in done
    assert any("extension plugin took part" in w for w in compiled.report.warnings)
    assert compiled.manifest.options["extensions"] == ["plugin"]


def compiled_with(folder: Path, plugin: str) -> subprocess.CompletedProcess[str]:
    """The command, where what `pip install` leaves of a plugin is in this folder: the module, and the entry point."""
    (folder / "my_plugin.py").write_text(plugin)
    info = folder / "my_plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[tvmopt.extensions]\nmine = my_plugin\n")
    onnx.save(model(), folder / "m.onnx")
    program = str(Path(sys.executable).parent / "tvmopt")
    command = [program, "compile", str(folder / "m.onnx"), "--no-verify", "--json"]
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_an_installed_package_is_found_in_the_child_process(tmp_path: Path) -> None:
    done = compiled_with(tmp_path, PLUGIN)
    assert done.returncode == 0, done.stderr
    assert "the extension mine 1.2 took part" in done.stdout


def test_a_conversion_that_ends_the_process_is_told_as_such(tmp_path: Path) -> None:
    """The process that compiles does not try it apart, and dies of it: then a second one finds out what it died of."""
    done = compiled_with(tmp_path, PLUGIN.replace("return relax", "import os; os.kill(os.getpid(), 11); return relax"))
    assert done.returncode == 2 and "The conversion of this model crashes (SIGSEGV)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (SimpleNamespace(__name__="empty"), "no extension"),
        (SimpleNamespace(__name__="wrong", CONVERTERS={"Twice": abs}), "no extension"),
        (SimpleNamespace(__name__="wrong", PASSES=(abs,)), "no extension"),
    ],
)
def test_what_is_no_extension_is_refused(module: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        extensions.register(module)


def test_two_converters_of_one_operator_are_refused(plugin: Any) -> None:
    extensions.register(plugin, "other")
    try:
        with pytest.raises(InputError, match=r"two extensions convert com\.example::Twice"):
            extensions.converters()
    finally:
        extensions.unregister("other")


def test_an_unknown_place_is_refused_with_the_nearest() -> None:
    extensions.register(SimpleNamespace(__name__="p", PASSES=(("tvmopt.ConvertLayouts", abs),)))
    try:
        with pytest.raises(InputError, match=r"no pass 'tvmopt\.ConvertLayouts'") as caught:
            tvmopt.compile(model().__class__.FromString(_relu()), verify=False)
        assert "tvmopt.ConvertLayout'" in str(caught.value)
    finally:
        extensions.unregister("p")


def _relu() -> bytes:
    borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2])] for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *borders)
    found: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return found


def test_later_passes_stand_last() -> None:
    first = SimpleNamespace(info=SimpleNamespace(name="one"))
    last = SimpleNamespace(info=SimpleNamespace(name="two"))
    extensions.register(SimpleNamespace(__name__="p", PASSES=(("", lambda log: last),)))
    try:
        assert extensions.extended([first], None) == [first, last]
    finally:
        extensions.unregister("p")
