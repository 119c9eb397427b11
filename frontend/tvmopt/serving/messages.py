"""The gRPC messages of the Open Inference Protocol v2, made from a table of their fields - for `rpc`.

Field numbers are the protocol's (github.com/kserve/open-inference-protocol) and, for the repository, a model's
configuration and its statistics, those of Triton's extensions; HealthCheck is of `grpc.health.v1`. Made at run time
they fit every version of protobuf, which generated code does not.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

SERVICE = "inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health/Check"

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
    "ModelInput": "name:1:string data_type:2:int32 dims:4:*int64",
    "ModelOutput": "name:1:string data_type:2:int32 dims:3:*int64",
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
    "HealthCheckRequest": "service:1:string",
    "HealthCheckResponse": "status:1:int32",
}
"""Fields as ``name:number:type``; ``*`` is a list, ``?`` a choice of one. A map of the protocol is, on the wire, a list
of its entries; an enumeration is a number."""

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
           "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelConfig",
           "ModelStatistics")  # fmt: skip


@cache
def messages() -> Any:
    """The classes of all messages, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tvmopt/inference.proto", package="inference", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            key, number, kind = text.split(":")
            many, choice, kind = kind.startswith("*"), kind.startswith("?"), kind.lstrip("*?")
            made = message.field.add(name=key, number=int(number))
            made.label = field.LABEL_REPEATED if many else field.LABEL_OPTIONAL
            if kind in MESSAGES:
                made.type, made.type_name = field.TYPE_MESSAGE, f".inference.{kind}"
            else:
                made.type = getattr(field, f"TYPE_{kind.upper()}")
            if choice:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="parameter_choice")
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()  # of its own: a client in this process has messages of the same names
    pool.Add(file)
    found = {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{n}")) for n in MESSAGES}
    return SimpleNamespace(**found)
