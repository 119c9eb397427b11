"""What the page of `inspect --html` shows, as plain data: boxes and their places, arrows, nodes, reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmopt.analysis.attribution import attribute
from tvmopt.analysis.layout import layout
from tvmopt.analysis.memory import memory
from tvmopt.analysis.profile import Profile
from tvmopt.report import Flow, Kernel, OnnxNode, Report
from tvmopt.scheduling.discover import family_of_any_kind

WIDTH, HEAD, ROW, FOOT = 236.0, 26.0, 17.0, 24.0
ROWS = 7  # ONNX nodes shown in a box; the rest are counted


@dataclass
class _Graph:
    """Boxes (a step each, then one for each input and output) and the arrows between them."""

    boxes: list[dict[str, Any]] = field(default_factory=list)
    arrows: list[tuple[int, int, int]] = field(default_factory=list)  # from, to, value


def view(report: Report, profile: Profile | None = None) -> dict[str, Any]:
    """The page's data.

    Args:
        report: of a compile; its flow must not be empty.
        profile: times of the same artifact; without it, shares are of the executed FLOPs.
    """
    flow = report.flow
    graph = _graph(report, profile)
    order = _topological(len(graph.boxes), [(a, b) for a, b, _ in graph.arrows])
    rank = {box: i for i, box in enumerate(order)}
    sizes = [(WIDTH, graph.boxes[i]["height"]) for i in order]
    edges = [(rank[a], rank[b]) for a, b, _ in graph.arrows]
    placed = layout(sizes, edges)
    for box, (x, y) in zip(order, placed.centres, strict=True):
        graph.boxes[box] |= {"x": round(x - WIDTH / 2, 1), "y": round(y - graph.boxes[box]["height"] / 2, 1)}
    nodes, index = _nodes(report, graph.boxes)
    kept = memory(flow)
    return {
        "model": report.model, "target": report.target, "precision": report.precision,
        "by": "time" if profile else "FLOPs",
        "latency": profile.latency_s if profile else None,
        "flops": sum(n.flops or 0 for n in flow.nodes.values()), "executed": report.flops,
        "width": placed.width, "height": placed.height, "box": [WIDTH, HEAD, ROW, FOOT, ROWS],
        "boxes": graph.boxes,
        "arrows": [
            {"a": a, "b": b, "v": v, "p": [round(c, 1) for point in route for c in point]}
            for (a, b, v), route in zip(graph.arrows, placed.routes, strict=True)
        ],
        "values": [[v.name, list(v.shape), v.dtype, v.bytes, v.kind, v.storage] for v in flow.values],
        "nodes": nodes,
        "decisions": _decisions(report, index),
        "memory": {"alive": kept.alive, "held": kept.held, "peak": kept.peak, "planned": kept.planned,
                   "tensors": kept.peak_tensors},
        "warnings": report.warnings,
    }  # fmt: skip


def _graph(report: Report, profile: Profile | None) -> _Graph:
    flow, graph = report.flow, _Graph()
    kernels = {k.name: k for k in report.kernels}
    shares = _shares(flow, kernels, profile)
    made: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    for i, step in enumerate(flow.steps):
        made.update(dict.fromkeys(step.outputs, i))
        for value in step.inputs:
            readers[value].append(i)
    for i, step in enumerate(flow.steps):
        box = _box(flow, i, kernels.get(step.kernel), shares[i])
        box["why"] = [words for v in step.outputs for words in _boundary(flow, v, readers[v], kernels)]
        graph.boxes.append(box)
    for value, info in enumerate(flow.values):
        if info.kind == "input":
            made[value] = len(graph.boxes)
            graph.boxes.append(_end(info.name, "input", value))
        graph.arrows += [(made[value], b, value) for b in readers[value] if value in made]
    for value in flow.outputs:
        if value in made:
            graph.arrows.append((made[value], len(graph.boxes), value))
            graph.boxes.append(_end(flow.values[value].name, "output", value))
    return graph


def _shares(
    flow: Flow, kernels: Mapping[str, Kernel], profile: Profile | None
) -> list[tuple[float, float | None, str]]:
    """(share, seconds, what bounds it) of each step, by time where there is a profile."""
    if not profile:
        work = [kernels[s.kernel].flops if s.kernel in kernels else 0.0 for s in flow.steps]
        total = sum(work) or 1.0
        return [(w / total, None, "") for w in work]
    times: dict[str, list[float]] = defaultdict(list)
    for call in profile.calls:
        times[call.kernel].append(call.seconds)
    bound = {k.name: k.position.bound for k in profile.kernels}
    left = {name: iter(seconds) for name, seconds in times.items()}
    found: list[tuple[float, float | None, str]] = []
    whole = profile.accounted_s if profile.disturbed else profile.latency_s
    for step in flow.steps:
        seconds = next(left.get(step.kernel, iter(())), 0.0)
        found.append((seconds / whole, seconds, bound.get(step.kernel, "")))
    return found


def _box(flow: Flow, index: int, kernel: Kernel | None, share: tuple[float, float | None, str]) -> dict[str, Any]:
    step = flow.steps[index]
    weights = [v for v in step.inputs if flow.values[v].kind == "weight"]
    rows = max(1, min(len(step.nodes), ROWS) + (len(step.nodes) > ROWS))
    return {
        "kind": "kernel", "step": index, "kernel": step.kernel, "nodes": list(step.nodes),
        "family": kernel.family if kernel else "runtime", "source": kernel.source if kernel else "builtin",
        "knobs": kernel.knobs if kernel else {}, "note": _plain(kernel.note) if kernel else "",
        "flops": kernel.flops if kernel else 0.0, "bytes": kernel.bytes if kernel else 0.0,
        "reads": [v for v in step.inputs if v not in weights], "writes": list(step.outputs),
        "weights": weights, "share": share[0], "seconds": share[1], "bound": share[2],
        "height": HEAD + ROW * rows + FOOT,
    }  # fmt: skip


def _end(name: str, kind: str, value: int) -> dict[str, Any]:
    return {
        "kind": kind, "kernel": name, "nodes": [], "family": kind, "source": "", "share": 0.0,
        "seconds": None,
        "reads": [value] if kind == "output" else [], "writes": [value] if kind == "input" else [],
        "weights": [], "height": HEAD + FOOT,
    }  # fmt: skip


def _plain(note: str) -> str:
    """A note without the program text that TVM's messages end with."""
    return note.split(" The function is ")[0].split("# from tvm")[0].strip()


def _boundary(flow: Flow, value: int, readers: Sequence[int], kernels: Mapping[str, Kernel]) -> list[str]:
    """Why this tensor is stored and not passed on inside one kernel: from who reads it."""
    if value in flow.outputs:
        return ["the model returns it"]
    if len(readers) > 1:
        return [f"{len(readers)} kernels read it"]
    found = []
    for step in readers:
        name = flow.steps[step].kernel
        name = kernels[name].family if name in kernels else "runtime"
        family = family_of_any_kind(name)
        if family is not None and family.REREADS:
            found.append(f"its reader ({name}) reads elements more than once: it starts a kernel of its own")
        elif family is not None and family.MOVES:
            found.append("its reader moves elements to other places")
        else:
            found.append(f"operator fusion did not join it to its reader ({name})")
    return found


def _topological(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Inputs first, then steps in their order, then outputs: every arrow goes forward."""
    into = {b for _, b in edges}
    out = {a for a, _ in edges}
    return sorted(range(count), key=lambda i: (0 if i not in into else 2 if i not in out else 1, i))


def _nodes(report: Report, boxes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """ONNX nodes with their boxes; `near`: the box next to a node of no kernel. Boxes get indices."""
    flow, found = report.flow, attribute(report.flow, report.kernels)
    made = [key for step in flow.steps for key in step.nodes if key not in flow.nodes]  # by a pass: no node's
    index = {key: i for i, key in enumerate((*flow.nodes, *dict.fromkeys(made)))}
    nodes: list[dict[str, Any]] = []
    for key in index:
        n = flow.nodes.get(key) or OnnxNode(key, "")
        home, named = found.home.get(key, -1), found.named.get(key, ())
        nodes.append(
            {"name": n.name, "op": n.op_type, "in": n.inputs, "out": n.outputs, "shape": n.shape,
             "flops": n.flops, "boxes": named, "home": home, "near": -1 if named else home}
        )  # fmt: skip
    for box in boxes:
        box["nodes"] = [index[key] for key in box["nodes"]]
        box["near"] = []
    for i, node in enumerate(nodes):
        if node["near"] >= 0:
            boxes[node["near"]]["near"].append(i)
    for box, flops in zip(boxes, found.flops(flow), strict=False):
        box["onnx"] = flops
    return nodes, index


def _decisions(report: Report, index: Mapping[str, int]) -> list[dict[str, Any]]:
    """What passes did and declined, grouped by pass, verdict and reason, with the nodes."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for d in report.decisions:
        where = groups.setdefault((d.verdict, d.stage.removeprefix("tvmopt."), d.reason), [])
        where.append(index.get(d.node, d.node))
    return [
        {
            "verdict": verdict,
            "stage": stage,
            "reason": reason,
            "nodes": list(dict.fromkeys(nodes)),
            "times": len(nodes),
        }
        for (verdict, stage, reason), nodes in groups.items()
    ]
