"""`tvmopt.from_torch`: a module as an artifact, with the sizes and ranges that torch.export was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tvmopt[torch]'")
pytest.importorskip("onnxscript", reason="PyTorch's exporter is not installed: pip install 'tvmopt[torch]'")

import tvmopt  # noqa: E402
from tvmopt.errors import InputError, ModelError  # noqa: E402


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.drop = torch.nn.Linear(8, 4), torch.nn.Dropout()

    def forward(self, x: Any, *, scale: Any) -> Any:
        return self.drop(self.last(x)) * scale


def test_a_module_becomes_a_file(tmp_path: Path) -> None:
    module = Two().train()
    batch = torch.export.Dim("rows", min=1, max=6)
    made = tvmopt.from_torch(
        module, (torch.randn(3, 8),), {"scale": torch.randn(4)}, dynamic_shapes={"x": {0: batch}, "scale": None},
        output_names=["y"], output=tmp_path / "two.tvmopt", threads=1,
    )  # fmt: skip
    assert module.training and [i.name for i in made.model.inputs] == ["x", "scale"]
    known = made.model.symbols["rows"]
    assert (known.min, known.max) == (1, 6)
    loaded, module = tvmopt.load(tmp_path / "two.tvmopt"), module.eval()
    for rows in (1, 6):
        x, scale = torch.randn(rows, 8), torch.randn(4)
        expected = module(x, scale=scale).detach().numpy()
        np.testing.assert_allclose(loaded.run({"x": x, "scale": scale})["y"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="compiled for 1 to 6"):
        loaded(torch.randn(7, 8), scale)


def test_what_cannot_be_exported_is_told() -> None:
    class Changes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x + self.calls

    with pytest.raises(ModelError, match=r"changes calls in place"):
        tvmopt.from_torch(Changes(), (torch.randn(3),))

    class Decides(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ModelError, match=r"torch.onnx cannot export it"):
        tvmopt.from_torch(Decides(), (torch.randn(3),))
