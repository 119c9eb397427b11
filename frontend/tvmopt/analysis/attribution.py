"""Which call of a kernel does each ONNX node's work - for profiles and the graph page.

A kernel's record names the nodes it computes, but a pass names what it makes after the last node that it
replaces, and a node can be named by two kernels (a convolution and the layout change in front of it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvmopt.analysis.opcost import VIEWS
from tvmopt.report import Flow, Kernel


@dataclass(frozen=True)
class Attribution:
    """`home`: for each node (by its name in the flow) the step that does its work, if any; `named`: the steps
    whose kernels name it, none for a node that was folded away or is a view.
    """

    home: dict[str, int]
    named: dict[str, tuple[int, ...]]

    def flops(self, flow: Flow) -> list[float]:
        """For each step, the FLOPs of its nodes by their operators' definitions."""
        total = [0.0] * len(flow.steps)
        for name, step in self.home.items():
            node = flow.nodes.get(name)
            total[step] += (node.flops if node else None) or 0.0
        return total


def attribute(flow: Flow, kernels: Sequence[Kernel]) -> Attribution:
    """Every node's place: of the steps that name it the one that executes most; else the nearest step after
    it (what it was folded into has a later node's name), or before it for a view and if there is none after.
    """
    work = {k.name: k.flops for k in kernels}
    named: dict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(flow.steps):
        for name in step.nodes:
            named[name].append(index)
    home = {name: max(steps, key=lambda i: work.get(flow.steps[i].kernel, 0.0)) for name, steps in named.items()}
    maker = {tensor: name for name, node in flow.nodes.items() for tensor in node.outputs}
    readers: dict[str, list[str]] = defaultdict(list)
    for name, node in flow.nodes.items():
        for tensor in node.inputs:
            readers[tensor].append(name)
    for name, node in flow.nodes.items():
        for back in (True, False) if node.op_type in VIEWS else (False, True):
            if name not in named and name not in home:
                near = _nearest(name, back, flow, maker, readers, named)
                if near:
                    home[name] = named[near][-1 if back else 0]
    return Attribution(home, {name: tuple(steps) for name, steps in named.items()})


def _nearest(
    start: str,
    back: bool,
    flow: Flow,
    maker: Mapping[str, str],
    readers: Mapping[str, Sequence[str]],
    named: Mapping[str, Sequence[int]],
) -> str:
    """The first node with a kernel, breadth first along the tensors; "" where there is none."""
    seen, front = {start}, [start]
    while front:
        following: list[str] = []
        for name in front:
            node = flow.nodes[name]
            near = (
                [maker[t] for t in node.inputs if t in maker]
                if back
                else [r for t in node.outputs for r in readers.get(t, ())]
            )
            following += [n for n in near if n not in seen]
            seen.update(near)
        for name in following:
            if name in named:
                return name
        front = following
    return ""
