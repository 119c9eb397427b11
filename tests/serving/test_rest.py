"""The protocol over HTTP, by a plain client: results bit for bit, and the right status for every wrong request."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.serving.conftest import Running

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
INFER = "/v2/models/rows/infer"


def call(server: Running, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def ask(server: Running, request: Any, path: str = INFER, **headers: str) -> tuple[int, Any]:
    status, _, body = call(server, "POST", path, json.dumps(request).encode(), **headers)
    return status, json.loads(body)


def tensor(name: str, array: np.ndarray, datatype: str) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}


def binary(server: Running, request: dict[str, Any], data: bytes, path: str = INFER) -> tuple[int, Any, bytes]:
    head = json.dumps(request).encode()
    status, headers, body = call(
        server, "POST", path, head + data, Inference_Header_Content_Length=str(len(head)),
        Content_Type="application/octet-stream",
    )  # fmt: skip
    length = int(headers.get("Inference-Header-Content-Length", len(body)))
    return status, json.loads(body[:length]), body[length:]


def test_json_and_binary_are_what_run_gives(running: Running, artifacts: Path) -> None:
    model = tvmopt.load(artifacts / "rows.tvmopt")
    for rows in (1, 3):
        expected = model(X[:rows])
        status, found = ask(running, {"id": "me", "inputs": [tensor("x", X[:rows], "FP32")]})
        assert (status, found["id"], found["model_name"], found["model_version"]) == (200, "me", "rows", "1")
        (output,) = found["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [rows, 4])
        np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(rows, 4), expected)
        one = {"name": "x", "datatype": "FP32", "shape": [rows, 8], "parameters": {"binary_data_size": rows * 32}}
        request = {"inputs": [one], "parameters": {"binary_data_output": True}}
        status, told, data = binary(running, request, X[:rows].tobytes())
        assert status == 200 and told["outputs"][0]["parameters"] == {"binary_data_size": len(data)}
        np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(rows, 4), expected)


def test_all_kinds_of_numbers(running: Running, artifacts: Path) -> None:
    arrays = {
        "f": np.array([[1, -2, 65504], [6e-8, 0.5, -0.0]], np.float16),
        "d": np.array([[1e308, -5e-324, 3], [0.1, 2, -7]]),
        "b": np.array([[True, False, True], [False, False, True]]),
        "u": np.array([[0, 255, 7], [1, 2, 3]], np.uint8),
        "i": np.array([4, 0]),
    }
    types = {"f": "FP16", "d": "FP64", "b": "BOOL", "u": "UINT8", "i": "INT64"}
    expected = tvmopt.load(artifacts / "kinds.tvmopt").run(arrays)
    status, found = ask(
        running, {"inputs": [tensor(k, a, types[k]) for k, a in arrays.items()]}, "/v2/models/kinds/infer"
    )
    assert status == 200, found
    for output in found["outputs"]:
        want = expected[output["name"]]
        np.testing.assert_array_equal(np.array(output["data"], want.dtype).reshape(output["shape"]), want)
    wrong = {**arrays, "i": np.array([4, 5])}
    status, found = ask(
        running, {"inputs": [tensor(k, a, types[k]) for k, a in wrong.items()]}, "/v2/models/kinds/infer"
    )
    assert status == 400, found


def test_json_has_no_nan(running: Running, artifacts: Path) -> None:
    """An output with NaN or an infinity is refused in JSON, by its name, and is right in binary data."""
    odd = X.copy()
    odd[0, 0], odd[1, 0], odd[2, 0] = np.nan, np.inf, -np.inf
    entry = {"name": "x", "datatype": "FP32", "shape": [3, 8], "parameters": {"binary_data_size": 96}}
    status, told, _ = binary(running, {"inputs": [entry]}, odd.tobytes())
    assert status == 400 and told == {
        "error": "JSON has no NaN and no infinities, which there are in 'y': ask for binary data."
    }
    request = {"inputs": [entry], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    status, _, data = binary(running, request, odd.tobytes())
    expected = tvmopt.load(artifacts / "rows.tvmopt")(odd)
    assert status == 200 and np.isnan(expected).any()
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(3, 4), expected)


def one(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor("x", X, "FP32") | changes]}


@pytest.mark.parametrize(
    ("request_", "status", "told"),
    [
        ({}, 400, "no list of inputs"), ([], 400, "no list of inputs"), ({"inputs": [3]}, 400, "an input is an object"),
        ({"inputs": []}, 400, "takes x"), (one(name="z"), 400, "takes x"), (one(name=3), 400, "takes x"),
        ({"inputs": one()["inputs"] * 2}, 400, "takes x"),
        (one(datatype="FP64"), 400, "is FP32, not FP64"), (one(datatype="BYTES"), 400, "not BYTES"),
        (one(shape=[3, 9]), 400, "the model takes [n,8]"), (one(shape=[24]), 400, "the model takes"),
        (one(shape="3x8"), 400, "no list of sizes"), (one(shape=[-3, -8]), 400, "no list"),
        (one(shape=[True, 8]), 400, "no list"), (one(shape=[2, 8]), 400, "24 elements"),
        (one(shape=[17, 8]), 400, "1 to 16"), (one(shape=[0, 8], data=[]), 400, "1 to 16"),
        (one(shape=[2**62, 8]), 400, "1 to 16"),
        (one(data="words"), 400, "is not FP32"), (one(data=[[1, 2], [3]]), 400, "no regular list"),
        (one(data=None), 400, "is not FP32"), (one(data={"a": 1}), 400, "is not FP32"),
        ({"inputs": one()["inputs"], "outputs": [{"name": "q"}]}, 400, "no output 'q'"),
        ({"inputs": one()["inputs"], "id": 3}, 400, "the id"),
        ({"inputs": one()["inputs"], "parameters": 3}, 400, "parameters are an object"),
        (one(parameters={"shared_memory_region": "a"}), 400, "not supported"),
    ],
)  # fmt: skip
def test_wrong_requests_are_told(running: Running, request_: Any, status: int, told: str) -> None:
    found, text = ask(running, request_)
    assert found == status and told in text["error"], text


def test_wrong_bytes_are_told(running: Running) -> None:
    def sized(size: Any, length: int = 96) -> tuple[int, Any]:
        entry = {"name": "x", "datatype": "FP32", "shape": [3, 8], "parameters": {"binary_data_size": size}}
        return binary(running, {"inputs": [entry]}, X.tobytes()[:length])[:2]

    assert sized(96)[0] == 200
    for size, length, told in (
        (96, 95, "not lie in the body"), (95, 96, "95 bytes"), (95, 95, "95 bytes"), (-1, 96, "not lie"),
        ("96", 96, "not lie"), (10**30, 96, "not lie"),
    ):  # fmt: skip
        status, answer = sized(size, length)
        assert status == 400 and told in answer["error"], answer
    for header in ("x", "-1", "99999", "1"):
        status, _, body = call(running, "POST", INFER, b'{"inputs": []}', Inference_Header_Content_Length=header)
        assert status == 400, body
    for body in (b"", b"\xff\x00", b"{", b"[" * 100_000, b"null"):
        assert call(running, "POST", INFER, body)[0] == 400


def test_limits_and_origins(running: Running) -> None:
    large = b"[" + b"0," * (1 << 20) + b"0]"
    assert call(running, "POST", INFER, large)[0] == 413
    assert call(running, "POST", INFER, b"whatever", Content_Encoding="br")[0] == 415
    assert call(running, "GET", "/v2", Host="evil.example")[0] == 403
    assert call(running, "POST", "/v2/repository/models/rows/unload", b"", Origin="http://evil.example")[0] == 403
    assert call(running, "GET", "/v2", Host="localhost:1")[0] == 200
    for path, status in (("/nowhere", 404), (INFER, 405)):
        found, _, body = call(running, "GET", path)
        assert found == status and path in json.loads(body)["error"]
    host, port = running.http.split(":")
    with socket.create_connection((host, int(port))) as half:  # a client that goes away in the middle
        half.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    with socket.create_connection((host, int(port))) as garbage:
        garbage.sendall(b"\x00\x01 no HTTP \r\n\r\n")
        assert b"400" in garbage.recv(100)
    assert ask(running, one())[0] == 200


def test_what_there_is(running: Running) -> None:
    def get(path: str) -> Any:
        status, _, body = call(running, "GET", path)
        return status, json.loads(body)

    assert get("/v2/health/live") == (200, {"live": True}) and get("/v2/health/ready") == (200, {"ready": True})
    assert get("/v2")[1]["name"] == "tvmopt"
    assert get("/v2/models/rows/versions/1")[1] == {
        "name": "rows", "versions": ["1"], "platform": "tvmopt",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }  # fmt: skip
    assert get("/v2/models/rows/ready") == (200, {"name": "rows", "ready": True})
    assert get("/v2/models/none")[0] == 404 and get("/v2/models/rows/versions/2")[0] == 404
    assert call(running, "POST", "/v2/repository/models/twice/unload", b"")[0] == 200
    assert get("/v2/models/twice/ready")[0] == 503 and get("/v2/health/ready")[0] == 200
    states = {m["name"]: m["state"] for m in json.loads(call(running, "POST", "/v2/repository/index", b"")[2])}
    assert states == {"kinds": "READY", "rows": "READY", "twice": "UNAVAILABLE", "wide": "READY"}
    assert call(running, "POST", "/v2/repository/models/twice/load", b"")[0] == 200
    assert get("/v2/models/twice/ready")[0] == 200
    assert call(running, "POST", "/v2/repository/models/none/load", b"")[0] == 404


def test_metrics_and_the_page(running: Running) -> None:
    assert ask(running, one())[0] == 200
    text = call(running, "GET", "/metrics")[2].decode()
    for name in ("request_seconds", "queue_seconds", "compute_seconds", "batch_rows"):
        assert f'tvmopt_{name}_count{{model="rows",version="1"}}' in text
    assert 'tvmopt_requests_total{model="rows",protocol="http",status="200",version="1"}' in text
    status, headers, body = call(running, "GET", "/")
    page = body.decode()
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http://" not in page and "https://" not in page, "nothing is loaded from elsewhere"
    (shown,) = (m for m in json.loads(call(running, "GET", "/overview")[2])["models"] if m["name"] == "rows")
    assert shown["p50_ms"] > 0 and shown["shapes"] == {"x": ["n", "8"]}


def test_bodies_may_be_compressed(running: Running, artifacts: Path) -> None:
    expected = tvmopt.load(artifacts / "rows.tvmopt")(X)
    body = json.dumps({"inputs": [tensor("x", X, "FP32")]}).encode()
    for name, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        status, _, found = call(running, "POST", INFER, data, Content_Encoding=name)
        got = np.array(json.loads(found)["outputs"][0]["data"], np.float32).reshape(3, 4)
        assert status == 200 and np.array_equal(got, expected)
    wrong = [(b"no gzip", 400), (gzip.compress(body)[:-9], 400), (gzip.compress(body) + b"x", 400)]
    for data, code in (*wrong, (gzip.compress(bytes(2 << 20)), 413)):
        assert call(running, "POST", INFER, data, Content_Encoding="gzip")[0] == code


def test_what_was_read_before_is_checked_again(running: Running, artifacts: Path) -> None:
    """A client says the same before its tensors again and again; what follows may be another tensor, or too little."""
    model = tvmopt.load(artifacts / "rows.tvmopt")
    one = {"name": "x", "datatype": "FP32", "shape": [3, 8], "parameters": {"binary_data_size": X.nbytes}}
    request = {"inputs": [one], "parameters": {"binary_data_output": True}}
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32)
        status, told, data = binary(running, request, x.tobytes())
        assert status == 200 and told["outputs"][0]["shape"] == [3, 4] and data == model(x).tobytes()
    for given in (X.tobytes()[:-4], X.tobytes() + b"x", b""):
        assert binary(running, request, given)[0] == 400
    assert binary(running, request, X.tobytes(), path="/v2/models/kinds/infer")[0] == 400
    assert binary(running, request, X.tobytes(), path="/v2/models/twice/infer")[2] != model(X).tobytes()
