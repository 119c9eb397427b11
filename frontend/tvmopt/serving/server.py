"""Both ways in on one machine: start, look at the files from time to time, drain, end."""

from __future__ import annotations

import asyncio
import difflib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.ending import ENDING
from tvmopt.errors import InputError, MissingDependency
from tvmopt.serving.alone import Polling
from tvmopt.serving.batcher import Limits
from tvmopt.serving.memory import keep_memory
from tvmopt.serving.metrics import Metrics
from tvmopt.serving.repository import Repository, cores
from tvmopt.serving.service import Service

PACKAGES = ("google.protobuf", "hpack", "httptools", "prometheus_client", "starlette", "uvicorn")


@dataclass(frozen=True)
class Settings:
    """What `tvmopt serve` is asked for.

    Attributes:
        host: the address to listen on. port, grpc_port: 0: a free one, which is told; `grpc_port` None: no gRPC.
        limits: of each model. max_body: bytes of one request.
        reload: seconds between two looks at the files; 0: none. grace: seconds that requests have to end in.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    limits: Limits = field(default_factory=Limits)
    max_body: int = 64 << 20
    reload: float = 2.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        """Raises:
        InputError: the host is empty, which the system takes for every network's address.
        """
        if not self.host.strip():
            fix = "give an address: 127.0.0.1 is this machine alone, 0.0.0.0 is every network's"
            raise InputError("--host is empty.", fix=fix)


def check_packages() -> None:
    """Raises:
    MissingDependency: a package of the extra `serve` is missing.
    """
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is None or find_spec(name) is None]
    if missing:
        what = f"the server needs packages that are not installed: {', '.join(missing)}."
        raise MissingDependency(what, fix="pip install 'tvmopt[serve]'")


def serve(
    paths: Sequence[str | Path],
    settings: Settings | None = None,
    *,
    tell: Callable[[str], None] | None = None,
    started: Callable[[dict[str, str]], None] | None = None,
) -> bool:
    """Serve artifacts until SIGTERM, SIGINT or SIGHUP; then answer what was taken, and return.

    Returns:
        Whether all calls of models have ended. One that takes longer than the grace goes on in a thread, and when it
        returns while Python shuts down, the process aborts: end it by :func:`os._exit`.

    Args:
        paths: artifacts, and folders of them (`tvmopt.serving.repository`).
        tell: takes a line at a time: what was loaded, where the server listens; default: stderr.
        started: called with the addresses ("http", "grpc") as soon as the server listens.

    Raises:
        InputError: a path or a setting is wrong, an address is taken. MissingDependency: see :func:`check_packages`.
        ArtifactError: no model could be loaded.
    """
    check_packages()
    known = settings or Settings()
    keep_memory()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each client that leaves a text
    say = tell or (lambda text: print(text, file=sys.stderr, flush=True))
    check_settings(known, say)
    metrics = Metrics()
    repository = Repository([Path(p) for p in paths], known.limits, metrics.observer, say)
    check_cores(known.limits.cores, repository.names())
    repository.refresh()
    if not any(one["state"] == "READY" for one in repository.index()) and not any(Path(p).is_dir() for p in paths):
        reasons = "; ".join(one["reason"] for one in repository.index())
        raise InputError(f"no model could be loaded: {reasons}", fix="give files that `tvmopt compile` wrote")
    if not repository.index():
        say(f"no model yet: files that `tvmopt compile` writes are served as soon as they are in {paths[0]}")
    service = Service(repository, metrics, known.max_body)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Polling(service.alone))) as runner:
        return runner.run(_Server(known, service, say, started).run())


def check_settings(settings: Settings, say: Callable[[str], None]) -> None:
    """Say what is unwise.

    Raises:
        InputError: a number is out of range.
    """
    limits = settings.limits
    wanted = limits.instances * (limits.threads or 1)
    if wanted > cores():
        say(f"{wanted} threads on {cores()} cores: they will wait for each other (--instances)")
    for name, value, least in (
        ("--max-batch", limits.max_batch, 1), ("--max-queue", limits.max_queue, 1),
        ("--timeout", limits.timeout, 0.001), ("--max-texts", limits.max_texts, 1),
        ("--max-delay", limits.max_delay, 0), ("--max-body", settings.max_body, 1), ("--reload", settings.reload, 0),
    ):  # fmt: skip
        if value < least:
            raise InputError(f"{name} is {value}.", fix=f"give {least} or more")


def check_cores(wanted: Iterable[str], names: Sequence[str]) -> None:
    """Whether there are the models that `--cores` names.

    Args:
        wanted: names of models, and "" for all others. names: of those that are served; where there is none yet, any
            may come.

    Raises:
        InputError: there is none of that name.
    """
    known = sorted({*names})
    for name in wanted:
        if name and known and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            what = f"there is no model {name!r}" + (f", did you mean {near[0]!r}?" if near else ".")
            raise InputError(what, where="--cores", fix=f"name one of {', '.join(known)}")


def listening(host: str, port: int, who: str = "the server", option: str = "--port, or 0 for a free one") -> Any:
    """A socket that listens.

    Args:
        who: for an error, like the option that mends it.

    Raises:
        InputError: it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off where a socket says that it is TCP: else each answer comes 40 ms late
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except OSError as error:
        made.close()
        what = f"{who} cannot listen on {host}:{port}: {error.strerror or error}."
        raise InputError(what, fix=f"choose another {option}") from error
    made.setblocking(False)
    return made


class _Server:
    def __init__(
        self, settings: Settings, service: Service, say: Callable[[str], None],
        started: Callable[[dict[str, str]], None] | None,
    ) -> None:  # fmt: skip
        self.settings, self.service, self.say, self.started = settings, service, say, started
        self._ends = asyncio.Event()

    async def run(self) -> bool:
        """Whether all calls have ended."""
        import uvicorn

        from tvmopt.serving import receiving, rest, rpc

        known, service = self.settings, self.service
        web = listening(known.host, known.port)
        app = rest.application(service, only_local=rest.is_local(known.host), body_seconds=known.limits.timeout)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", server_header=False, date_header=False,
            ws="none", http=receiving.protocol(known.max_body, service.alone, known.limits.timeout),
        )  # fmt: skip
        http = uvicorn.Server(config)
        http.capture_signals = nullcontext  # ours drain first
        calls, rpc_port = None, 0
        if known.grpc_port is not None:
            calls = rpc.Server(service)
            try:
                option = "--grpc-port, 0 for a free one, or --no-grpc"
                socket_of_calls = listening(known.host, known.grpc_port, "gRPC", option)
            except InputError:
                web.close()
                raise
            rpc_port = socket_of_calls.getsockname()[1]
            await calls.start(socket_of_calls, known.limits.timeout)
        loop = asyncio.get_running_loop()
        for number in (*ENDING, signal.SIGINT):
            if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
                continue  # SIGHUP behind nohup; a shell's `&` ignores SIGINT, which a server ends by all the same
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                loop.add_signal_handler(number, self._ends.set)
        address = f"http://{known.host}:{web.getsockname()[1]}"
        self.say(f"listening: {address}" + (f", gRPC {known.host}:{rpc_port}" if calls else ""))
        if self.started is not None:
            self.started({"http": address} | ({"grpc": f"{known.host}:{rpc_port}"} if calls else {}))
        serving = asyncio.create_task(http.serve(sockets=[web]))
        watching = asyncio.create_task(self._watch())
        await asyncio.wait([serving, asyncio.create_task(self._ends.wait())], return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        end = loop.time() + known.grace
        await self._drain()
        left = max(1.0, end - loop.time())
        config.timeout_graceful_shutdown = left  # a second at least, for the last answers
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it shows what it cancels as errors of ours
        http.should_exit = True
        if calls is not None:
            await calls.stop(left)
        await serving
        ended = await asyncio.to_thread(service.repository.close, max(1.0, end - loop.time()))
        self.say("ended" if ended else "ended in the middle of a call")
        return ended

    async def _watch(self) -> None:
        while self.settings.reload:
            await asyncio.sleep(self.settings.reload)
            await asyncio.to_thread(self.service.repository.refresh)

    async def _drain(self) -> None:
        """Take nothing new, and wait for what is inside."""
        self.service.drains = True
        if self.service.inside:
            self.say(f"ending: {self.service.inside} requests are being answered")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.grace):
                while self.service.inside:
                    await asyncio.sleep(0.01)
        if self.service.inside:
            self.say(f"ending: {self.service.inside} requests were not answered within {self.settings.grace:g} s")
        self.service.refuse_bodies()
