"""The suite's models: real, seeded, with outputs that can tell right from wrong."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).parents[2]


def test_a_classic_network_is_written_whole_and_alike_twice(tmp_path):
    first = models.write("squeezenet", tmp_path / "a").read_bytes()
    second = models.write("squeezenet", tmp_path / "b").read_bytes()
    assert first == second
    assert first != models.write("squeezenet", tmp_path / "c", seed=1).read_bytes()
    assert not list(tmp_path.glob("*/*.part"))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v2"])
def test_outputs_depend_on_the_input(name, tmp_path):
    path = models.write(name, tmp_path)
    assert "changes by" in models.check(path)
    graph = onnx.load(path).graph
    assert not [n for n in graph.node if n.op_type == "ConstantOfShape"]
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    assert {i.name for i in graph.input} >= set(weights)  # as in IR version 3
    for node in graph.node:
        if node.op_type == "Conv":
            assert np.std(weights[node.input[1]]) > 0


def test_batchnorm_statistics_are_those_of_its_input(tmp_path):
    import onnxruntime

    path = models.write("shufflenet", tmp_path)
    model = onnx.load(path)
    norms = [n for n in model.graph.node if n.op_type == "BatchNormalization"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n.output[0]) for n in norms[-1:])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    out = session.run(None, models.sample_inputs(path, 5))[-1]
    assert 0.3 < out.std() < 3  # gamma is drawn around 1


def test_the_list_holds_what_the_project_promises():
    assert len(models.SUITE) == 17
    assert sum(e.origin == "light" for e in models.SUITE) == 9
    assert {e.source for e in models.SUITE if e.origin == "torch"} == set(models.MAKERS)


def test_a_batch_for_a_classic_network_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch 1"):
        models.write("alexnet", tmp_path, batch=2)


@pytest.mark.models
@pytest.mark.parametrize("name", sorted(models.MAKERS))
def test_exports_agree_with_torch(name, tmp_path):
    assert "changes by" in models.check(models.write(name, tmp_path))
