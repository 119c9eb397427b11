"""The front door of the package: names, types, one-line representations, errors in Python's words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
import tvmopt.targets
from tests.runtime.small import small_model
from tvmopt.cli import COMMANDS
from tvmopt.errors import InputError, TargetError, in_python
from tvmopt.targets import Machine


@pytest.fixture(scope="module")
def compiled() -> tvmopt.Compiled:
    return tvmopt.compile(small_model(), threads=1)


def test_every_word_of_the_command_line_is_a_name_here() -> None:
    words = {*COMMANDS} - {"cache", "logs", "nightly", "targets", "doctor"}
    words = words - {"report"} | {"report_page"}  # `tvmopt.report` is the module of what a compile did
    assert words <= {*dir(tvmopt)}
    assert sorted(tvmopt.__all__) == dir(tvmopt)
    for name in dir(tvmopt):
        assert getattr(tvmopt, name) is not None
    assert callable(tvmopt.tune) and callable(tvmopt.bench)


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("tvmopt").joinpath("py.typed").is_file()
    tree = ast.parse(Path(tvmopt.__file__).read_text())
    (typed,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    names = {a.asname or a.name for n in typed.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert names == {*tvmopt.__all__} - {"__version__"}


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, tvmopt; dir(tvmopt); assert not {'tvm', 'numpy', 'onnx'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_representations_are_lines(compiled: tvmopt.Compiled) -> None:
    for value in (compiled, compiled.report, compiled.model):
        assert len(repr(value)) < 200 and "\n" not in repr(value)
    assert "not verified" not in repr(compiled) and "kernels" in repr(compiled.report)
    assert len(repr(compiled.artifact)) < 200_000  # its manifest, without code and weights


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model, file: tvmopt.load(None), "from a path, not from NoneType"),
        (lambda model, file: tvmopt.load(b"x.tvmopt"), "from a path, not from bytes"),
        (lambda model, file: tvmopt.load(file, threads="2"), "threads is '2'"),
        (lambda model, file: tvmopt.load(file, threads=True), "threads is True"),
        (lambda model, file: tvmopt.load(file, threads=2.0), "threads is 2.0"),
        (lambda model, file: tvmopt.run(file, seed=-1), "the seed is -1"),
        (lambda model, file: tvmopt.run(file, seed=1.5), "the seed is 1.5"),
        (lambda model, file: tvmopt.run(file, duration=float("inf")), "inf is no time to measure for"),
        (lambda model, file: tvmopt.run(file, output=f"{file}.npz/"), "the output is a folder"),
        (lambda model, file: tvmopt.inspect(None), "not a path but NoneType"),
        (lambda model, file: tvmopt.compile(None), "not NoneType"),
        (lambda model, file: tvmopt.compile(model, threads=2.5), "threads is 2.5"),
        (lambda model, file: tvmopt.compile(model, output=5), "an output is a path, not int"),
        (lambda model, file: tvmopt.compile(model, tolerance=float("nan")), "nan is not a tolerance"),
        (lambda model, file: tvmopt.compile(model, tolerance=float("inf")), "inf is not a tolerance"),
        (lambda model, file: tvmopt.refit(file, model, tolerance=float("nan")), "nan is not a tolerance"),
        (lambda model, file: tvmopt.refit(file, None), "not NoneType"),
        (lambda model, file: tvmopt.compare(None), "a model is a path, not NoneType"),
        (lambda model, file: tvmopt.quantize(None, "o.onnx", data="x.npz"), "a model is a path, not NoneType"),
        (lambda model, file: tvmopt.load(file, cores=100_000), "100000"),
    ],
)
def test_arguments_that_are_none(
    call: Callable[[object, object], object], words: str, compiled: tvmopt.Compiled, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        call(small_model(), compiled.save(tmp_path / "small.tvmopt"))


def test_a_compiled_model_is_called(compiled: tvmopt.Compiled) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)
    np.testing.assert_array_equal(compiled(x), compiled.model(x))
    np.testing.assert_array_equal(compiled(x=x), compiled.model(x))


def test_a_list_is_no_dictionary(compiled: tvmopt.Compiled) -> None:
    x = np.zeros((1, 3, 9, 9), np.float32)
    with pytest.raises(InputError, match=r"run takes a dictionary, not a list(.|\n)*model\(x\)"):
        compiled.model.run([x])
    with pytest.raises(InputError, match=r"inputs is a list(.|\n)*by name"):
        tvmopt.run(compiled.model, [x])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_tensor_of_torch_of_another_type(compiled: tvmopt.Compiled, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=rf"the dtype is {dtype}, the model takes float32(.|\n)*torch.float32"):
        compiled.model(torch.zeros(1, 3, 9, 9, dtype=getattr(torch, dtype)))


def test_advice_about_a_shape_can_be_followed() -> None:
    fixed = tvmopt.compile(small_model(), threads=1, verify=False)
    with pytest.raises(InputError, match="export the model with an open dimension"):
        fixed(np.zeros((2, 3, 9, 9), np.float32))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "open", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bound = tvmopt.compile(model, shape={"x": (1, 4)}, threads=1, verify=False)
    with pytest.raises(InputError, match=r"compile the model with shape=\{'x': \(2, 4\)\}"):
        bound(np.zeros((2, 4), np.float32))
    assert tvmopt.compile(model, shape={"x": (2, 4)}, threads=1, verify=False)(np.zeros((2, 4), np.float32)).shape == (
        2,
        4,
    )


def test_messages_in_python_name_arguments() -> None:
    assert in_python("--precision fp32, or bf16") == "precision='fp32', or bf16"
    assert (
        in_python("compile it: tvmopt compile m.onnx --target cpu") == "compile it: tvmopt compile m.onnx --target cpu"
    )
    assert (
        in_python("give --tolerance if the difference does no harm") == "give tolerance if the difference does no harm"
    )
    with pytest.raises(InputError) as told:
        tvmopt.compile(small_model(), precision="tf32")
    assert "precision='" in str(told.value) and "--" not in str(told.value)


@pytest.mark.parametrize(("text", "first"), [("H100", "nvidia-h100"), ("b200", "nvidia-b200"), ("znver", "znver5")])
def test_a_target_that_is_part_of_a_name(text: str, first: str) -> None:
    with pytest.raises(TargetError) as told:
        Machine.load(text)
    names = [n for n in tvmopt.targets.names() if text.lower() in n]
    assert f"did you mean {names[0]!r}" in told.value.what and first in names


def test_a_typed_model_is_saved_and_loaded(compiled: tvmopt.Compiled, tmp_path: Path) -> None:
    path = compiled.save(tmp_path / "m.tvmopt")
    assert isinstance(tvmopt.load(path), tvmopt.Model)
