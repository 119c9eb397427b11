"""`tvmopt quantize`: the file, the report, the drop that is kept to, and what is refused."""

from __future__ import annotations

import inspect as signatures
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvmopt
from tests.cli.command import tvmopt as command
from tests.importer.onnx_check import run_ort
from tests.quantization.models import network, write
from tvmopt.cli import quantize as cli
from tvmopt.errors import AccuracyError, InputError, MissingDependency, ModelError
from tvmopt.quantization.quantize import _least, quantize


def deviation(folder: Path, made: Path) -> float:
    """The largest error of the quantised model on one sample, of the largest value."""
    x = {"x": np.load(folder / "data.npz")["x"][:1]}
    exact, found = run_ort(onnx.load(folder / "float.onnx"), x)[0], run_ort(onnx.load(made), x)[0]
    return float(np.abs(exact - found).max() / np.abs(exact).max())


@pytest.mark.parametrize("preset", ["performance", "mixed"])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_network(tmp_path: Path, preset: str, opset: int) -> None:
    model, data = write(tmp_path, opset=opset)
    found = quantize(model, tmp_path / "int8.onnx", data=data, preset=preset, method="onnxruntime")
    assert found.samples == 12 and [one.node for one in found.layers] == ["first", "second", "last"]
    assert all(one.quantized and one.own and 20 < one.own < 80 for one in found.layers)
    assert all(one.total is not None and one.low < one.high and sum(one.histogram) > 0 for one in found.layers)
    assert deviation(tmp_path, tmp_path / "int8.onnx") < 0.1
    assert found.bytes_after == (tmp_path / "int8.onnx").stat().st_size
    with pytest.raises(ModelError, match="quantised already"):
        quantize(tmp_path / "int8.onnx", tmp_path / "twice.onnx", data=data)


def test_weights_among_the_inputs(tmp_path: Path) -> None:
    """As files of the format's version 3 list them."""
    model, data = write(tmp_path)
    listed = onnx.load(model)
    for tensor in listed.graph.initializer:
        listed.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.save(listed, model)
    found = quantize(model, tmp_path / "int8.onnx", data=data, method="onnxruntime")
    assert all(one.own and 20 < one.own < 80 for one in found.layers)
    assert [i.name for i in onnx.load(tmp_path / "int8.onnx").graph.input] == ["x"]


def test_a_model_without_layers_to_quantise(tmp_path: Path) -> None:
    """It has an open size, too, and nothing of it is measured by itself."""
    graph = onnx.parser.parse_graph("g (float[n, 3] a) => (float[n, 3] b) { b = Relu(a) }")
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m"
    )
    np.savez(tmp_path / "data.npz", a=np.ones((2, 3), np.float32))
    found = quantize(tmp_path / "m", tmp_path / "int8.onnx", data=tmp_path / "data.npz", method="onnxruntime")
    assert found.layers == () and list(found.outputs or ()) == ["b"]


def test_the_file_says_how_it_was_made(tmp_path: Path) -> None:
    model, data = write(tmp_path)
    found = quantize(model, tmp_path / "int8.onnx", data=data, method="onnxruntime", exclude=["fir*"])
    told = tvmopt.inspect(tmp_path / "int8.onnx").quantization
    assert told["data_sha256"] == found.data_sha256 and told["excluded"] == ["first"] and told["samples"] == 12
    assert told["ranges_sha256"] == found.ranges_sha256 and told["method"].startswith("onnxruntime ")
    first = found.layers[0]
    assert not first.quantized and first.own is None
    done = command("inspect", tmp_path / "int8.onnx")
    assert done.returncode == 0 and found.data_sha256[:16] in done.stdout
    assert tvmopt.inspect(model).quantization is None
    again = quantize(model, tmp_path / "again.onnx", data=data, method="onnxruntime", exclude=["first"])
    assert (again.data_sha256, again.ranges_sha256) == (found.data_sha256, found.ranges_sha256)
    fewer = quantize(model, tmp_path / "fewer.onnx", data=data, method="onnxruntime", samples=3)
    assert fewer.data_sha256 != found.data_sha256 and fewer.ranges_sha256 != found.ranges_sha256


def test_layers_stay_in_floats_until_the_metric_holds(tmp_path: Path) -> None:
    model, data = write(tmp_path)
    samples = [{"x": one[None]} for one in np.load(data)["x"]]
    exact = [run_ort(onnx.load(model), x)[0] for x in samples]

    def close(predict: Any) -> float:
        return -float(np.mean([np.square(predict(x)["y"] - y) for x, y in zip(samples, exact, strict=True)]))

    plain = quantize(model, tmp_path / "a.onnx", data=data, method="onnxruntime", metric=close, max_drop="1e9")
    assert len(plain.attempts) == 1 and plain.metric == pytest.approx(0, abs=1e-5) and not plain.excluded
    below = f"{-plain.attempts[0].value * 0.95:.9f}"
    found = quantize(model, tmp_path / "b.onnx", data=data, method="onnxruntime", metric=close, max_drop=below)
    assert len(found.attempts) > 1 and found.excluded and found.attempts[-1].value >= -float(below) - 1e-5
    assert found.excluded[0] == plain.worst()[0].node
    values = iter([1.0, *[0.0] * 9])
    with pytest.raises(AccuracyError, match="3 layers in floats; 1 for the float model"):
        quantize(
            model, tmp_path / "c.onnx", data=data, method="onnxruntime", max_drop="5%", metric=lambda _: next(values)
        )
    assert not (tmp_path / "c.onnx").exists()


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    model, data = write(tmp_path)
    here = sorted(tmp_path.iterdir())
    out = tmp_path / "int8.onnx"
    metric = tmp_path.parent / "metric.py"
    metric.write_text(
        "def fails(predict):\n    raise ValueError('no labels')\n\ndef nan(predict):\n    return float('nan')\n"
    )
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InputError, "No data, no calibration", {}),
        (InputError, "no preset 'fast'", {"data": data, "preset": "fast"}),
        (InputError, "no method 'best'", {"data": data, "method": "best"}),
        (InputError, "cannot be 'int3'", {"weights": "int3"}),
        (InputError, "Did you mean 'second'", {"data": data, "exclude": ["secnd"]}),
        (InputError, "belong together", {"data": data, "max_drop": "1%"}),
        (InputError, "no drop", {"data": data, "max_drop": "much", "metric": f"{metric}:fails"}),
        (InputError, "no labels", {"data": data, "max_drop": "1%", "metric": f"{metric}:fails"}),
        (InputError, "metric is nan", {"data": data, "max_drop": "1%", "metric": f"{metric}:nan"}),
        (InputError, "no function 'other'", {"data": data, "max_drop": "1%", "metric": f"{metric}:other"}),
        (InputError, "There is no file", {"data": data, "max_drop": "1%", "metric": "missing.py:f"}),
        (MissingDependency, "SmoothQuant", {"data": data, "method": "onnxruntime", "smooth_quant": True}),
    ]
    for kind, words, given in cases:
        with pytest.raises(kind, match=words):
            quantize(model, out, **given)
    with pytest.raises(InputError, match="replace the float one"):
        quantize(model, model, data=data)
    assert sorted(tmp_path.iterdir()) == here


def test_drops() -> None:
    assert _least(0.8, "0.5%") == pytest.approx(0.796) and _least(-2.0, "5%") == pytest.approx(-2.1)
    assert _least(3.0, "0.1") == pytest.approx(2.9)
    for text in ("", "%", "-1", "nan", "inf", "x%"):
        with pytest.raises(InputError):
            _least(1.0, text)


def test_open_pictures_need_a_shape(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    onnx.save(network(size="n"), tmp_path / "open.onnx")
    (tmp_path / "pictures").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 255, (20, 30, 3)).astype(np.uint8)
        image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    given = {"data": tmp_path / "pictures", "method": "onnxruntime"}
    with pytest.raises(InputError, match="not known"):
        quantize(tmp_path / "open.onnx", tmp_path / "int8.onnx", **given)
    found = quantize(tmp_path / "open.onnx", tmp_path / "int8.onnx", shape={"x": (1, 3, 16, 16)}, **given)
    assert found.samples == 3


def test_the_compiled_model_multiplies_bytes(tmp_path: Path) -> None:
    """What quantize writes, compile takes: verified, and with integer products where the machine has them."""
    model, data = write(tmp_path)
    quantize(model, tmp_path / "int8.onnx", data=data, method="onnxruntime")
    compiled = tvmopt.compile(tmp_path / "int8.onnx", int8="all", threads=1)
    assert compiled.report.accuracy["verified"]
    x = np.load(data)["x"][:1]
    (expected,) = run_ort(onnx.load(tmp_path / "int8.onnx"), {"x": x})
    assert np.abs(compiled(x) - expected).max() < 0.03 * np.abs(expected).max()


def test_by_nncf(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    model, data = write(tmp_path)
    found = quantize(model, tmp_path / "int8.onnx", data=data, method="nncf", exclude=["second"])
    assert found.method.startswith("nncf ") and deviation(tmp_path, tmp_path / "int8.onnx") < 0.1
    assert [one.quantized for one in found.layers] == [True, False, True]


def test_nncf_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = write(tmp_path)
    monkeypatch.setattr("tvmopt.quantization.calibrate.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="NNCF is not installed"):
        quantize(model, tmp_path / "int8.onnx", data=data, method="nncf")
    assert quantize(model, tmp_path / "int8.onnx", data=data).method.startswith("onnxruntime ")


def test_the_command(tmp_path: Path) -> None:
    model, data = write(tmp_path)
    words = ["quantize", model, "-o", tmp_path / "int8.onnx", "--data", data, "--method", "onnxruntime"]
    done = command(*words, "--html", tmp_path / "page.html")
    assert done.returncode == 0 and "layers that lose most" in done.stdout and done.stderr == ""
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page and "second" in page and "src=" not in page and "href=" not in page
    done = command(*words, "--json")
    told = json.loads(done.stdout)
    assert told["samples"] == 12 and len(told["layers"]) == 3 and len(told["layers"][0]["histogram"]) == 64
    done = command("quantize", model, "-o", tmp_path / "x.onnx")
    assert done.returncode == 2 and "No data, no calibration" in done.stderr and "Traceback" not in done.stderr
    done = command(*words, "--std", "0")
    assert done.returncode == 2 and "--std" in done.stderr
    done = command("quantize", model, "-o", tmp_path / "w.onnx", "--weights", "int4")
    assert done.returncode == 0 and (tmp_path / "w.onnx").exists()


def test_options_are_the_functions_parameters() -> None:
    here, there = (signatures.signature(f).parameters for f in (cli.command, quantize))
    assert set(here) - {"html", "as_json", "quiet"} == set(there) - {"progress"}
