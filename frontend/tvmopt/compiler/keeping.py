"""Whether a decoder's keys and values are stored as was asked - for the driver."""

from __future__ import annotations

from typing import Any

from tvmopt.compiler.request import Request
from tvmopt.errors import InputError

STAGE = "tvmopt.KeepCaches"


def check_kept(request: Request, program: Any) -> None:
    """Refuse a request for rounded caches that the code does not have.

    Args:
        program: what :func:`tvmopt.pipeline.lower` made.

    Raises:
        InputError: it keeps no caches; the error tells why.
    """
    if request.kv_cache == "fp32" or program.decoder["in_place"]:
        return
    reasons = [d.reason for d in program.log if d.stage == STAGE and d.verdict == "declined"]
    told = reasons[0].partition(": ")[2] if reasons else "it is no decoder with past_key_values.* of an open length"
    if request.machine.kind != "llvm":
        told = "caches stay where they are on CPUs only"
    raise InputError(
        f"the model keeps no keys and values: {told}.",
        where=f"{request.title}, --kv-cache {request.kv_cache}",
        fix="leave --kv-cache out; `tvmopt inspect` shows the caches that were found",
    )
