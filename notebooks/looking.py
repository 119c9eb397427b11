"""Looking at loops, machine code and times - for the notebooks about schedules.

Nothing here compiles or schedules: it prints what TVM made, in a form that fits a page, and measures it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize

BYTES = ("vpdpbusd", "vpmaddwd")
"""Instructions that multiply bytes and add up: four products a lane, or two of bytes that were widened."""
KINDS = {0: "for", 1: "parallel", 2: "vectorized", 3: "unrolled", 4: "bound to"}


def command(line: str) -> str:
    """What a command prints, 110 columns wide, without colours."""
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    done = subprocess.run(
        shlex.split(line), capture_output=True, text=True, check=True, env={**plain, "COLUMNS": "110"}
    )
    return done.stdout


def nest(func: Any) -> str:
    """The loop nest of a scheduled function: one line a loop, the block's name where it computes."""
    lines: list[str] = []

    def visit(node: Any, depth: int) -> None:
        pad = "  " * depth
        if isinstance(node, tirx.For):
            kind = KINDS.get(int(node.kind), "for")
            if kind == "bound to":
                kind = f"{node.thread_binding.thread_tag}:"
            if int(node.extent) > 1:
                lines.append(f"{pad}{kind} {node.loop_var.name} in {int(node.extent)}")
            visit(node.body, depth + (int(node.extent) > 1))
        elif isinstance(node, SBlockRealize):
            leaf = not _has_loops(node.block.body)
            if node.block.name_hint != "root" and leaf:
                lines.append(f"{pad}{node.block.name_hint}: {_store(node.block.body)}")
            visit(node.block.body, depth)
        elif isinstance(node, tirx.SeqStmt):
            for child in node.seq:
                visit(child, depth)
        elif hasattr(node, "body") and not isinstance(node, tirx.BufferStore):
            visit(node.body, depth)

    visit(func.body, 0)
    return "\n".join(lines)


def _has_loops(node: Any) -> bool:
    if isinstance(node, tirx.For | SBlockRealize):
        return True
    if isinstance(node, tirx.SeqStmt):
        return any(map(_has_loops, node.seq))
    return _has_loops(node.body) if hasattr(node, "body") else False


def _store(node: Any) -> str:
    text = str(node).strip().splitlines()[-1]
    return re.sub(r"\s+", " ", text)[:100]


def inner_loop(assembly: str, keep: int = 16) -> str:
    """The hottest loop of x86 assembly, the innermost with the most multiply-adds: `keep` instructions of it.

    Above it stands what it consists of: multiply-adds, loads that are broadcast, plain vector loads, stores.
    """
    body = hottest(assembly)
    count: Counter[str] = Counter()
    for line in body:
        op, _, operands = line.partition("\t")
        destination = operands.rsplit(", ", 1)[-1]
        if op.startswith("vfmadd"):
            count["multiply-adds"] += 1
        elif op.startswith(BYTES):
            count["products of bytes"] += 1
        elif "(" in destination and op.startswith(("vmov", "mov")):
            count["stores"] += 1
        elif op.startswith(("vbroadcast", "vpbroadcast")):
            count["broadcasts"] += 1
        elif op.startswith("vmov") and "(" in operands:
            count["vector loads"] += 1
        elif any(register in operands for register in ("xmm", "ymm", "zmm")):
            count["other vector instructions"] += 1
    words = ", ".join(f"{n} {what}" for what, n in count.items() if n)
    rest = [f"        ... {len(body) - keep} more"] if len(body) > keep else []
    shown = ["    " + line.replace("\t", "  ") for line in body[:keep]]
    return "\n".join([f"{len(body)} instructions: {words}", *shown, *rest])


def hottest(assembly: str) -> list[str]:
    """Instructions of the innermost loop that has the most vector or scalar multiply-adds."""
    lines = [line.split("#")[0].strip() for line in assembly.splitlines()]
    where = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".LBB") and line.endswith(":")}
    best: tuple[int, int, list[str]] = (-1, 0, [])
    for i, line in enumerate(lines):
        jump = re.match(r"j[a-z]+\t(\S+)$", line)
        start = where.get(jump[1], i) if jump else i
        if start >= i:
            continue
        body = [x for x in lines[start + 1 : i + 1] if x and not x.startswith(".") and not x.endswith(":")]
        labels = sum(x.startswith(".LBB") for x in lines[start + 1 : i])
        work = sum(x.startswith(("vfmadd", "mulss", "vmulss", "vmulps", *BYTES)) for x in body)
        if labels == 0 and (work, -len(body)) > (best[0], best[1]):
            best = (work, -len(body), body)
    return best[2]


def seconds(call: Callable[[], Any], least: float = 0.15, rounds: int = 3) -> float:
    """The shortest time of a call, after one to warm up: at least `rounds` calls and `least` seconds."""
    call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < rounds or time.perf_counter() - begin < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.min(times))
