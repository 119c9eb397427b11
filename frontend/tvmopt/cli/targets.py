"""`tvmopt targets list|show|detect`: the machines tvmopt knows."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmopt.cli.common import Group, human, print_json, table
from tvmopt.targets import Machine, names

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]

_OF_THE_OTHER = {  # fields that say nothing of a machine of this kind
    "llvm": {"sm_threads", "sm_blocks", "sm_shared", "sm_lanes"},
    "cuda": {
        "arch", "vector_registers", "fma_ports", "fma_latency", "load_ports", "narrow", "l3", "l1_ways", "tile_macs",
        "features",
    },
}  # fmt: skip


@app.callback()
def targets() -> None:
    """The machines tvmopt knows: list them, show one, detect this one."""


@app.command("list")
def list_targets(as_json: Json = False) -> None:
    """Every machine that ships, by name."""
    machines = [Machine.load(name) for name in names()]
    if as_json:
        print_json([m.as_dict() for m in machines])
        return
    rows = [
        (
            m.name,
            m.kind,
            m.mcpu,
            m.cores,
            f"{m.vector_bits} bit" if m.kind == "llvm" else "",
            f"{m.bandwidth / 1e9:.0f} GB/s",
        )
        for m in machines
    ]
    table(("name", "kind", "mcpu or arch", "cores", "vectors", "memory"), rows, left=3)


@app.command("show")
def show_target(
    name: Annotated[str, typer.Argument(help="A name, cpu, cuda, or a TOML file.")], as_json: Json = False
) -> None:
    """Every field of one machine, with its source."""
    _show(Machine.load(name), as_json)


@app.command("detect")
def detect_target(as_json: Json = False) -> None:
    """What this machine is taken for."""
    _show(Machine.load("cpu"), as_json)


def _show(machine: Machine, as_json: bool) -> None:
    if as_json:
        print_json(machine.as_dict())
        return
    fields = machine.as_dict()
    sources = fields.pop("sources")
    fields |= {name: human(fields[name], "B/s") for name in ("bandwidth", "core_bandwidth")}
    rows = [
        (key, " ".join(value) if isinstance(value, tuple) else value, sources.get(key, ""))
        for key, value in fields.items()
        if key not in _OF_THE_OTHER[machine.kind] and value != {}
    ]
    if machine.kind == "llvm":
        rows.append(
            (
                "peak",
                human(machine.peak_flops, "FLOP/s") + " fp32, all cores",
                "cores * GHz * ports * lanes * 2",
            )
        )
        if machine.peak_tiles:
            tiles = human(machine.peak_tiles, "FLOP/s") + " bf16 by AMX tiles"
            rows.append(("peak", tiles, "cores * GHz * tile_macs * 2"))
    table(("field", "value", "source"), rows, left=3)
