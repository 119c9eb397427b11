"""The protocol over gRPC: by messages as anybody's client sends them, and by tritonclient where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.serving.conftest import Running
from tests.serving.test_rest import call as http
from tvmopt.serving.messages import MESSAGES, SERVICE, messages

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'tvmopt[test]'")
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def channel(running: Running) -> Any:
    with grpc.insecure_channel(running.grpc) as made:
        yield made


def call(channel: Any, method: str, **fields: Any) -> Any:
    types = messages()
    request = getattr(types, f"{method}Request")
    return channel.unary_unary(
        f"/{SERVICE}/{method}", request.SerializeToString, getattr(types, f"{method}Response").FromString
    )(request(**fields), timeout=60)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": X.shape} | changes


def test_raw_and_typed_contents_are_what_run_gives(channel: Any, artifacts: Path) -> None:
    expected = tvmopt.load(artifacts / "rows.tvmopt")(X)
    typed = {"inputs": [tensor(contents={"fp32_contents": X.ravel()})]}
    for form in ({"inputs": [tensor()], "raw_input_contents": [X.tobytes()]}, typed):
        found = call(channel, "ModelInfer", model_name="rows", id="me", **form)
        assert (found.id, found.model_name, found.model_version) == ("me", "rows", "1")
        assert (found.outputs[0].name, found.outputs[0].datatype, [*found.outputs[0].shape]) == ("y", "FP32", [3, 4])
        got = np.frombuffer(found.raw_output_contents[0], np.float32).reshape(3, 4)
        np.testing.assert_array_equal(got, expected)


def test_what_was_read_before_is_checked_again(channel: Any, artifacts: Path) -> None:
    """A client says the same before its tensors again and again; what follows may be another tensor, or none."""
    model = tvmopt.load(artifacts / "rows.tvmopt")
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32)
        found = call(channel, "ModelInfer", model_name="rows", inputs=[tensor()], raw_input_contents=[x.tobytes()])
        np.testing.assert_array_equal(np.frombuffer(found.raw_output_contents[0], np.float32), model(x).ravel())
    for raw in ([X.tobytes()[:-4]], [X.tobytes()] * 2):
        with pytest.raises(grpc.RpcError) as raised:
            call(channel, "ModelInfer", model_name="rows", inputs=[tensor()], raw_input_contents=raw)
        assert raised.value.code().name == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model_name": "none"}, "NOT_FOUND"), ({"model_name": "rows", "model_version": "9"}, "NOT_FOUND"),
        ({"model_name": "rows"}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor()], "raw_input_contents": [X.tobytes()[:-1]]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor()], "raw_input_contents": [X.tobytes()] * 2}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(datatype="BYTES")], "raw_input_contents": [b""]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(shape=[-1, 8])], "raw_input_contents": [b""]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(shape=[40, 8])], "raw_input_contents": [bytes(40 * 32)]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor()]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(contents={"int_contents": [1] * 24})]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(contents={"fp32_contents": [1] * 24})], "raw_input_contents": [X.tobytes()]},
         "INVALID_ARGUMENT"),
        ({"inputs": [tensor()], "raw_input_contents": [X.tobytes()], "outputs": [{"name": "q"}]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor()], "raw_input_contents": [bytes(2 << 20)]}, "RESOURCE_EXHAUSTED"),
    ],
)  # fmt: skip
def test_wrong_requests_have_their_status(channel: Any, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, "ModelInfer", **{"model_name": "rows", **fields})
    assert raised.value.code().name == code and raised.value.details()


def test_garbage_is_refused(channel: Any) -> None:
    def plain(data: bytes) -> bytes:
        return data

    for method, code in (("ModelInfer", "INVALID_ARGUMENT"), ("NoMethod", "UNIMPLEMENTED")):
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(f"/{SERVICE}/{method}", plain, plain)(b"\xff" * 100, timeout=60)
        assert raised.value.code().name == code
    stream = channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer", plain, messages().ModelStreamInferResponse.FromString
    )
    (found,) = stream(iter([b"\xff" * 100]), timeout=60)
    assert "no message" in found.error_message
    assert call(channel, "ServerLive").live and call(channel, "ServerReady").ready


def test_what_there_is(channel: Any) -> None:
    found = call(channel, "ModelMetadata", name="rows")
    assert [*found.versions] == ["1"] and [*found.inputs[0].shape] == [-1, 8]
    assert call(channel, "ModelReady", name="rows").ready and call(channel, "ServerMetadata").name == "tvmopt"
    call(channel, "RepositoryModelUnload", model_name="kinds")
    assert not call(channel, "ModelReady", name="kinds").ready
    assert "kinds" not in [m.name for m in call(channel, "RepositoryIndex", ready=True).models]
    call(channel, "RepositoryModelLoad", model_name="kinds")
    assert call(channel, "ModelReady", name="kinds").ready


def test_what_tritons_clients_ask_beside(channel: Any, running: Running) -> None:
    """A model's configuration and statistics, the same by both ways."""
    (before,) = call(channel, "ModelStatistics", name="twice").model_stats  # other tests ask this server, too
    for _ in range(2):
        call(channel, "ModelInfer", model_name="twice", inputs=[tensor()], raw_input_contents=[X.tobytes()])
    with pytest.raises(grpc.RpcError):
        call(channel, "ModelInfer", model_name="twice")
    found = call(channel, "ModelConfig", name="twice").config
    assert (found.name, found.max_batch_size, found.input[0].data_type) == ("twice", 0, 11)
    assert [*found.input[0].dims] == [-1, 8] and [*found.output[0].dims] == [-1, 4]
    told = json.loads(http(running, "GET", "/v2/models/twice/config")[2])
    assert told["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 8]}]
    (one,) = call(channel, "ModelStatistics", name="twice").model_stats
    stats, known = one.inference_stats, before.inference_stats
    assert one.version == "1" and one.execution_count - before.execution_count == 2
    assert stats.success.count - known.success.count == 2 and stats.fail.count - known.fail.count == 1
    assert stats.compute_infer.ns > 0 and one.last_inference > 1e12
    (same,) = json.loads(http(running, "GET", "/v2/models/twice/stats")[2])["model_stats"]
    assert same["inference_stats"]["compute_infer"] == {
        "count": one.execution_count,
        "ns": stats.compute_infer.ns,
    }
    every = json.loads(http(running, "GET", "/v2/models/stats")[2])["model_stats"]
    assert {"rows", "twice"} <= {each["name"] for each in every}
    assert http(running, "GET", "/v2/models/none/stats")[0] == http(running, "GET", "/v2/models/none/config")[0] == 404


def test_kubernetes_asks_for_health(channel: Any) -> None:
    """As grpcio-health-checking's client and Kubernetes' probe send it: the service's name in field 1, if any."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for request in (b"", b"\x0a" + bytes([len(SERVICE)]) + SERVICE.encode()):
        assert check(request, timeout=60) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as raised:
        check(b"\x0a\x05other", timeout=60)
    assert raised.value.code().name == "NOT_FOUND"
    call(channel, "RepositoryModelUnload", model_name="kinds")
    assert check(b"", timeout=60) == b"\x08\x01", "a model that was taken away by hand is no failure"
    call(channel, "RepositoryModelLoad", model_name="kinds")


@pytest.mark.parametrize("name", ["classification", "shared_memory_region"])
def test_what_cannot_be_passed_over_is_refused(channel: Any, name: str) -> None:
    parameters = [{"key": name, "value": {"int64_param": 3}}]
    given = {"inputs": [tensor()], "outputs": [{"name": "y", "parameters": parameters}]}
    if name != "classification":
        given = {"inputs": [tensor(parameters=parameters)]}
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, "ModelInfer", model_name="rows", raw_input_contents=[X.tobytes()], **given)
    assert raised.value.code().name == "INVALID_ARGUMENT" and "not supported" in raised.value.details()


def test_the_messages_are_tritons() -> None:
    service = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
    configs = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
    theirs = {**configs.DESCRIPTOR.message_types_by_name, **service.DESCRIPTOR.message_types_by_name}
    nested = {"InferInputTensor": "ModelInferRequest", "InferRequestedOutputTensor": "ModelInferRequest",
              "InferOutputTensor": "ModelInferResponse", "TensorMetadata": "ModelMetadataResponse",
              "ModelIndex": "RepositoryIndexResponse"}  # fmt: skip
    for name in MESSAGES:
        if name == "Parameter":
            continue
        known = theirs[nested[name]].nested_types_by_name[name] if name in nested else theirs[name]
        for field in getattr(messages(), name).DESCRIPTOR.fields:
            same = known.fields_by_name[field.name]
            assert (field.number, field.type) == (same.number, same.type), f"{name}.{field.name}"
            if field.enum_type is not None:
                assert field.enum_type.values_by_name.keys() == same.enum_type.values_by_name.keys()
                for value in field.enum_type.values:
                    assert same.enum_type.values_by_name[value.name].number == value.number


def test_tritonclient_gets_what_run_gives(running: Running, artifacts: Path) -> None:
    expected = tvmopt.load(artifacts / "rows.tvmopt")(X)
    for way, address in (("http", running.http), ("grpc", running.grpc)):
        triton = pytest.importorskip(f"tritonclient.{way}", reason="tritonclient is not installed")
        with triton.InferenceServerClient(address) as client:
            assert client.is_server_ready() and client.is_model_ready("rows")
            given = triton.InferInput("x", X.shape, "FP32")
            given.set_data_from_numpy(X)
            found = client.infer("rows", [given], outputs=[triton.InferRequestedOutput("y")]).as_numpy("y")
            np.testing.assert_array_equal(found, expected)
