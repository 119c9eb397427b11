"""Reflection: what a client that has no `.proto` file is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.conftest import Running
from tvmopt.serving.messages import FILES, INFERENCE, SERVICE, described, messages

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

VERSIONS = ("v1", "v1alpha")


@pytest.fixture
def channel(running: Running) -> Iterator[Any]:
    with grpc.insecure_channel(running.grpc) as found:
        yield found


def asked(channel: Any, version: str, *requests: dict[str, Any]) -> list[Any]:
    """The answers of one stream."""
    types = messages()
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        types.ServerReflectionRequest.SerializeToString, types.ServerReflectionResponse.FromString,
    )  # fmt: skip
    return list(method(iter([types.ServerReflectionRequest(**one) for one in requests]), timeout=60))


def file_of(answer: Any) -> Any:
    (data,) = answer.file_descriptor_response.file_descriptor_proto
    return descriptor_pb2.FileDescriptorProto.FromString(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_services_and_what_they_take_are_told(channel: Any, version: str) -> None:
    (listed,) = asked(channel, version, {"list_services": ""})
    names = [one.name for one in listed.list_services_response.service]
    assert names == sorted(names) and SERVICE in names and "grpc.health.v1.Health" in names
    found = asked(channel, version, *({"file_containing_symbol": name} for name in names))
    assert [answer.original_request.file_containing_symbol for answer in found] == names
    pool = descriptor_pool.DescriptorPool()
    for answer in found:
        pool.Add(file_of(answer))
    for name in names:
        assert pool.FindServiceByName(name).methods
    method = pool.FindServiceByName(SERVICE).methods_by_name["ModelStreamInfer"]
    assert method.client_streaming and method.server_streaming
    metadata = pool.FindServiceByName(SERVICE).methods_by_name["ModelMetadata"]
    given, got = (message_factory.GetMessageClass(kind) for kind in (metadata.input_type, metadata.output_type))
    call = channel.unary_unary(f"/{SERVICE}/ModelMetadata", given.SerializeToString, got.FromString)
    assert call(given(name="rows"), timeout=60).platform == "tvmopt", "a call by what was told alone"


def test_every_symbol_and_file_is_found(channel: Any) -> None:
    for package in FILES:
        file = described(package)
        kinds = [m.name for m in file.message_type if m.name != "Parameter"] + [e.name for e in file.enum_type]
        kinds += [f"{service.name}.{method.name}" for service in file.service for method in service.method]
        kinds += [f"{m.name}.{m.field[0].name}" for m in file.message_type if m.field and m.name != "Parameter"]
        found = asked(channel, "v1", *({"file_containing_symbol": f"{package}.{kind}"} for kind in kinds))
        assert {file_of(answer).name for answer in found} == {file.name}
        (one,) = asked(channel, "v1", {"file_by_filename": file.name})
        assert file_of(one).package == package


def test_parameters_are_maps_of_the_same_bytes(channel: Any) -> None:
    (found,) = asked(channel, "v1", {"file_containing_symbol": f"{INFERENCE}.ModelInferRequest"})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_of(found))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{INFERENCE}.ModelInferRequest"))
    given = kind(model_name="rows", inputs=[{"name": "x"}])
    given.parameters["a"].int64_param = 3
    given.inputs[0].parameters["b"].string_param = "c"
    ours = messages().ModelInferRequest.FromString(given.SerializeToString())
    assert [(p.key, p.value.int64_param) for p in ours.parameters] == [("a", 3)]
    assert [(p.key, p.value.string_param) for p in ours.inputs[0].parameters] == [("b", "c")]


def test_what_is_not_there_is_not_found(channel: Any) -> None:
    unknown = (
        {"file_containing_symbol": "no.such"}, {"file_by_filename": "no.proto"}, {},
        {"all_extension_numbers_of_type": "no.such"},
        {"file_containing_extension": {"containing_type": SERVICE, "extension_number": 7}},
    )  # fmt: skip
    found = asked(channel, "v1", *unknown, {"all_extension_numbers_of_type": f"{INFERENCE}.ModelConfig"})
    assert [answer.error_response.error_code for answer in found] == [5] * len(unknown) + [0]
    assert "no.such" in found[0].error_response.error_message
    assert not found[-1].all_extension_numbers_response.extension_number
    plain = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    (garbage,) = plain(iter([b"\xff\xff\xff"]), timeout=60)
    assert messages().ServerReflectionResponse.FromString(garbage).error_response.error_code == 5


def test_grpcs_own_client_understands_it(channel: Any) -> None:
    database = pytest.importorskip(
        "grpc_reflection.v1alpha.proto_reflection_descriptor_database", reason="grpcio-reflection is not installed"
    ).ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    assert pool.FindServiceByName(SERVICE).methods_by_name["ModelInfer"].input_type.fields_by_name["raw_input_contents"]
    assert pool.FindMessageTypeByName("grpc.health.v1.HealthCheckResponse").fields_by_name["status"].enum_type
