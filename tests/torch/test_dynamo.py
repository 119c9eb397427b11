"""`torch.compile(backend="tvmopt")` beside PyTorch itself: equal results, open sizes, what it leaves to PyTorch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tvmopt[torch]'")
pytest.importorskip("onnxscript", reason="PyTorch's exporter is not installed: pip install 'tvmopt[torch]'")

import tvmopt  # noqa: E402
import tvmopt.torch.dynamo as ours  # noqa: E402
from tvmopt.cache import FOLDER  # noqa: E402
from tvmopt.errors import InputError, MissingDependency, ModelError  # noqa: E402

QUICK = {"verify": False, "threads": 1, "quiet": True}


class Net(torch.nn.Module):
    """A convolution, a normalisation with buffers, a product; what it returns is of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> dict[str, Any]:
        y = self.last(self.norm(self.conv(x)).relu().mean((2, 3)))
        return {"y": y, "again": y, "rows": x.shape[0], "twice": 2 * x.shape[0] + 1, "none": None, "x": x}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("cache")))
        patch.setattr("tvmopt.api.compile_isolated", tvmopt.compile)  # as quick as it gets; sessions test the child
        yield


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=ours.backend, options={**QUICK, **options})


def test_results_sizes_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = []
    original = ours.export
    monkeypatch.setattr(ours, "export", lambda *a, **k: exports.append(a) or original(*a, **k))
    net = Net().eval()
    fast = compiled(net)
    with torch.inference_mode():
        for rows in (2, 3, 5, 9):
            x = torch.randn(rows, 3, 9, 9)
            ours_, theirs = fast(x), net(x)
            torch.testing.assert_close(ours_["y"], theirs["y"], rtol=1e-4, atol=1e-5)
            assert ours_["again"] is ours_["y"] and ours_["x"] is x and ours_["none"] is None
            assert (ours_["rows"], ours_["twice"]) == (rows, 2 * rows + 1)
        assert len(exports) == 2, "one of two rows, then one of any number of rows"
        x = torch.randn(5, 9, 9, 3).permute(0, 3, 1, 2)
        torch.testing.assert_close(fast(x)["y"], net(x)["y"], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        net.last.weight.mul_(3)
        net.last.bias = torch.nn.Parameter(torch.ones(4))
    with torch.inference_mode():
        torch.testing.assert_close(fast(x)["y"], net(x)["y"], rtol=1e-4, atol=1e-5)


def test_graph_breaks_and_numbers() -> None:
    def double(x: Any, n: int) -> Any:
        y = torch.relu(x) * n
        torch._dynamo.graph_break()
        return y.sum(-1) if float(y[0, 0]) >= 0 else y

    with torch.inference_mode():
        fast = compiled(double)
        for n in (2, 3, 4):
            x = torch.randn(4, 7)
            torch.testing.assert_close(fast(x, n), double(x, n))


@pytest.mark.parametrize(
    ("make", "grad", "told"),
    [
        (lambda: Net().eval(), True, "gradients are wanted here"),
        (lambda: Net().train(), False, "in place"),
        (lambda: torch.nn.Dropout(), False, ""),
        (lambda: lambda x: torch.linalg.eigvalsh(x), False, ""),
    ],
    ids=["gradients", "buffers that change", "random numbers", "no operator for it"],
)
def test_what_stays_in_pytorch(make: Any, grad: bool, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(2, 3, 9, 9)
    with torch.set_grad_enabled(grad):
        fast = compiled(make(), quiet=False)
        torch.manual_seed(1)
        found = fast(x)
        torch.manual_seed(1)
        torch._dynamo.reset()
        expected = make()
        said = capsys.readouterr().err
        assert "a graph runs in PyTorch" in said and told in said
        if not isinstance(expected, Net):
            torch.manual_seed(1)
            torch.testing.assert_close(found, expected(x))
        elif grad:
            assert found["y"].requires_grad
        with pytest.raises(Exception) as raised:
            compiled(make(), fallback=False)(x)
        assert isinstance(raised.value, ModelError) or "ModelError" in str(raised.value), raised.value
        assert told in str(raised.value)


def test_training_changes_its_buffers() -> None:
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x)["y"], twin(x)["y"])
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "uint8", "float16", "bfloat16"])
def test_tensors_are_not_copied(dtype: str) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    given = ours._array(torch, tensor)
    if dtype == "bfloat16":
        import ml_dtypes

        assert given.data_ptr() == tensor.data_ptr()
        given = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    back = ours._tensor(torch, given)
    assert back.data_ptr() == tensor.data_ptr() and back.dtype == tensor.dtype
    torch.testing.assert_close(back, tensor)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="presicion"):
        ours.backend(None, [], options={"presicion": "bf16"})


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependency, match="onnxscript is not installed"):
        ours.backend(None, [])


def test_the_entry_point_is_found_by_name(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    group = "torch_dynamo_backends"
    ((name, value),) = project["entry-points"][group].items()
    assert EntryPoint(name, value, group).load() is ours.backend
    told = tmp_path / "somewhere-1.0.dist-info"  # the environment's own may be older than the file
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import torch
fast = torch.compile(lambda x: torch.relu(x) + 1, backend="tvmopt", options={QUICK!r})
with torch.inference_mode():
    print(fast(torch.tensor([-1.0, 2.0])).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "[1.0, 3.0]", done.stderr[-2000:]


def test_indices_out_of_range_are_errors() -> None:
    table = torch.nn.Embedding(5, 3).eval()
    with torch.inference_mode():
        fast = compiled(table)
        torch.testing.assert_close(fast(torch.tensor([0, 4])), table(torch.tensor([0, 4])))
        with pytest.raises(InputError):
            fast(torch.tensor([0, 5]))


def test_results_stay_what_they_are() -> None:
    with torch.inference_mode():
        fast = compiled(torch.nn.ReLU())
        kept = [fast(torch.full((3,), float(i))) for i in range(4)]
    np.testing.assert_array_equal([k.numpy()[0] for k in kept], [0, 1, 2, 3])
