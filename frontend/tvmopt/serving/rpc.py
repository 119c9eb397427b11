"""The protocol over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np

import tvmopt
from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import Array, TensorInfo
from tvmopt.serving import protocol, texts_rpc, wire
from tvmopt.serving.messages import METHODS, SERVICE, messages
from tvmopt.serving.refusals import CODES, Refused, bad
from tvmopt.serving.service import EXTENSIONS, Service

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""The field for numbers of each datatype; 16-bit floats have none."""


WINDOWS = (("grpc.http2.max_frame_size", 1 << 20), ("grpc.http2.lookahead_bytes", 4 << 20), ("grpc.http2.bdp_probe", 0))
"""A picture comes in one frame, and its sender waits for no window: 0.1 ms of 602 kB."""

NO_MESSAGE = "the request is no message of the Open Inference Protocol."


def _message_or_none(kind: Any, read: Callable[[Any, bytes], Any] = lambda kind, data: kind.FromString(data)) -> Any:
    """What reads a message; grpc itself answers what it cannot read with UNKNOWN."""
    from google.protobuf.message import DecodeError

    def message(data: bytes) -> Any:
        try:
            return read(kind, data)
        except DecodeError:
            return None

    return message


def server(service: Service) -> Any:
    """A gRPC server that is not started yet."""
    import grpc

    options = [
        ("grpc.max_receive_message_length", service.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        *WINDOWS,
    ]
    made = grpc.aio.server(options=options)
    calls, types = Calls(service), messages()

    def handler(name: str) -> Any:
        work = getattr(calls, name)

        async def answer(request: Any, context: Any) -> Any:
            try:
                if request is None:
                    raise bad(NO_MESSAGE)
                return await work(request)
            except Refused as refused:
                await context.abort(getattr(grpc.StatusCode, CODES[refused.status]), refused.text)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=reader(name),
            response_serializer=getattr(types, f"{name}Response").SerializeToString,
        )

    def reader(name: str) -> Any:
        kind = getattr(types, f"{name}Request")
        return _message_or_none(kind, wire.read) if name == "ModelInfer" else _message_or_none(kind)

    handlers = {n: handler(n) for n in METHODS}
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        calls.ModelStreamInfer,
        request_deserializer=_message_or_none(types.ModelInferRequest),
        response_serializer=types.ModelStreamInferResponse.SerializeToString,
    )
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return made


class Calls:
    """The service's methods, by their names."""

    def __init__(self, service: Service) -> None:
        self._service, self._types = service, messages()

    async def ServerLive(self, request: Any) -> Any:
        return self._types.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any) -> Any:
        return self._types.ServerReadyResponse(ready=self._service.is_ready)

    async def ServerMetadata(self, request: Any) -> Any:
        return self._types.ServerMetadataResponse(name="tvmopt", version=tvmopt.__version__, extensions=EXTENSIONS)

    async def ModelReady(self, request: Any) -> Any:
        try:
            self._service.repository.find(request.name, request.version)
        except Refused as refused:
            if refused.status == 404:
                raise
            return self._types.ModelReadyResponse(ready=False)
        return self._types.ModelReadyResponse(ready=True)

    async def ModelMetadata(self, request: Any) -> Any:
        repository = self._service.repository
        _, batcher = repository.find(request.name, request.version)
        found = protocol.metadata(request.name, repository.versions(request.name), batcher.model)
        return self._types.ModelMetadataResponse(**found)

    async def RepositoryIndex(self, request: Any) -> Any:
        found = [m for m in self._service.repository.index() if not request.ready or m["state"] == "READY"]
        return self._types.RepositoryIndexResponse(models=found)

    async def RepositoryModelLoad(self, request: Any) -> Any:
        await asyncio.to_thread(self._service.repository.load, request.model_name)
        return self._types.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        self._service.repository.unload(request.model_name)
        return self._types.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: Any) -> Any:
        def decode(model: Model) -> protocol.Request:
            feeds = _feeds(request, model)
            names = [o.name for o in request.outputs] or [o.name for o in model.outputs]
            protocol.check_outputs(model, names)
            return protocol.Request(feeds, dict.fromkeys(names, True), request.id)

        def encode(asked: protocol.Request, version: str, found: Mapping[str, Array], model: Model) -> Any:
            infos = {o.name: o for o in model.outputs}
            outputs = [
                {"name": n, "datatype": protocol.DATATYPES[infos[n].dtype], "shape": found[n].shape}
                for n in asked.outputs
            ]
            raw = [np.ascontiguousarray(found[n]).tobytes() for n in asked.outputs]
            return self._types.ModelInferResponse(
                model_name=request.model_name, model_version=version, id=asked.id, outputs=outputs,
                raw_output_contents=raw,
            )  # fmt: skip

        return await self._service.infer(request.model_name, request.model_version, "grpc", decode, encode)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
        """Answers in the order of the requests: one of each, or, of a text, one of each token and an end."""
        types = self._types
        async for request in requests:
            try:
                if request is None:
                    request = types.ModelInferRequest()
                    raise bad(NO_MESSAGE)
                if texts_rpc.is_text(request, self._model(request)):
                    asked = texts_rpc.asked(request)
                    found = self._service.generate(request.model_name, request.model_version, "grpc", asked)
                    async with aclosing(found) as pieces:
                        async for version, piece in pieces:
                            yield types.ModelStreamInferResponse(
                                infer_response=texts_rpc.answer(types, request, version, piece)
                            )
                else:
                    yield types.ModelStreamInferResponse(infer_response=await self.ModelInfer(request))
            except Refused as refused:
                given = types.ModelInferResponse(model_name=request.model_name, id=request.id)
                yield types.ModelStreamInferResponse(error_message=refused.text, infer_response=given)

    def _model(self, request: Any) -> Model:
        return self._service.repository.find(request.model_name, request.model_version)[1].model


def _feeds(request: Any, model: Model) -> dict[str, Array]:
    """The inputs of a request.

    Raises:
        Refused: they are not what the model takes.
    """
    protocol.check_names(model, [i.name for i in request.inputs])
    infos = {i.name: i for i in model.inputs}
    shapes = {i.name: protocol.checked_shape(infos[i.name], i.datatype, tuple(i.shape)) for i in request.inputs}
    protocol.check_sizes(model, shapes)
    raw = request.raw_input_contents
    if not raw:
        return {i.name: _typed(infos[i.name], shapes[i.name], i) for i in request.inputs}
    if len(raw) != len(request.inputs):
        raise bad(f"there are {len(request.inputs)} inputs and {len(raw)} raw contents.")
    if any(i.HasField("contents") for i in request.inputs):
        raise bad("an input has contents beside the raw contents.")
    given = zip(request.inputs, raw, strict=True)
    return {i.name: protocol.from_bytes(infos[i.name], shapes[i.name], data) for i, data in given}


def _typed(info: TensorInfo, shape: tuple[int, ...], one: Any) -> Array:
    field = CONTENTS.get(protocol.DATATYPES[info.dtype])
    if field is None:
        raise bad(f"the input {info.name!r} is {protocol.DATATYPES[info.dtype]}, which is sent as raw contents only.")
    others = [d.name for d, _ in one.contents.ListFields() if d.name != field]
    if others:
        raise bad(f"the input {info.name!r} has {others[0]}; its datatype is sent in {field}.")
    return protocol.from_list(info, shape, list(getattr(one.contents, field)))
