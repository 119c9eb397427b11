"""The graph page: what its data says, and what a browser makes of it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.browser import opened
from tvmopt.analysis.graph_html import html
from tvmopt.analysis.graph_view import view
from tvmopt.analysis.memory import memory, memory_svg
from tvmopt.errors import InputError
from tvmopt.report import Flow, Kernel, OnnxNode, Report, Step, Value

LONG = "encoder/layer.11/attention/self/query/a_name_that_no_box_is_wide_enough_for/Relu</script><b>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Conv + BatchNorm + Relu, twice, added; global mean; Gemm; Reshape."""
    import tvmopt

    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((16, 16, 3, 3), dtype=np.float32) for i in (0, 1)}
    weights |= {n: np.abs(rng.standard_normal(16, dtype=np.float32)) + 0.5 for n in ("g", "b", "m", "v")}
    weights |= {"f": rng.standard_normal((16, 9), dtype=np.float32), "s": np.array([9], np.int64)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c0", "g", "b", "m", "v"], ["n0"], "norm0"),
        helper.make_node("Relu", ["n0"], ["r0"], LONG),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c1", "r0"], ["a"], "skip"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "mean"),
        helper.make_node("Flatten", ["p"], ["q"], "flat"),
        helper.make_node("MatMul", ["q", "f"], ["d"], "dense"),
        helper.make_node("Reshape", ["d", "s"], ["y"], "shape"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 15, 15])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [9])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("graph") / "m.onnx"
    onnx.save(model, path)
    return tvmopt.compile(path, verify=False).report


def test_the_flow_connects_every_kernel(report):
    flow = report.flow
    assert [v.name for v in flow.values if v.kind == "input"] == ["x"]
    assert {n.name for n in flow.nodes.values()} >= {"conv0", LONG, "dense"}
    made = {v for s in flow.steps for v in s.outputs} | {
        i for i, v in enumerate(flow.values) if v.kind in ("input", "weight")
    }
    assert all(v in made for s in flow.steps for v in s.inputs)
    assert all(v in made for v in flow.outputs)
    assert sum(flow.storages) == report.activation_bytes > 0
    names = {k.name: k for k in report.kernels}
    assert all(s.nodes in names[s.kernel].nodes for s in flow.steps)


def test_a_flow_survives_the_manifest(report):
    from dataclasses import asdict

    assert Flow.from_dict(json.loads(json.dumps(asdict(report.flow)))) == report.flow
    assert Flow.from_dict({}) == Flow()


def test_every_onnx_node_is_in_a_kernel_or_next_to_one(report):
    data = view(report)
    homes = {n["name"]: n["boxes"] or [n["near"]] for n in data["nodes"] if n["op"]}
    assert min(min(h) for h in homes.values()) >= 0
    assert homes["conv0"] == homes["norm0"][-1:] or set(homes["conv0"]) & set(homes["norm0"])
    assert sum(b["share"] for b in data["boxes"]) == pytest.approx(1)
    assert {b["kind"] for b in data["boxes"]} == {"kernel", "input", "output"}
    assert all(a["p"][1] < a["p"][-1] for a in data["arrows"])
    several = [b for b in data["boxes"] if b["kind"] == "kernel" and b["why"]]
    assert any("starts a kernel of its own" in w for b in several for w in b["why"])


def _flow():
    values = [Value("x", (4,), "float32", 16, "input"), Value("w", (4,), "float32", 1000, "weight")]
    values += [Value(n, (4,), "float32", b, "activation", s) for n, b, s in
               (("a", 100, 0), ("b", 60, 1), ("c", 80, 0))]  # fmt: skip
    values.append(Value("y", (4,), "float32", 10, "output"))
    steps = [Step("k0", (), (0, 1), (2,)), Step("k1", (), (2,), (3,)), Step("k2", (), (3,), (4,)),
             Step("k3", (), (3, 4), (5,))]  # fmt: skip
    return Flow({}, tuple(values), tuple(steps), (5,), (100, 60))


def test_memory_counts_what_is_alive_and_what_is_held():
    found = memory(_flow())
    assert found.alive == (100, 160, 140, 150)
    assert found.held == (100, 160, 160, 170)
    assert (found.peak, found.peak_bytes, found.peak_tensors) == (1, 160, (2, 3))
    assert found.planned == 170
    assert "peak" in memory_svg(_flow(), found)
    assert (memory(Flow()).peak_bytes, memory_svg(Flow(), memory(Flow()))) == (0, "")


def test_an_old_artifact_says_so(report):
    from dataclasses import replace

    with pytest.raises(InputError, match="compile the model again"):
        html(replace(report, flow=Flow()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_search_click_and_keys_in_a_browser(browser, report, tmp_path, scheme):
    file = tmp_path / "graph.html"
    file.write_text(html(report))
    with opened(browser, file, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        for words, found in (("norm0", "norm0"), ("op:matmul", "dense"), ("tensor:c1", "conv1"),
                             ("layer.11/att", LONG)):  # fmt: skip
            page.fill("#search", words)
            first = page.locator("#list .item").first
            assert found in first.inner_text()
        page.keyboard.press("Enter")
        chosen = page.evaluate("tvmopt.data.boxes[tvmopt.chosen()].kernel")
        assert chosen in page.inner_text("#right")
        assert LONG in page.inner_text("#right li.hit")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert page.evaluate("tvmopt.chosen()") == -1 and page.is_hidden("#right")
        for box in range(len(report.flow.steps)):  # a click on the canvas shows the box's kernel
            page.evaluate(f"centre(tvmopt.data.boxes[{box}])")
            page.mouse.click(*page.evaluate(f"tvmopt.where({box})"))
            assert report.flow.steps[box].kernel in page.inner_text("#right")
        page.keyboard.press("0")
        page.keyboard.press("p")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("tvmopt.chosen()") >= 0


def test_tabs_zoom_and_memory_in_a_browser(browser, report, tmp_path):
    file = tmp_path / "graph.html"
    file.write_text(html(report))
    with opened(browser, file) as page:
        for tab in ("nodes", "folded", "declined", "applied", "memory", "kernels"):
            page.click(f"[data-tab={tab}]")
            assert page.inner_text("#list").strip()
        page.click("[data-tab=memory]")
        page.click("#list a >> nth=0")
        assert "the peak" in page.inner_text("#right")
        before = page.evaluate("tvmopt.view.k")
        page.mouse.move(650, 400)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        page.wait_for_function(f"tvmopt.view.k > {before}")
        page.keyboard.press("?")
        assert page.is_visible("#keys")


def test_a_graph_of_1500_kernels_draws_fast(browser, tmp_path):
    values = [Value("x", (8,), "float32", 32, "input")]
    values += [Value(f"t{i}", (1, 64, 56, 56), "float32", 800000, "activation", i % 5) for i in range(1500)]
    nodes = {f"n{i}": OnnxNode(f"block/{i}/Conv", "Conv", (f"t{i}",), (f"t{i + 1}",), (1, 64), 1e6)
             for i in range(1500)}  # fmt: skip
    steps = [Step(f"k{i % 40}", (f"n{i}",), tuple({i, max(0, i - 1 - i % 7)}), (i + 1,)) for i in range(1500)]
    kernels = tuple(
        Kernel(f"k{i}", "gemm", "analytic", {}, 38, tuple((f"n{j}",) for j in range(i, 1500, 40)), 1e6, 1e6)
        for i in range(40)
    )
    flow = Flow(nodes, tuple(values), tuple(steps), (1500,), (800000,) * 5)
    big = Report("big", "cpu", "fp32", kernels, (), {}, 1e9, 0, 0, 4000000, flow=flow)
    file = tmp_path / "big.html"
    file.write_text(html(big))
    assert file.stat().st_size < 2e6
    with opened(browser, file) as page:
        worst = page.evaluate(
            """() => { const t = []; fit(); for (let i = 0; i < 9; i++) { const s = performance.now(); draw();
               t.push(performance.now() - s); zoom(1.3); } return t.sort((a, b) => a - b)[4]; }"""
        )
        assert worst < 250  # ms, on a loaded machine; some 10 otherwise
