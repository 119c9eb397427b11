"""The suite's script: resumable, and its table shows losses."""

import json

import pytest
import suite


def _row(label, ms, status="ok"):
    latency = {"median_ms": ms} if ms else None
    job = {"model": "/somewhere/m.onnx", "prepared": "/tmp/x"}
    return {
        "label": label, "latency": latency, "quiet": True, "status": status, "accuracy": 1e-6, "job": job,
        "samples": [0.001] * 1000, "rounds": [[0.00123456789]],
    }  # fmt: skip


def _ratio(value, verdict):
    return {"value": value, "low": value * 0.98, "high": value * 1.02, "verdict": verdict}


def _data(name="squeezenet", threads=1, value=1.3, verdict="slower", code=None):
    engines = [_row("tvmopt", 1.3), _row("onnxruntime", 1.0), _row("openvino", 0, "missing")]
    case = {
        "model": f"{name}.onnx", "batch": 1, "threads": threads, "engines": engines, "floor_ms": 0.65,
        "ratios": {"onnxruntime": _ratio(value, verdict)},
    }  # fmt: skip
    machine = suite.describe_machine()
    settings = {"engines": ["tvmopt:records=off", "onnxruntime", "openvino"]}
    return {"machine": machine, "settings": settings, "cases": [case], "code": code or suite.code()}


def test_the_table_shows_losses_and_what_is_missing(tmp_path):
    (tmp_path / "verdicts.json").write_text("{}")  # of another benchmark
    (tmp_path / "squeezenet-b1-t1.json").write_text(json.dumps(_data()))
    (tmp_path / "alexnet-b1-t1.json").write_text(json.dumps(_data("alexnet", 1, 0.5, "faster")))
    (tmp_path / "alexnet-b1-t2.json").write_text(json.dumps(_data("alexnet", 2, 1.0, "no difference measured")))
    text = suite.table(tmp_path, ["alexnet", "squeezenet"])
    assert "| squeezenet | 1 | 1.30 | 1.00 | missing | 1.30 [1.27, 1.33] |  | slower |" in text
    assert text.index("| alexnet") < text.index("| squeezenet")
    assert "geometric mean 0.81, best 0.50, worst 1.30; 1 faster, 1 slower" in text
    assert "## fp32, 2 threads" in text
    assert suite.table(tmp_path / "none", []) == "Nothing measured yet.\n"


def test_precisions_do_not_mix_and_the_faster_peer_counts(tmp_path):
    both = _data(threads=2, value=0.8, verdict="faster")
    both["cases"][0]["ratios"]["openvino"] = _ratio(1.1, "slower")
    bf16 = _data(threads=2, value=0.7, verdict="faster")
    bf16["cases"][0]["precision"] = "bf16"
    (tmp_path / "squeezenet-b1-t2.json").write_text(json.dumps(both))
    (tmp_path / "squeezenet-b1-t2-bf16.json").write_text(json.dumps(bf16))
    text = suite.table(tmp_path, ["squeezenet"])
    fp32, _, other = text.partition("## bf16, 2 threads")
    assert "the better of them: geometric mean 1.10, worst 1.10 (squeezenet)" in fp32
    assert "0.70 [" in other and "0.70 [" not in fp32


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: None, True),
        (lambda d: d.update(code="other"), False),
        (lambda d: d["cases"][0]["ratios"]["onnxruntime"].update(verdict="unstable"), False),
        (lambda d: d["settings"].update(engines=["tvmopt"]), False),
        (lambda d: d["machine"]["versions"].update(onnxruntime="0.1"), False),
        (lambda d: d["cases"].clear(), False),
    ],
)
def test_a_case_is_measured_again_only_when_something_changed(tmp_path, change, expected):
    data = _data()
    change(data)
    path = tmp_path / "a-b1-t2.json"
    path.write_text(json.dumps(data))
    assert suite.current(path, ["tvmopt:records=off", "onnxruntime", "openvino"]) is expected
    path.write_text(path.read_text()[:100])  # cut off
    assert not suite.current(path, ["tvmopt:records=off", "onnxruntime", "openvino"])


def test_stored_results_are_small_and_hold_no_paths():
    case = suite.compact(_data())["cases"][0]
    assert len(case["engines"][0]["samples"]) <= 201
    assert "/" not in json.dumps(case["engines"][0]["job"])


def test_the_whole_thing_on_one_model(tmp_path, monkeypatch, capsys):
    calls = []

    class Result:
        def as_dict(self):
            return _data()

    monkeypatch.setattr(suite, "bench", lambda *args, **named: calls.append(args) or Result())
    flags = ["squeezenet", "--threads", "1", "--models", str(tmp_path), "--results", str(tmp_path / "r")]
    assert suite.main(flags) == 0
    assert suite.main(flags) == 0
    assert len(calls) == 1  # the second time it was there
    assert "measured before" in capsys.readouterr().out
    assert "squeezenet" in (tmp_path / "r/README.md").read_text()
    with pytest.raises(SystemExit):
        suite.main(["nosuchnet"])
