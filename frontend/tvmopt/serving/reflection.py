"""gRPC's server reflection: what is served, for clients that have no `.proto` file, as grpcurl - for `rpc`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import cache
from typing import Any

from tvmopt.serving.messages import ALPHA, FILES, INFERENCE, REFLECTION, described, messages

PATHS = [f"/{package}.ServerReflection/ServerReflectionInfo" for package in (REFLECTION, ALPHA)]
NOT_FOUND = 5


async def answers(requests: AsyncIterator[Any]) -> AsyncGenerator[list[bytes]]:
    """An answer to each request of a stream."""
    async for request in requests:
        given = request if request is not None else messages().ServerReflectionRequest()
        found = messages().ServerReflectionResponse(original_request=given, **answer(given))
        yield [found.SerializeToString()]


def answer(request: Any) -> dict[str, Any]:
    """The fields of the answer."""
    asked = request.WhichOneof("message")
    if asked == "list_services":
        names = sorted(f"{package}.{service}" for package, (_, services) in FILES.items() for service in services)
        return {"list_services_response": {"service": [{"name": name} for name in names]}}
    files, symbols = _served()
    value = getattr(request, asked) if asked else ""
    if asked == "file_by_filename" and value in files:
        return {"file_descriptor_response": {"file_descriptor_proto": [files[value]]}}
    if asked == "file_containing_symbol" and value in symbols:
        return {"file_descriptor_response": {"file_descriptor_proto": [files[symbols[value]]]}}
    if asked == "all_extension_numbers_of_type" and value in symbols:
        return {"all_extension_numbers_response": {"base_type_name": value}}
    told = f"{value} is not served" if isinstance(value, str) and value else "there is no such thing"
    return {"error_response": {"error_code": NOT_FOUND, "error_message": told}}


@cache
def _served() -> tuple[dict[str, bytes], dict[str, str]]:
    """Files by name, and the file of each symbol."""
    files: dict[str, bytes] = {}
    symbols: dict[str, str] = {}
    for package in FILES:
        file = described(package)
        if package == INFERENCE:
            _with_maps(file)
        files[file.name] = file.SerializeToString()
        symbols |= dict.fromkeys(_symbols(package, file), file.name)
    return files, symbols


def _with_maps(file: Any) -> None:
    """Lists of `Parameter` become what they are in the protocol, maps: the same bytes, but other JSON."""
    entry = next(message for message in file.message_type if message.name == "Parameter")
    for message in file.message_type:
        for field in message.field:
            if field.type_name == f".{file.package}.Parameter":
                made = message.nested_type.add()
                made.CopyFrom(entry)
                made.name, made.options.map_entry = "ParametersEntry", True
                field.type_name = f".{file.package}.{message.name}.{made.name}"
    file.message_type.remove(entry)


def _symbols(package: str, file: Any) -> Iterator[str]:
    for service in file.service:
        yield f"{package}.{service.name}"
        yield from (f"{package}.{service.name}.{method.name}" for method in service.method)
    for enumeration in file.enum_type:
        yield f"{package}.{enumeration.name}"
        yield from (f"{package}.{value.name}" for value in enumeration.value)
    for message in file.message_type:
        name = f"{package}.{message.name}"
        yield name
        yield from (f"{name}.{one.name}" for one in (*message.field, *message.oneof_decl, *message.nested_type))
