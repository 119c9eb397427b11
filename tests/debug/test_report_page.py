"""`tvmopt report`: everything about a model on one page, which loads nothing and fits a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.browser import chromium, opened
from tests.cli.command import tvmopt as command

NAME = "a</script><b>&\"'</iframe>"
EVERY = ["Compiled", "Graph", "Profile", "Kernels", "Memory", "Accuracy", "Comparison"]


def model(path: Path, rows: int | str = 8) -> Path:
    """Two products with a Relu between them; the first has an unpleasant name."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((24, 24), dtype=np.float32) for n in "wv"}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], NAME),
            helper.make_node("Relu", ["a"], ["b"], "relu"),
            helper.make_node("MatMul", ["b", "v"], ["y"], "second"),
        ],
        "g", [value("x", TensorProto.FLOAT, [rows, 24])], [value("y", TensorProto.FLOAT, [rows, 24])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    tvmopt.compile(model(found / "m.onnx"), output=found / "m.tvmopt", verify=False)
    return found


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    done = command("report", folder / "m.onnx", "-o", folder / "report.html", "--duration", 0.3, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["sections"] == EVERY and told["left_out"] == {} and told["agrees"] is True
    return folder / "report.html"


def test_all_of_it_is_there(page: Path) -> None:
    text = page.read_text()
    assert all(f'<section id="{one.lower()}">' in text and f'href="#{one.lower()}"' in text for one in EVERY)
    assert "agrees with float64" in text and "everything agrees" in text and "sets of inputs" in text
    assert text.count("Content-Security-Policy") == 2  # of the page, and of the graph in it
    assert not re.search(r"""\b(src|href)=(&quot;|["'])?(?!["#&])|url\(|@import""", text)
    assert NAME not in text


def test_a_compiled_file(folder: Path, tmp_path: Path) -> None:
    """Without its ONNX file there is no comparison, with it there is; it was not verified, and the page says so."""
    done = command("report", folder / "m.tvmopt", "-o", tmp_path / "a.html", "--duration", 0.3)
    assert done.returncode == 0 and done.stdout == f"written: {tmp_path / 'a.html'}\n"
    assert done.stderr == "note: Comparison is left out: it needs the ONNX file (--model MODEL)\n"
    text = (tmp_path / "a.html").read_text()
    assert "Comparison is left out: it needs the ONNX file" in text and "<p>not verified.</p>" in text
    more = ("--model", folder / "m.onnx", "--duration", 0.3, "--json")
    done = command("report", folder / "m.tvmopt", "-o", tmp_path / "b.html", *more)
    assert json.loads(done.stdout)["sections"] == EVERY


def test_another_model_is_told(folder: Path, tmp_path: Path) -> None:
    """The page is written, and the exit code is that of wrong numbers."""
    other = onnx.load(folder / "m.onnx")
    other.graph.initializer[0].raw_data = numpy_helper.from_array(np.ones((24, 24), np.float32)).raw_data
    onnx.save(other, tmp_path / "other.onnx")
    words = ("--model", tmp_path / "other.onnx", "--duration", 0.3)
    done = command("report", folder / "m.tvmopt", "-o", tmp_path / "page.html", *words)
    assert done.returncode == 3 and "there are differences" in (tmp_path / "page.html").read_text()


def test_what_cannot_run_is_left_out(folder: Path, tmp_path: Path) -> None:
    tvmopt.compile(folder / "m.onnx", output=tmp_path / "s.tvmopt", strip_weights=True)
    done = command("report", tmp_path / "s.tvmopt", "-o", tmp_path / "page.html", "--json")
    assert done.returncode == 0 and "note: Profile and memory is left out" in done.stderr
    assert json.loads(done.stdout)["sections"] == ["Compiled", "Graph", "Accuracy"]


def test_open_sizes(tmp_path: Path) -> None:
    model(tmp_path / "open.onnx", "rows")
    words = ("--shape", "rows:1..16@4", "--duration", 0.3, "--json")
    done = command("report", tmp_path / "open.onnx", "-o", tmp_path / "page.html", *words)
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["sections"] == EVERY, done.stderr
    assert "rows = 4" in (tmp_path / "page.html").read_text()


def test_wrong_use(folder: Path, tmp_path: Path) -> None:
    for words in (
        [folder / "m.onnx", "--model", folder / "m.onnx", "-o", tmp_path / "x.html"],
        [folder / "m.onnx", "-o", tmp_path / "no" / "x.html"],
        [tmp_path / "none.onnx", "-o", tmp_path / "x.html"],
    ):
        done = command("report", *words)
        assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == "", words
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def browser():
    with chromium() as driven:
        yield driven


@pytest.mark.parametrize("width", [390, 1300])
def test_in_a_browser(browser, page: Path, width: int) -> None:
    with opened(browser, page, "dark", width) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert shown.evaluate("[...document.querySelectorAll('.plot svg')].every(s => s.clientWidth >= 700)")
        graph = shown.wait_for_selector("iframe", state="attached").content_frame()
        assert graph is not None
        graph.wait_for_function("window.tvmopt && document.querySelector('#stage').clientWidth > 300")
        assert graph.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        inside = """() => { const [x, y] = tvmopt.where(0);
          const r = document.querySelector('#stage').getBoundingClientRect();
          return x > r.left && x < r.right && y < r.bottom; }"""
        graph.wait_for_function(inside)  # the first kernel is in sight, whatever size the frame had at first
