"""Texts of decoders that look at an encoder's output, of which a request has the inputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

import tvmopt
from tests.decoders.translator import HIDDEN, POSITIONS, encoder_model, encoder_output, greedy, merged_model
from tests.serving.conftest import Running
from tests.serving.test_rest import call

PROMPT = [1, 5, 9]


@pytest.fixture(scope="module")
def translating(serve: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    """translate, with its encoder beside it, the same as a version of "versions", and "alone" without an encoder."""
    folder = tmp_path_factory.mktemp("pairs")
    onnx.save(merged_model(), folder / "decoder.onnx")
    onnx.save(encoder_model(), folder / "encoder.onnx")
    tvmopt.compile(folder / "decoder.onnx", threads=1, verify=False, output=folder / "translate.tvmopt")
    tvmopt.compile(folder / "encoder.onnx", threads=1, verify=False, output=folder / "translate.encoder.tvmopt")
    version = folder / "versions" / "1"
    version.mkdir(parents=True)
    shutil.copy(folder / "translate.tvmopt", version / "model.tvmopt")
    shutil.copy(folder / "translate.encoder.tvmopt", version / "encoder.tvmopt")
    shutil.copy(folder / "translate.tvmopt", folder / "alone.tvmopt")
    return serve(folder, "--reload", 0)


def ask(server: Running, model: str, request: Any) -> tuple[int, Any]:
    status, _, body = call(server, "POST", f"/v2/models/{model}/generate", json.dumps(request).encode())
    return status, json.loads(body)


def features(x: np.ndarray, **changes: Any) -> dict[str, Any]:
    return {"name": "features", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist(), **changes}


def test_each_text_has_the_tokens_beside_its_own_features(translating: Running) -> None:
    given = [encoder_output(length, seed=length) for length in (1, 9, 17)]

    def tokens(x: np.ndarray, model: str = "translate", most: int = 6) -> Any:
        request = {"tokens": PROMPT, "inputs": [features(x)], "parameters": {"max_tokens": most}}
        status, told = ask(translating, model, request)
        assert status == 200, told
        return told["tokens"]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(tokens, given))
    assert found == [greedy(np.tanh(x), PROMPT, 6) for x in given] and found[0] != found[1]
    assert tokens(given[1], "versions") == found[1]
    assert len(tokens(given[1], most=99)) == POSITIONS - len(PROMPT) + 1  # until it is full


def test_an_encoder_is_no_model_of_its_own(translating: Running) -> None:
    status, _, body = call(translating, "POST", "/v2/repository/index")
    assert status == 200 and [m["name"] for m in json.loads(body)] == ["alone", "translate", "versions"]


@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        ("translate", None, "the model takes features"), ("translate", [], "the model takes features"),
        ("translate", {}, "an input is an object"), ("translate", [3], "an input is an object"),
        ("translate", [features(np.zeros((1, 2, HIDDEN)), name="x")], "the inputs x"),
        ("translate", [features(np.zeros((1, 2, HIDDEN)), datatype="INT64")], "FP32, not INT64"),
        ("translate", [features(np.zeros((1, 2, HIDDEN + 1)))], "the shape of 'features'"),
        ("translate", [features(np.zeros((1, 2, HIDDEN)), data=[1])], "1 elements"),
        ("alone", None, "encoder_hidden_states"), ("alone", [features(np.zeros((1, 2, HIDDEN)))], "no encoder"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(translating: Running, model: str, inputs: Any, told: str) -> None:
    request = {"tokens": PROMPT} | ({} if inputs is None else {"inputs": inputs})
    status, found = ask(translating, model, request)
    assert status == 400 and told in found["error"], found
    right = {"tokens": PROMPT, "inputs": [features(encoder_output(3))], "parameters": {"max_tokens": 1}}
    assert ask(translating, "translate", right)[0] == 200  # it goes on
    wrong = {**right, "tokens": [9999]}
    status, found = ask(translating, "translate", wrong)
    assert status == 400 and "vocabulary" in found["error"]
