"""Which tensors are alive during each step of a compiled run, and what the plan holds for them - for `profile`
and `inspect`.

A tensor is alive from the step that writes it to the last that reads it; what the run returns, to the end.
Weights and inputs are not counted: weights are there before the run, inputs are the caller's. A kernel's own
workspace is its own business; only a measurement shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.analysis.svg import COLOURS, Plot
from tvmopt.report import Flow


@dataclass(frozen=True)
class Memory:
    """Activations over one run, in bytes.

    Attributes:
        alive: for each step, of the tensors alive during it: nothing can need less in this order.
        held: for each step, of the planned blocks in use and of the outputs made so far.
        peak: the step where most is alive; -1 without steps.
        peak_tensors: indices of the values alive then, largest first.
        planned: of all blocks together, which the allocator keeps, and of the outputs.
    """

    alive: tuple[int, ...]
    held: tuple[int, ...]
    peak: int
    peak_tensors: tuple[int, ...]
    planned: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return self.alive[self.peak] if self.peak >= 0 else 0


def memory(flow: Flow) -> Memory:
    """The memory of a run, step by step."""
    last = len(flow.steps) - 1
    spans: dict[int, tuple[int, int]] = {}
    for index, step in enumerate(flow.steps):
        for value in (*step.inputs, *step.outputs):
            if flow.values[value].kind in ("activation", "output"):
                spans[value] = (spans.get(value, (index, 0))[0], index)
    for value in set(flow.outputs) & set(spans):
        spans[value] = (spans[value][0], last)
    blocks: dict[int, tuple[int, int]] = {}
    for value, (first, end) in spans.items():
        storage = flow.values[value].storage
        if storage >= 0:
            a, b = blocks.get(storage, (first, end))
            blocks[storage] = (min(a, first), max(b, end))
    fresh = [v for v in spans if flow.values[v].storage < 0]
    alive, held = [], []
    for index in range(len(flow.steps)):
        alive.append(sum(flow.values[v].bytes for v, (a, b) in spans.items() if a <= index <= b))
        held.append(
            sum(flow.storages[s] for s, (a, b) in blocks.items() if a <= index <= b)
            + sum(flow.values[v].bytes for v in fresh if spans[v][0] <= index)
        )
    peak = max(range(len(alive)), key=alive.__getitem__, default=-1)
    tensors = sorted((v for v, (a, b) in spans.items() if a <= peak <= b), key=lambda v: -flow.values[v].bytes)
    planned = sum(flow.storages) + sum(flow.values[v].bytes for v in fresh)
    return Memory(tuple(alive), tuple(held), peak, tuple(tensors), planned)


def memory_svg(flow: Flow, found: Memory, size: tuple[int, int] = (1040, 300)) -> str:
    """Bytes alive (filled) and held by the plan (line) over the steps of a run, the peak marked."""
    if not found.alive:
        return ""
    top = max(*found.held, *found.alive, 1) * 1.12
    plot = Plot(
        (0, len(found.alive)), (0, top / 1e6), size=size, title="activations over one run",
        xlabel="step: one call of a kernel", ylabel="MB",
    )  # fmt: skip
    for index, amount in enumerate(found.alive):
        step = flow.steps[index]
        label = f"{index}: {'+'.join(step.nodes) or step.kernel}: {amount / 1e6:.3f} MB alive"
        colour = COLOURS[1] if index == found.peak else COLOURS[0]
        plot.box((index, index + 1), (0, amount / 1e6), colour, label, 0.75 if index == found.peak else 0.45)
    corners = [(i + d, held / 1e6) for i, held in enumerate(found.held) for d in (0, 1)]
    plot.line(corners, COLOURS[7], 1.5)
    plot.text(found.peak + 0.5, found.peak_bytes / 1e6, f"peak {found.peak_bytes / 1e6:.2f} MB", "middle", 0, -6)
    return plot.render()
