"""The protocol over gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import tvmopt
from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import Array
from tvmopt.serving import protocol, reflection, texts_rpc, triton, wire
from tvmopt.serving.http2 import Connection, closed
from tvmopt.serving.messages import HEALTH, METHODS, SERVICE, messages
from tvmopt.serving.refusals import CODES, Refused, bad
from tvmopt.serving.rpc_calls import Call, Method, Methods, Pieces
from tvmopt.serving.service import EXTENSIONS, Service

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""The field for numbers of each datatype; 16-bit floats have none."""


RAW_OUTPUT = 6
"""The number of the field `raw_output_contents`."""

_plans = protocol.Plans()

NO_MESSAGE = "the request is no message of the Open Inference Protocol."


class Server:
    """The protocol over gRPC, on the running loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: set[Connection] = set()
        self._server: Any = None

    async def start(self, listening: socket.socket, seconds: float) -> None:
        """Listen.

        Args:
            seconds: how long a client may take to send a request.
        """
        known = methods(self._service, seconds)
        alone, found = self._service.alone, self._known

        def made(connection: Connection, number: int) -> Call:
            return Call(connection, number, known)

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(made, alone, found, seconds), sock=listening)

    async def stop(self, grace: float) -> None:
        """Take no connection more, answer what was taken, and close."""
        self._server.close()
        await closed(self._known, grace)


def methods(service: Service, seconds: float) -> Methods:
    """What is done for each path."""
    calls, types = Calls(service), messages()

    async def health(request: Any) -> Pieces:
        """What Kubernetes asks."""
        if request is None or request.service not in ("", SERVICE):
            raise Refused(404, f"there is no other service than {SERVICE}.")
        return [types.HealthCheckResponse(status="SERVING" if service.is_ready else "NOT_SERVING").SerializeToString()]

    def reader(name: str, read: Any = lambda kind, data: kind.FromString(bytes(data))) -> Any:
        from google.protobuf.message import DecodeError

        kind = getattr(types, f"{name}Request")

        def message(data: memoryview) -> Any:
            try:
                return read(kind, data)
            except DecodeError:
                return None

        return message

    def plain(name: str) -> Method:
        work = getattr(calls, name)

        async def one(request: Any) -> Pieces:
            if request is None:
                raise bad(NO_MESSAGE)
            return [(await work(request)).SerializeToString()]

        return Method(reader(name), one)

    async def stream(requests: Any) -> AsyncGenerator[Pieces]:
        async with aclosing(calls.ModelStreamInfer(requests)) as answers:
            async for answer in answers:
                yield [answer.SerializeToString()]

    found = {name: plain(name) for name in METHODS}
    found["ModelInfer"] = Method(reader("ModelInfer", wire.read), calls.infer, at_once=True)
    found["ModelStreamInfer"] = Method(reader("ModelInfer"), many=stream)
    paths = {f"/{SERVICE}/{name}".encode(): method for name, method in found.items()}
    paths[f"/{HEALTH}.Health/Check".encode()] = Method(reader("HealthCheck"), health)
    for path in reflection.PATHS:
        paths[path.encode()] = Method(reader("ServerReflection"), many=reflection.answers)
    return Methods(paths, lambda refused: CODES[refused.status], service.max_body, seconds)


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

    async def ModelConfig(self, request: Any) -> Any:
        _, batcher = self._service.repository.find(request.name, request.version)
        return self._types.ModelConfigResponse(config=triton.config(request.name, batcher.model))

    async def ModelStatistics(self, request: Any) -> Any:
        found = triton.statistics(self._service, request.name, request.version)
        told = [{k: v for k, v in one.items() if k != "batch_stats"} for one in found]
        return self._types.ModelStatisticsResponse(model_stats=told)

    async def RepositoryIndex(self, request: Any) -> Any:
        found = [m for m in self._service.repository.index() if not request.ready or m["state"] == "READY"]
        return self._types.RepositoryIndexResponse(models=found)

    async def RepositoryModelLoad(self, request: Any) -> Any:
        await asyncio.to_thread(self._service.repository.load, request.model_name)
        return self._types.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        self._service.repository.unload(request.model_name)
        return self._types.RepositoryModelUnloadResponse()

    async def infer(self, request: Any) -> Pieces:
        """One inference, whose outputs are not copied into a message."""
        if request is None:
            raise bad(NO_MESSAGE)

        def decode(model: Model) -> protocol.Request:
            apart = isinstance(request, wire.Apart)
            plan = _plans.of(model, request.head, lambda m, head: _read(request, m)) if apart else _read(request, model)
            raw = request.raw_input_contents
            if raw and len(raw) != len(plan.inputs):
                raise bad(f"there are {len(plan.inputs)} inputs and {len(raw)} raw contents.")
            feeds = {
                one.info.name: protocol.from_bytes(one.info, one.shape, given) if raw else _typed(one, given)
                for one, given in zip(plan.inputs, raw or request.inputs, strict=True)
            }
            return plan.request(feeds)

        def encode(asked: protocol.Request, version: str, found: Mapping[str, Array], model: Model) -> Pieces:
            tensors = [found[n] for n in asked.outputs]

            def told() -> list[bytes]:
                infos = {o.name: o for o in model.outputs}
                outputs = [
                    {"name": n, "datatype": protocol.DATATYPES[infos[n].dtype], "shape": found[n].shape}
                    for n in asked.outputs
                ]
                made = self._types.ModelInferResponse(
                    model_name=request.model_name, model_version=version, id=asked.id, outputs=outputs
                )
                first, *others = [wire.head(RAW_OUTPUT, array.nbytes) for array in tensors]
                return [made.SerializeToString() + first, *others]

            heads = protocol.head_of(asked, request.model_name, version, tensors, told)
            return [part for head, array in zip(heads, tensors, strict=True) for part in (head, array.tobytes())]

        found: Pieces = await self._service.infer(request.model_name, request.model_version, "grpc", decode, encode)
        return found

    async def ModelInfer(self, request: Any) -> Any:
        return self._types.ModelInferResponse.FromString(b"".join(await self.infer(request)))

    async def ModelStreamInfer(self, requests: Any) -> AsyncGenerator[Any]:
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


def _read(request: Any, model: Model) -> protocol.Plan:
    """What a request says before its raw contents.

    Raises:
        Refused: it is not what the model takes.
    """
    protocol.check_names(model, [i.name for i in request.inputs])
    for one in (*request.inputs, *request.outputs):
        protocol.check_parameters({entry.key for entry in one.parameters})
    infos = {i.name: i for i in model.inputs}
    shapes = {i.name: protocol.checked_shape(infos[i.name], i.datatype, tuple(i.shape)) for i in request.inputs}
    protocol.check_sizes(model, shapes)
    if request.raw_input_contents and any(i.HasField("contents") for i in request.inputs):
        raise bad("an input has contents beside the raw contents.")
    names = [o.name for o in request.outputs] or [o.name for o in model.outputs]
    protocol.check_outputs(model, names)
    inputs = [protocol.Given(infos[i.name], shapes[i.name]) for i in request.inputs]
    return protocol.Plan(inputs, dict.fromkeys(names, True), request.id)


def _typed(given: protocol.Given, one: Any) -> Array:
    info = given.info
    field = CONTENTS.get(protocol.DATATYPES[info.dtype])
    if field is None:
        raise bad(f"the input {info.name!r} is {protocol.DATATYPES[info.dtype]}, which is sent as raw contents only.")
    others = [d.name for d, _ in one.contents.ListFields() if d.name != field]
    if others:
        raise bad(f"the input {info.name!r} has {others[0]}; its datatype is sent in {field}.")
    return protocol.from_list(info, given.shape, list(getattr(one.contents, field)))
