"""What Triton's clients ask beside the protocol: a model's configuration and its statistics - for `rest` and `rpc`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.serving.protocol import DATATYPES, sizes
from tvmopt.serving.service import Service


def config(name: str, model: Model) -> dict[str, Any]:
    """A model's configuration in JSON: whole shapes, the first axis among them (`max_batch_size` 0)."""

    def told(infos: Sequence[TensorInfo]) -> list[dict[str, Any]]:
        return [{"name": i.name, "data_type": f"TYPE_{DATATYPES[i.dtype]}", "dims": sizes(i)} for i in infos]

    return {
        "name": name, "platform": "tvmopt", "backend": "tvmopt", "max_batch_size": 0, "input": told(model.inputs),
        "output": told(model.outputs),
    }  # fmt: skip


def statistics(service: Service, name: str = "", version: str = "") -> list[dict[str, Any]]:
    """What each version of a model, or of all, has done since the server began.

    Raises:
        Refused: there is no such model.
    """
    if name:
        service.repository.find(name, version)
    index = [one for one in service.repository.index() if one["state"] == "READY"]
    wanted = [one for one in index if name in ("", one["name"]) and version in ("", one["version"])]
    return [_of_one(service, one["name"], one["version"]) for one in wanted]


def _of_one(service: Service, name: str, version: str) -> dict[str, Any]:
    found = service.metrics.totals(name, version)

    def duration(what: str) -> dict[str, int]:
        return {"count": int(found.get(f"{what}_count", 0)), "ns": int(1e9 * found.get(f"{what}_sum", 0))}

    nothing = {"count": 0, "ns": 0}
    queue, infer = duration("queue_seconds"), duration("compute_seconds")
    return {
        "name": name, "version": version, "last_inference": int(1e3 * found.get("last", 0)),
        "inference_count": int(found.get("batch_rows_sum", 0)), "execution_count": infer["count"],
        "inference_stats": {
            "success": duration("request_seconds"), "fail": {"count": int(found.get("failed", 0)), "ns": 0},
            "queue": queue, "compute_input": nothing, "compute_infer": infer, "compute_output": nothing,
        },
        "batch_stats": [],
    }  # fmt: skip
