"""The protocol over HTTP: Starlette's routes, and a page that shows what is served."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from contextlib import aclosing
from importlib import resources
from typing import Any

import tvmopt
from tvmopt.serving import protocol, texts, triton
from tvmopt.serving.compressed import WINDOW_BITS, plain
from tvmopt.serving.receiving import EXTENSION
from tvmopt.serving.refusals import Refused
from tvmopt.serving.service import EXTENSIONS, Service

LOCAL = ("localhost", "127.0.0.1", "::1")


def application(service: Service, *, only_local: bool, body_seconds: float) -> Any:
    """The ASGI application.

    Args:
        only_local: refuse requests that name another host than this machine: a page of the web that had its name point
            here could else call the server through its visitor's browser.
        body_seconds: how long a client may take to send a request.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    def endpoint(work: Any) -> Any:
        async def answer(request: Any) -> Any:
            try:
                _check_origin(request, only_local)
                return await work(request)
            except Refused as refused:
                headers = {"Retry-After": "1"} if refused.status in (429, 503) else None
                return JSONResponse({"error": refused.text}, refused.status, headers)
            except asyncio.CancelledError:
                if not service.drains:
                    raise
                return JSONResponse({"error": "the server is ending."}, 503, {"Retry-After": "1"})

        return answer

    async def received(request: Any) -> memoryview | bytes:
        task = asyncio.current_task()
        assert task is not None
        service.receiving.add(task)
        try:
            return await _body(request, service.max_body, body_seconds)
        finally:
            service.receiving.discard(task)

    async def page(request: Any) -> Any:
        text = resources.files("tvmopt.serving").joinpath("page.html").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    async def overview(request: Any) -> Any:
        return JSONResponse(service.overview())

    async def server(request: Any) -> Any:
        return JSONResponse({"name": "tvmopt", "version": tvmopt.__version__, "extensions": EXTENSIONS})

    async def live(request: Any) -> Any:
        return JSONResponse({"live": True})

    async def ready(request: Any) -> Any:
        return JSONResponse({"ready": service.is_ready}, 200 if service.is_ready else 503)

    async def metrics(request: Any) -> Any:
        text, kind = service.metrics.text(service.repository.waiting())
        return Response(text, media_type=kind)

    async def model(request: Any) -> Any:
        name, version = _named(request)
        _, batcher = service.repository.find(name, version)
        return JSONResponse(protocol.metadata(name, service.repository.versions(name), batcher.model))

    async def model_ready(request: Any) -> Any:
        name, version = _named(request)
        service.repository.find(name, version)
        return JSONResponse({"name": name, "ready": True})

    async def config(request: Any) -> Any:
        name, version = _named(request)
        return JSONResponse(triton.config(name, service.repository.find(name, version)[1].model))

    async def statistics(request: Any) -> Any:
        return JSONResponse({"model_stats": triton.statistics(service, *_named(request))})

    async def infer(request: Any) -> Any:
        name, version = _named(request)
        service.repository.find(name, version)  # before the body is read
        body = await received(request)
        header = request.headers.get(protocol.HEADER)

        def decode(loaded: Any) -> protocol.Request:
            return protocol.decode(loaded, body, header)

        def encode(asked: protocol.Request, served: str, found: Any, loaded: Any) -> Any:
            content, length = protocol.encode(asked, name, served, found, loaded)
            if length is None:
                return Response(content, media_type="application/json")
            headers = {"Inference-Header-Content-Length": str(length)}
            return Response(content, media_type="application/octet-stream", headers=headers)

        return await service.infer(name, version, "http", decode, encode)

    async def generate(request: Any) -> Any:
        name, version = _named(request)
        service.repository.find(name, version)
        asked = texts.parse(await received(request))
        tokens: list[int] = []
        text = ""
        async with aclosing(service.generate(name, version, "http", asked)) as pieces:
            async for served, piece in pieces:  # the last one tells of all
                if await request.is_disconnected():
                    raise Refused(400, "the client went away.")
                text += piece.text
                tokens += [piece.token] if piece.token is not None else []
                told = _told(name, asked, served, piece)
        return JSONResponse(told | {"text_output": text, "tokens": tokens})

    async def generate_stream(request: Any) -> Any:
        name, version = _named(request)
        service.repository.find(name, version)
        asked = texts.parse(await received(request))
        pieces = service.generate(name, version, "http", asked)
        first = await anext(pieces)  # what is refused at once gets its status
        return Events(pieces, first, lambda served, piece: _told(name, asked, served, piece), body_seconds)

    async def index(request: Any) -> Any:
        return JSONResponse(service.repository.index())

    async def load(request: Any) -> Any:
        await asyncio.to_thread(service.repository.load, request.path_params["name"])
        return JSONResponse({})

    async def unload(request: Any) -> Any:
        service.repository.unload(request.path_params["name"])
        return JSONResponse({})

    async def astray(request: Any, error: Any) -> Any:
        told = f"{request.method} {request.url.path}: {error.detail}; /v2 and docs/how-to/serve.md tell what there is."
        return JSONResponse({"error": told}, error.status_code, error.headers)

    def routes(path: str, work: Any, method: str = "GET") -> list[Any]:
        paths = [path] + ([path.replace("{name}", "{name}/versions/{version}")] if "/models/{name}" in path else [])
        return [Route(p, endpoint(work), methods=[method]) for p in paths]

    return Starlette(routes=[
        # looked through in this order
        *routes("/v2/models/{name}/infer", infer, "POST"), *routes("/v2/models/{name}/generate", generate, "POST"),
        *routes("/v2/models/{name}/generate_stream", generate_stream, "POST"),
        *routes("/v2/models/{name}/ready", model_ready), *routes("/v2/models/{name}/config", config),
        *routes("/v2/models/{name}/stats", statistics), *routes("/v2/models/stats", statistics),
        *routes("/v2/models/{name}", model),
        *routes("/v2/health/live", live), *routes("/v2/health/ready", ready), *routes("/v2", server),
        *routes("/metrics", metrics), *routes("/overview", overview), *routes("/", page),
        Route("/v2/repository/index", endpoint(index), methods=["POST"]),
        Route("/v2/repository/models/{name}/load", endpoint(load), methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", endpoint(unload), methods=["POST"]),
    ], exception_handlers={404: astray, 405: astray})  # fmt: skip


class Events:
    """An answer of server-sent events: each piece of a text as soon as it is there. A client that goes away, or that
    does not read for too long, ends it.

    Args:
        pieces: of `Service.generate`, of which `first` has been taken. told: the data of an event.
        seconds: how long a client may take to receive one.
    """

    HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
               (b"x-accel-buffering", b"no"))  # fmt: skip

    def __init__(self, pieces: Any, first: Any, told: Any, seconds: float) -> None:
        self._pieces, self._first, self._told, self._seconds = pieces, first, told, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        writes = asyncio.ensure_future(self._write(send))
        leaves = asyncio.ensure_future(_leaves(receive))
        try:
            await asyncio.wait([writes, leaves], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writes, leaves):
                task.cancel()
            await asyncio.gather(writes, leaves, return_exceptions=True)
            await self._pieces.aclose()

    async def _write(self, send: Any) -> None:
        async def put(told: Any, more: bool = True) -> None:
            body = b"data: " + json.dumps(told).encode() + b"\n\n" if told is not None else b""
            async with asyncio.timeout(self._seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": list(self.HEADERS)})
        await put(self._told(*self._first))
        try:
            async for version, piece in self._pieces:
                await put(self._told(version, piece))
        except Refused as refused:
            await put({"error": refused.text})
        await put(None, more=False)


async def _leaves(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _told(name: str, asked: texts.Asked, version: str, piece: texts.Piece) -> dict[str, Any]:
    found: dict[str, Any] = {"model_name": name, "model_version": version, "text_output": piece.text}
    if asked.id:
        found["id"] = asked.id
    if piece.token is not None:
        return found | {"token": piece.token}
    return found | {"finish_reason": piece.finish, "prompt_tokens": piece.prompt, "generated_tokens": piece.count}


def _named(request: Any) -> tuple[str, str]:
    return request.path_params.get("name", ""), request.path_params.get("version", "")


def _check_origin(request: Any, only_local: bool) -> None:
    """Browsers say which page a request comes from; another page than ours has no business here."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin and origin.partition("://")[2] != host:
        raise Refused(403, "the request comes from another site's page.")
    if only_local and not is_local(host):
        raise Refused(403, f"this server is for this machine, and the request names the host {host!r}.")


def is_local(host: str) -> bool:
    """Whether a name, with or without a port, is this machine's for itself."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name in LOCAL or not name or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _body(request: Any, most: int, seconds: float) -> memoryview | bytes:
    """The body, as it was before a client compressed it.

    Raises:
        Refused: it is too large, encoded otherwise, damaged, or does not come.
    """
    found = await _sent(request, most, seconds)
    encoding = request.headers.get("content-encoding", "identity")
    return found if encoding == "identity" else plain(found, encoding, most)


async def _sent(request: Any, most: int, seconds: float) -> memoryview | bytes:
    """The body, as long as it is within the limits.

    Raises:
        Refused: it is too large, encoded, or does not come.
    """
    from starlette.requests import ClientDisconnect

    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity" and encoding not in WINDOW_BITS:
        raise Refused(415, f"the body is encoded as {encoding}; send it as it is, or by {' or '.join(WINDOW_BITS)}.")
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > most:
        raise Refused(413, f"the body has {told} bytes; the limit is {most} (--max-body).")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            if (direct := request.scope.get("extensions", {}).get(EXTENSION)) is not None:
                whole: memoryview | None = await direct
                if whole is None:
                    raise ClientDisconnect
                return whole
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, f"the body has more than {most} bytes (--max-body).")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {seconds:g} s.") from None
    except ClientDisconnect:
        raise Refused(400, "the client went away.") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
