"""Profiles: a real run of a small model, and the arithmetic on made-up events."""

import itertools
import json
import types
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

import tvmopt
from tests.analysis.conftest import PEAKS
from tests.debug.nets import info, model, saved, weight
from tvmopt.analysis import profile as module
from tvmopt.analysis import recorder
from tvmopt.analysis.advice import advise, amdahl
from tvmopt.analysis.profile import chrome_trace, profile
from tvmopt.analysis.profile_html import html, roofline_svg
from tvmopt.analysis.recorder import Recorder, Recording
from tvmopt.analysis.roofline import locate


def test_kernels_carry_their_nodes_and_work(found):
    nodes = {node for kernel in found.kernels for node in kernel.nodes}
    assert {"first", "second", "soft"} <= nodes
    largest = max(found.kernels, key=lambda k: k.flops)
    assert largest.flops == pytest.approx(2 * 128 * 256 * 256, rel=0.05)
    assert largest.family != "builtin"
    assert sum(len([c for c in found.calls if c.kernel == k.name]) for k in found.kernels) == len(found.calls)


def test_times_add_up(found):
    assert found.accounted_s == pytest.approx(sum(c.seconds for c in found.calls))
    assert found.accounted_s + found.unexplained_s == pytest.approx(found.latency_s)
    if not found.disturbed:
        assert found.accounted_s < 1.5 * found.latency_s
    assert all(k.share >= 0 for k in found.kernels)


def test_the_model_still_runs_without_the_instrument(artifact):
    import tvmopt

    model = tvmopt.load(artifact, threads=1)
    x = np.random.default_rng(1).standard_normal((128, 256), dtype=np.float32)
    before = model(x).copy()
    profile(model, {"x": x}, runs=2, seconds=0.1, peaks=PEAKS)
    np.testing.assert_array_equal(model(x), before)


def test_json_html_and_trace(found):
    data = json.loads(json.dumps(found.as_dict()))
    assert data["kernels"][0]["position"]["bound"] in ("compute", "memory", "latency")
    events = [e for e in json.loads(json.dumps(chrome_trace(found)))["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(found.calls)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(events))
    assert any("first" in e["name"] for e in events)
    page = html(found)
    assert page.count("<svg") == 3
    assert "Alive then" in page and "seconds" not in data["memory"]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def _model(kernels):
    manifest = types.SimpleNamespace(
        model="m", target="t", precision="fp32", report={"kernels": kernels, "activation_bytes": 7}
    )
    return types.SimpleNamespace(manifest=manifest, threads=1)


def _kernel(name, nodes, flops, nbytes):
    return dict(
        name=name,
        family="gemm",
        source="analytic",
        knobs={},
        calls=len(nodes),
        nodes=nodes,
        flops=flops,
        bytes=nbytes,
    )


def _recording(names, times, plain, total, **fields):
    return Recording(names, [plain] * 5, [total] * 5, [np.array(times)] * 5, **fields)


def test_times_are_reported_as_measured_and_the_instruments_cost_is_told():
    kernels = [_kernel("a", [["n0"], ["n2"]], 8e6, 1e3), _kernel("b", [["n1"]], 1.0, 2.9e6)]
    recording = _recording(["a", "b", "a"], [100e-6, 300e-6, 100e-6], 490e-6, 520e-6)
    found = module._summarise(_model(kernels), PEAKS, recording, 0)
    assert found.overhead_s == pytest.approx(10e-6)
    assert found.accounted_s == pytest.approx(500e-6)  # not made to fit the latency
    assert found.unexplained_s == pytest.approx(-10e-6)
    assert [(k.name, k.calls) for k in found.kernels] == [("b", 1), ("a", 2)]
    assert [c.nodes for c in found.calls] == [("n0",), ("n1",), ("n2",)]
    a, b = sorted(found.kernels, key=lambda k: k.name)
    assert (a.position.bound, b.position.bound) == ("compute", "latency")
    assert a.share == pytest.approx(200 / 490)
    assert a.gflops == pytest.approx(80)
    assert found.planned_bytes == 7


def test_on_a_busy_machine_the_quickest_counts_and_is_marked():
    recording = Recording(["a"], [3e-3, 1e-3], [4e-3, 2e-3], [np.array([9e-4]), np.array([5e-3])], disturbed=True)
    found = module._summarise(_model([]), PEAKS, recording, 0)
    assert (found.latency_s, found.accounted_s, found.disturbed) == (1e-3, 9e-4, True)
    assert found.covered == pytest.approx((9e-4 / 4e-3 + 5e-3 / 2e-3) / 2)  # within each run


def test_products_of_bytes_stand_under_their_own_roof():
    """A kernel at 90 % of int8's peak is 3.6 times above that of floats, and raises no peak of theirs."""
    work = [
        _kernel("q", [["a"]], 0.9 * PEAKS.compute("int8"), 1.0) | {"precision": "int8"},
        _kernel("f", [["b"]], 1e9, 1.0),
    ]
    recording = Recording(["q", "f"], [2.0], [2.0], [np.array([1.0, 1.0])], disturbed=False)
    found = module._summarise(_model(work), PEAKS, recording, 0)
    by_name = {k.name: k for k in found.kernels}
    assert (by_name["q"].precision, by_name["f"].precision) == ("int8", "fp32")
    assert by_name["q"].position.compute_share == pytest.approx(0.9) and by_name["q"].position.bound == "compute"
    assert "fewer operations" in by_name["q"].advice.text
    assert module.observed(found).flops == PEAKS.flops
    assert "int8 400" in roofline_svg(found) and "fp32 100" in roofline_svg(found)


def test_both_instruments_see_the_same_calls(artifact):
    import tvmopt

    model = tvmopt.load(artifact, threads=1)
    x = {"x": np.zeros((128, 256), np.float32)}
    native, python = (Recorder(model, x, native=n).measure(3, 0.2) for n in (True, False))
    assert python.instrument == "python"
    assert native.names == python.names
    assert all(len(t) == len(native.names) and (t >= 0).all() for t in [*native.times, *python.times])
    if native.instrument == "native":  # there is a C compiler
        assert all(t.sum() <= total for t, total in zip(native.times, native.total, strict=True))


def test_without_a_compiler_the_python_instrument_is_used(artifact, monkeypatch):
    monkeypatch.setattr(recorder, "_build", lambda: None)
    monkeypatch.setattr(recorder, "_built", [])
    assert profile(artifact, threads=1, runs=2, seconds=0.1, peaks=PEAKS).instrument == "python"


def test_an_unknown_symbol_is_a_builtin_of_no_work():
    found = module._summarise(_model([]), PEAKS, _recording(["vm.builtin.copy"], [1e-3], 1e-3, 1e-3), 0)
    assert (found.kernels[0].family, found.kernels[0].flops) == ("builtin", 0.0)


@pytest.mark.parametrize(
    ("seconds", "flops", "nbytes", "bound"),
    [
        (1.0, 61e9, 1, "compute"),
        (1.0, 59e9, 1, "latency"),
        (1.0, 1, 6.1e9, "memory"),
        (1.0, 1, 5.9e9, "latency"),
    ],
)
def test_sixty_percent_rule(seconds, flops, nbytes, bound):
    assert locate(seconds, flops, nbytes, PEAKS).bound == bound


def test_bandwidth_depends_on_the_working_set():
    assert locate(1.0, 0, 1e6, PEAKS).memory_share == pytest.approx(1e6 / 80e9)
    assert locate(1.0, 0, 1e7, PEAKS).memory_share == pytest.approx(1e7 / 40e9)
    assert locate(1.0, 0, 1e8, PEAKS).memory_share == pytest.approx(1e8 / 10e9)


def test_advice_and_its_gain():
    assert amdahl(0.5, 1e9) == pytest.approx(2.0)
    slow = advise(locate(1.0, 10e9, 1, PEAKS), 1.0, 2.0, "gemm", "analytic", 1, PEAKS)
    assert "tune" in slow.text
    assert slow.gain == pytest.approx(amdahl(0.5, 8.5))
    generic = advise(locate(1.0, 10e9, 1, PEAKS), 1.0, 2.0, "generic", "generic", 1, PEAKS)
    assert "family" in generic.text
    roof = advise(locate(1.0, 90e9, 1, PEAKS), 1.0, 2.0, "gemm", "tuned", 1, PEAKS)
    assert "int8" in roof.text
    assert roof.gain == pytest.approx(amdahl(0.5, 4.0))
    both = replace(PEAKS, flops=PEAKS.flops | {"bf16": 200e9})
    assert "--precision bf16" in advise(locate(1.0, 90e9, 1, PEAKS), 1.0, 2.0, "gemm", "tuned", 1, both).text
    assert advise(locate(1.0, 90e9, 1, PEAKS), 1.0, 2.0, "winograd", "tuned", 1, both).gain == 1.0
    memory = advise(locate(1.0, 1, 8e9, PEAKS), 1.0, 2.0, "elementwise", "analytic", 1, PEAKS)
    assert "fuse" in memory.text
    tiny = advise(locate(1e-6, 1, 1, PEAKS), 1e-3, 2e-3, "elementwise", "analytic", 1000, PEAKS)
    assert "small" in tiny.text


def test_executed_and_algorithmic_work_are_told_apart(found):
    by_name = {k.name: k for k in found.kernels}
    first = next(k for k in by_name.values() if "first" in k.nodes)
    assert first.onnx_flops == pytest.approx(2 * 128 * 256 * 256 + 128 * 256)  # MatMul and Relu
    assert found.onnx_flops == pytest.approx(sum(n.flops for n in found.flow.nodes.values()))
    assert first.position.compute_share == pytest.approx(
        first.gflops * 1e9 / found.peaks.compute()
    )  # the executed ones


def test_memory_planned_and_measured(found):
    assert found.memory.peak_bytes <= found.memory.planned
    assert {t.name for t in found.peak_tensors} <= {v.name for v in found.flow.values}
    assert found.measured_bytes is None or found.measured_bytes >= 0
    assert json.dumps(found.as_dict()["memory"]["peak_tensors"])


def test_a_model_that_may_have_run_is_not_measured(artifact):
    import tvmopt

    again = profile(tvmopt.load(artifact, threads=1), threads=1, runs=2, seconds=0.05, peaks=PEAKS)
    assert again.measured_bytes is None


def test_growth_of_a_run_is_seen():
    with module._peak() as grown:
        block = np.ones(40 << 20, np.uint8)
        del block
    assert not grown or 38 << 20 <= grown[0] <= 60 << 20


@pytest.mark.parametrize("busy_again", [False, True])
def test_a_kernel_above_the_roof_proves_the_roof_wrong(artifact, monkeypatch, busy_again):
    """The peaks are measured again; what is still above them is the roof then, and is kept."""
    low = replace(PEAKS, flops={"fp32": 1e3})
    asked = []

    def measured(threads, again=False):
        asked.append(again)
        return PEAKS if again and not busy_again else low

    monkeypatch.setattr(module, "measure_peaks", measured)
    kept = []
    monkeypatch.setattr(module, "remember", kept.append)
    monkeypatch.setattr(module, "SURE", 0.0)
    found = profile(artifact, threads=1, runs=2, seconds=0.05)
    assert asked == [False, True]
    assert not found.above and max(k.position.roof_share for k in found.kernels) <= 1.001
    assert all(k.position.floor_s <= k.seconds / k.calls * 1.001 for k in found.kernels)
    if busy_again:
        fastest = max(k.flops / k.seconds for k in found.kernels)
        assert found.peaks.compute() == pytest.approx(fastest) and found.peaks.raised["fp32"] == "observed"
        assert kept and kept[-1].compute() == found.peaks.compute()


def test_peaks_are_raised_only_where_there_is_more():
    peaks = PEAKS.at_least({"fp32": PEAKS.flops["fp32"] / 2, "bf16": 7e15}, {"dram": 1.0}, "observed")
    assert peaks.flops["fp32"] == PEAKS.flops["fp32"] and peaks.flops["bf16"] == 7e15
    assert peaks.bandwidth == PEAKS.bandwidth and peaks.raised == {"bf16": "observed"}


def test_what_was_observed_is_the_floor_of_bench_too(tmp_path):
    from tvmopt.analysis.peaks import measure_peaks, remember

    measured = replace(measure_peaks(1, cache=tmp_path), raised={})
    remember(measured.at_least({"fp32": 1e15}, {}, "observed"), cache=tmp_path)
    assert measure_peaks(1, cache=tmp_path).floor(1e15, 1.0) == pytest.approx(1.0)


def test_open_sizes_have_no_work_by_definition(tmp_path):
    """Nodes of open sizes would count as no work, and the rest as all of it."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "open"), helper.make_node("Sin", ["s"], ["z"], "known")]
    inputs, outputs = [info("x", "n", 64), info("s", 4, 8)], [info("y", "n", 32), info("z", 4, 8)]
    path = saved(model(nodes, inputs, outputs, [weight("w", 64, 32)]), tmp_path / "open.onnx")
    tvmopt.compile(path, output=tmp_path / "open.tvmopt", verify=False)
    found = profile(tmp_path / "open.tvmopt", threads=1, runs=2, seconds=0.05, peaks=PEAKS)
    assert found.onnx_flops == 0 and found.flops > 0
