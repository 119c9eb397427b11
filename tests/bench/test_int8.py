"""The benchmark of quantised models: which files it takes, and what it does to a float model first."""

import int8
import onnx
import pytest
from onnx import TensorProto, helper


def test_files_that_are_there_need_no_method(tmp_path, monkeypatch):
    monkeypatch.setattr(int8, "FOLDER", tmp_path)
    monkeypatch.setattr(int8, "find_spec", lambda method: method == "onnxruntime" or None)
    (tmp_path / "gpt2-nncf.onnx").touch()
    cases = [(subject.name, method) for subject, method in int8.chosen((), ())]
    assert cases == [(s.name, "onnxruntime") for s in int8.SUBJECTS] + [("gpt2", "nncf")]
    assert [m for _, m in int8.chosen(["gpt2"], ["nncf", "onnxruntime"])] == ["nncf", "onnxruntime"]


def test_a_window_larger_than_any_image_is_a_global_pooling():
    nodes = [
        helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1280, 1280], ceil_mode=1, count_include_pad=1),
        helper.make_node("AveragePool", ["x"], ["z"], kernel_shape=[2, 2]),
    ]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, None, None]) for n in "xyz"]
    model = helper.make_model(helper.make_graph(nodes, "pools", made[:1], made[1:]))
    int8._pool_globally(model)
    assert [n.op_type for n in model.graph.node] == ["GlobalAveragePool", "AveragePool"]
    onnx.checker.check_model(model, full_check=True)


def test_an_unknown_model_is_told(capsys):
    with pytest.raises(SystemExit):
        int8.main(["resnet51"])
    assert "no resnet51; there are resnet50, mobilenet_v2" in capsys.readouterr().err


def test_the_table_of_nothing(tmp_path):
    assert int8.main(["--table", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == "Nothing measured yet.\n"
