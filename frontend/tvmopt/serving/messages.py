"""The gRPC services and messages that are served, made from a table of their fields - for `rpc` and `reflection`.

Those of the Open Inference Protocol v2 have its field numbers (github.com/kserve/open-inference-protocol) and, for the
repository, a model's configuration and its statistics, those of Triton's extensions; beside them are grpc.health.v1 and
grpc.reflection. Made at run time they fit every version of protobuf, which generated code does not.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

INFERENCE, HEALTH, REFLECTION, ALPHA = (
    "inference", "grpc.health.v1", "grpc.reflection.v1", "grpc.reflection.v1alpha"
)  # fmt: skip
"""Packages."""

SERVICE = f"{INFERENCE}.GRPCInferenceService"

TENSOR = "name:1:string datatype:2:string shape:3:*int64"
MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:1:bool",
    "ModelReadyRequest": "name:1:string version:2:string",
    "ModelReadyResponse": "ready:1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:1:string version:2:string extensions:3:*string",
    "ModelMetadataRequest": "name:1:string version:2:string",
    "TensorMetadata": TENSOR,
    "ModelMetadataResponse": "name:1:string versions:2:*string platform:3:string inputs:4:*TensorMetadata "
    "outputs:5:*TensorMetadata",
    "InferParameter": "bool_param:1:?bool int64_param:2:?int64 string_param:3:?string double_param:4:?double "
    "uint64_param:5:?uint64",
    "Parameter": "key:1:string value:2:InferParameter",
    "InferTensorContents": "bool_contents:1:*bool int_contents:2:*int32 int64_contents:3:*int64 "
    "uint_contents:4:*uint32 uint64_contents:5:*uint64 fp32_contents:6:*float fp64_contents:7:*double "
    "bytes_contents:8:*bytes",
    "InferInputTensor": f"{TENSOR} parameters:4:*Parameter contents:5:InferTensorContents",
    "InferRequestedOutputTensor": "name:1:string parameters:2:*Parameter",
    "ModelInferRequest": "model_name:1:string model_version:2:string id:3:string parameters:4:*Parameter "
    "inputs:5:*InferInputTensor outputs:6:*InferRequestedOutputTensor raw_input_contents:7:*bytes",
    "InferOutputTensor": f"{TENSOR} parameters:4:*Parameter contents:5:InferTensorContents",
    "ModelInferResponse": "model_name:1:string model_version:2:string id:3:string parameters:4:*Parameter "
    "outputs:5:*InferOutputTensor raw_output_contents:6:*bytes",
    "ModelStreamInferResponse": "error_message:1:string infer_response:2:ModelInferResponse",
    "RepositoryIndexRequest": "repository_name:1:string ready:2:bool",
    "ModelIndex": "name:1:string version:2:string state:3:string reason:4:string",
    "RepositoryIndexResponse": "models:1:*ModelIndex",
    "RepositoryModelLoadRequest": "repository_name:1:string model_name:2:string",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name:1:string model_name:2:string",
    "RepositoryModelUnloadResponse": "",
    "ModelConfigRequest": "name:1:string version:2:string",
    "ModelInput": "name:1:string data_type:2:DataType dims:4:*int64",
    "ModelOutput": "name:1:string data_type:2:DataType dims:3:*int64",
    "ModelConfig": "name:1:string platform:2:string max_batch_size:4:int32 input:5:*ModelInput output:6:*ModelOutput "
    "backend:17:string",
    "ModelConfigResponse": "config:1:ModelConfig",
    "ModelStatisticsRequest": "name:1:string version:2:string",
    "StatisticDuration": "count:1:uint64 ns:2:uint64",
    "InferStatistics": "success:1:StatisticDuration fail:2:StatisticDuration queue:3:StatisticDuration "
    "compute_input:4:StatisticDuration compute_infer:5:StatisticDuration compute_output:6:StatisticDuration",
    "ModelStatistics": "name:1:string version:2:string last_inference:3:uint64 inference_count:4:uint64 "
    "execution_count:5:uint64 inference_stats:6:InferStatistics",
    "ModelStatisticsResponse": "model_stats:1:*ModelStatistics",
}
"""Fields as ``name:number:type``; ``*`` is a list, ``?`` a choice of one. A map of the protocol is, on the wire, a list
of its entries (`Parameter`)."""

HEALTH_MESSAGES = {
    "HealthCheckRequest": "service:1:string",
    "HealthCheckResponse": "status:1:ServingStatus",
}

REFLECTION_MESSAGES = {
    "ExtensionRequest": "containing_type:1:string extension_number:2:int32",
    "ServerReflectionRequest": "host:1:string file_by_filename:3:?string file_containing_symbol:4:?string "
    "file_containing_extension:5:?ExtensionRequest all_extension_numbers_of_type:6:?string list_services:7:?string",
    "FileDescriptorResponse": "file_descriptor_proto:1:*bytes",
    "ExtensionNumberResponse": "base_type_name:1:string extension_number:2:*int32",
    "ServiceResponse": "name:1:string",
    "ListServiceResponse": "service:1:*ServiceResponse",
    "ErrorResponse": "error_code:1:int32 error_message:2:string",
    "ServerReflectionResponse": "valid_host:1:string original_request:2:ServerReflectionRequest "
    "file_descriptor_response:4:?FileDescriptorResponse all_extension_numbers_response:5:?ExtensionNumberResponse "
    "list_services_response:6:?ListServiceResponse error_response:7:?ErrorResponse",
}

ENUMERATIONS = {
    "DataType": [f"TYPE_{name}" for name in (
        "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
        "FP64", "STRING", "BF16",
    )],
    "ServingStatus": ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"],
}  # fmt: skip
"""Names in the order of their numbers."""

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
           "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelConfig",
           "ModelStatistics")  # fmt: skip
"""Of one request `NAMERequest` and one answer `NAMEResponse`."""

STREAMS = {
    "ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse"),
    "ServerReflectionInfo": ("ServerReflectionRequest", "ServerReflectionResponse"),
}
"""Of streams in both directions."""

FILES = {
    INFERENCE: (MESSAGES, {"GRPCInferenceService": [*METHODS, "ModelStreamInfer"]}),
    HEALTH: (HEALTH_MESSAGES, {"Health": ["Check"]}),
    REFLECTION: (REFLECTION_MESSAGES, {"ServerReflection": ["ServerReflectionInfo"]}),
    ALPHA: (REFLECTION_MESSAGES, {"ServerReflection": ["ServerReflectionInfo"]}),
}
"""Messages, and services with their methods, of each package."""


def described(package: str) -> Any:
    """A package as protobuf describes it, a `FileDescriptorProto`."""
    from google.protobuf import descriptor_pb2

    fields, services = FILES[package]
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, text in fields.items():
        message = file.message_type.add(name=name)
        for one in text.split():
            _add_field(message, package, fields, *one.split(":"))
    used = {field.type_name.rpartition(".")[2] for message in file.message_type for field in message.field}
    for name in sorted(used & set(ENUMERATIONS)):
        values = [{"name": value, "number": number} for number, value in enumerate(ENUMERATIONS[name])]
        file.enum_type.add(name=name, value=values)
    for service, methods in services.items():
        added = file.service.add(name=service)
        for method in methods:
            prefix = "HealthCheck" if package == HEALTH else method
            request, response = STREAMS.get(method, (f"{prefix}Request", f"{prefix}Response"))
            both = method in STREAMS
            added.method.add(
                name=method, input_type=f".{package}.{request}", output_type=f".{package}.{response}",
                client_streaming=both, server_streaming=both,
            )  # fmt: skip
    return file


def _add_field(message: Any, package: str, known: dict[str, str], name: str, number: str, kind: str) -> None:
    many, choice, kind = kind.startswith("*"), kind.startswith("?"), kind.lstrip("*?")
    made = message.field.add(name=name, number=int(number))
    made.label = made.LABEL_REPEATED if many else made.LABEL_OPTIONAL
    if kind in known or kind in ENUMERATIONS:
        made.type = made.TYPE_MESSAGE if kind in known else made.TYPE_ENUM
        made.type_name = f".{package}.{kind}"
    else:
        made.type = getattr(made, f"TYPE_{kind.upper()}")
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice" if name.endswith("_param") else "message")
        made.oneof_index = 0


@cache
def messages() -> Any:
    """The classes of all messages, by name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()  # of its own: a client in this process has messages of the same names
    found = {}
    for package in (INFERENCE, HEALTH, REFLECTION):
        pool.Add(described(package))
        for name in FILES[package][0]:
            found[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return SimpleNamespace(**found)
