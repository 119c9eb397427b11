"""`tvmopt serve FILE|FOLDER...`: compiled models over the Open Inference Protocol v2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tvmopt.cli.common import print_json
from tvmopt.ending import abandon
from tvmopt.errors import InputError
from tvmopt.runtime.cores import parse

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Compiled files, and folders of them: NAME.tvmopt or NAME/VERSION/model.tvmopt."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every network's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of HTTP; 0: a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="Of gRPC; 0: a free one.")] = 8001,
    grpc: Annotated[bool, typer.Option("--grpc/--no-grpc", help="Serve gRPC too.")] = True,
    instances: Annotated[
        str, typer.Option(metavar="N[xTHREADS]", help="Calls at a time of each model, and threads of each.")
    ] = "1",
    cores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]0-3|node0",
            help="The processors that models run on, or those of a NUMA node; of one model; repeatable.",
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Put requests together, up to so many rows.")] = 1,
    max_delay: Annotated[float, typer.Option(min=0, help="Milliseconds to wait for more of them.")] = 0.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests of a model that may wait; more get 429.")] = 64,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts that a decoder computes together; more wait.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request, or a token, may take.")] = 60.0,
    max_body: Annotated[float, typer.Option(min=0.001, help="Megabytes of a request.")] = 64.0,
    reload: Annotated[float, typer.Option(min=0, help="Seconds between two looks at the files; 0: none.")] = 2.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that requests have to end in after SIGTERM.")] = 30.0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Serve on a Ray cluster, HTTP only: its address, auto, or local."),
    ] = None,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN..MAX", help="With --ray: how many, or how many at least and at most.")
    ] = "1",
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON when listening.")] = False,
) -> None:
    """Serve compiled models by HTTP and gRPC until SIGTERM or Ctrl-C; http://127.0.0.1:8000/ shows them."""
    from tvmopt.serving.batcher import Limits
    from tvmopt.serving.server import Settings, serve

    count, threads = parse_instances(instances)
    copies = parse_replicas(replicas)
    if ray is None and copies != 1:
        raise InputError("--replicas is for a Ray cluster.", where=f"--replicas {replicas}", fix="add --ray ADDRESS")
    if ray is not None and not ray.strip():
        raise InputError("--ray is empty.", fix="give the cluster's address, auto, or local")
    limits = Limits(count, threads, max_batch, max_delay / 1e3, max_queue, timeout, max_texts, parse_cores(cores or []))
    if ray is not None and cores:
        fix = "leave it out: Ray gives a replica its cores"
        raise InputError("--cores is for one machine.", where="--ray", fix=fix)
    for wanted in limits.cores.values():
        parse(wanted)
    settings = Settings(host, port, grpc_port if grpc else None, limits, int(max_body * 2**20), reload, grace)
    started = print_json if as_json else None
    if ray is None:
        if not serve(paths, settings, started=started):
            abandon()
        return
    from tvmopt.serving.ray import run

    run(paths, settings, address=ray, replicas=copies, started=started)


def parse_instances(text: str) -> tuple[int, int | None]:
    """Instances and threads of each.

    >>> parse_instances("2x1"), parse_instances("3")
    ((2, 1), (3, None))
    """
    found = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", text)
    if found is None:
        raise InputError(f"--instances is {text!r}.", fix="give a number, or 2x1: two instances of one thread")
    return int(found[1]), int(found[2]) if found[2] else None


def parse_cores(texts: Sequence[str]) -> dict[str, str]:
    """Processors by the model's name; those for all others by "".

    >>> parse_cores(["0-3", "resnet=node1"])
    {'': '0-3', 'resnet': 'node1'}

    Raises:
        InputError: a model is named twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, wanted = text.rpartition("=")
        if name in found:
            what = f"{name!r} has cores twice." if name else "--cores without a model is given twice."
            raise InputError(what, where=f"--cores {text}", fix="give it once: --cores 0-3,8, --cores MODEL=4-7")
        found[name] = wanted
    return found


def parse_replicas(text: str) -> int | tuple[int, int]:
    """Replicas, or the fewest and the most.

    >>> parse_replicas("3"), parse_replicas("1..8")
    (3, (1, 8))
    """
    found = re.fullmatch(r"([1-9]\d{0,4})(?:\.\.([1-9]\d{0,4}))?", text)
    if found and found[2] and int(found[2]) < int(found[1]):
        what = f"--replicas is {text!r}: at least {found[1]} are more than at most {found[2]}."
        raise InputError(what, fix=f"give {found[2]}..{found[1]}")
    if found is None:
        raise InputError(f"--replicas is {text!r}.", fix="give a number, or 1..8: one to eight, as the load is")
    return (int(found[1]), int(found[2])) if found[2] else int(found[1])
