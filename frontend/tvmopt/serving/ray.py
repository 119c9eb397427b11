"""`tvmopt serve --ray`: the same models and the same HTTP on the machines of a Ray cluster, by Ray Serve.

    import ray
    from ray import serve
    from tvmopt.serving.batcher import Limits
    from tvmopt.serving.ray import application

    serve.run(application(["/shared/models"], Limits(threads=2), replicas=(1, 8)))

A replica is what `tvmopt serve` is - models and versions in folders, one queue for each, batches, texts, the Open
Inference Protocol - behind Ray's proxies, which find a free replica, start more under load and replace those that are
lost. It takes the cores of its threads. Files are found under the same paths on every machine.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvmopt.ending import ENDING
from tvmopt.errors import InputError, MissingDependency
from tvmopt.runtime.model import load
from tvmopt.serving.batcher import Limits
from tvmopt.serving.metrics import Metrics
from tvmopt.serving.protocol import from_numpy
from tvmopt.serving.repository import Repository, artifacts
from tvmopt.serving.server import PACKAGES, Settings, check_packages, check_settings
from tvmopt.serving.service import Service

Replicas = int | tuple[int, int]
"""How many, or the fewest and the most."""

NAME = "tvmopt"
"""Of the application and its deployment."""

LOCAL = "local"
"""In place of a cluster's address: a cluster of this machine alone, which ends with the process."""


class Models:
    """A replica: Ray makes it, calls it, and replaces it.

    Args:
        paths: artifacts and folders of them, as this machine sees them.
        max_body, reload: see :class:`tvmopt.serving.server.Settings`.
        only_local: see :func:`tvmopt.serving.rest.application`.

    Raises:
        InputError: no model could be loaded.
    """

    def __init__(self, paths: Sequence[str], limits: Limits, max_body: int, reload: float, only_local: bool) -> None:
        metrics = Metrics()
        self._repository = Repository([Path(p) for p in paths], limits, metrics.observer, _say)
        self._repository.refresh()
        if not any(one["state"] == "READY" for one in self._repository.index()):
            raise InputError("no model could be loaded.", where=", ".join(paths), fix="every machine needs the files")
        self.service = Service(self._repository, metrics, max_body)
        self._only_local, self._seconds = only_local, limits.timeout
        if reload:
            threading.Thread(target=self._watch, args=(reload,), daemon=True).start()

    def __serve_build_asgi_app__(self) -> Any:
        from tvmopt.serving import rest

        return rest.application(self.service, only_local=self._only_local, body_seconds=self._seconds)

    async def infer(self, model: str, feeds: Mapping[str, Any], version: str = "") -> Any:
        """One inference by a handle: the outputs by name.

        Raises:
            Refused: it got no result.
        """
        return await self.service.infer(
            model, version, "handle", lambda loaded: from_numpy(loaded, feeds), lambda request, at, found, loaded: found
        )

    def _watch(self, seconds: float) -> None:
        while True:
            time.sleep(seconds)
            self._repository.refresh()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def application(
    paths: Sequence[str | Path], limits: Limits | None = None, *, replicas: Replicas = 1, max_body: int = 64 << 20,
    reload: float = 2.0, only_local: bool = True,
) -> Any:  # fmt: skip
    """What `ray.serve.run` takes.

    Args:
        paths: artifacts and folders of them, which every machine of the cluster has there.
        limits: of each model in each replica; its instances times its threads are the cores of a replica.
        replicas: how many, or the fewest and the most, between which the load decides.
        only_local: answer requests to this machine's own name only.

    Raises:
        InputError: a path or a number is wrong. MissingDependency: Ray Serve is not installed.
    """
    check_ray()
    from ray import serve

    known = limits or Limits()
    given = [str(Path(path).resolve()) for path in paths]
    found = artifacts([Path(path) for path in given])
    cores = known.instances * (known.threads or max((load(path, mapped=True).threads for path in found), default=1))
    options: dict[str, Any] = {"num_replicas": replicas}
    fewest, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    if not 1 <= fewest <= most:
        raise InputError(f"the number of replicas is {replicas}.", fix="give 1 or more, or a range such as 1..8")
    if isinstance(replicas, tuple):
        config = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": 2 * known.instances}
        options = {"autoscaling_config": config}
    made = serve.deployment(
        serve.ingress()(Models),
        name=NAME,
        ray_actor_options={"num_cpus": cores},
        max_ongoing_requests=known.max_queue + known.instances,
        health_check_period_s=1,
        **options,
    )
    return made.bind(given, known, max_body, reload, only_local)


def check_ray() -> None:
    """Raises:
    MissingDependency: Ray Serve or a package of the extra `serve` is missing.
    """
    check_packages()
    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise MissingDependency("Ray Serve is not installed.", fix="pip install 'tvmopt[ray]'")


def run(
    paths: Sequence[str | Path],
    settings: Settings,
    *,
    address: str = LOCAL,
    replicas: Replicas = 1,
    tell: Callable[[str], None] | None = None,
    started: Callable[[dict[str, str]], None] | None = None,
) -> None:
    """Serve on a cluster until SIGTERM, SIGINT or SIGHUP; then take the application away.

    Args:
        address: of the cluster, "auto" for the one that this machine belongs to, or :data:`LOCAL`.
        tell, started: see :func:`tvmopt.serving.server.serve`.

    Raises:
        InputError: a setting is wrong, or there is no such cluster. MissingDependency: see :func:`check_ray`.
    """
    check_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends statistics unless told; nothing of ours is sent
    import ray
    from ray import serve

    from tvmopt.serving.rest import is_local

    say = tell or _say
    if address == LOCAL:
        check_settings(settings, say)
    made = application(
        paths, settings.limits, replicas=replicas, max_body=settings.max_body, reload=settings.reload,
        only_local=is_local(settings.host),
    )  # fmt: skip
    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(None if address == LOCAL else address, log_to_driver=False, **options)
    except ConnectionError as error:
        raise InputError(f"there is no Ray cluster at {address!r}: {error}", fix="`ray status` shows one") from None
    begun, ends = threading.Event(), threading.Event()

    def end(number: int, frame: Any) -> None:
        ends.set()
        if not begun.is_set():
            raise KeyboardInterrupt

    for wanted in (*ENDING, signal.SIGINT):  # behind ray.init, whose own handler aborts
        if wanted == signal.SIGINT or signal.getsignal(wanted) is not signal.SIG_IGN:
            signal.signal(wanted, end)
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port})
        serve.run(made, name=NAME, route_prefix="/")
        begun.set()
        where = f"http://{settings.host}:{settings.port}"
        say(f"listening: {where}, on {len(ray.nodes())} machines")
        if started is not None:
            started({"http": where})
        ends.wait()
        ending = threading.Thread(target=serve.delete, args=(NAME,), daemon=True)
        ending.start()  # it never returns if the signal went to Ray's own processes, too
        ending.join(settings.grace)
    finally:
        ray.shutdown()
    say("ended")


__all__ = ["LOCAL", "PACKAGES", "Models", "Replicas", "application", "check_ray", "run"]
