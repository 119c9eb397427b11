"""What a random graph is made of: each rule adds a node, or a few that belong together, to a `Builder`.

A rule is a function of the builder; it raises `Reject` where it does not fit. The number beside it is how often it is
drawn, relative to the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.build import Builder, Reject
from fuzz.rules import (
    attention,
    control,
    elementwise,
    indexed,
    integers,
    movement,
    patterns,
    products,
    rare,
    recurrent,
    reduction,
    windows,
)

Rule = Callable[[Builder], None]
GROUPS = (
    elementwise, reduction, windows, products, movement, indexed, integers, attention, patterns, control, recurrent,
    rare,
)  # fmt: skip
RULES: list[tuple[float, Rule]] = [entry for group in GROUPS for entry in group.RULES]


def grow(builder: Builder, nodes: int, rules: list[tuple[float, Rule]] | None = None) -> None:
    """Add rules until the graph has this many nodes."""
    chosen = rules or RULES
    weights = np.array([w for w, _ in chosen], float)
    weights /= weights.sum()
    for _ in range(nodes * 8):
        if len(builder.nodes) >= nodes:
            return
        rule = chosen[int(builder.rng.choice(len(chosen), p=weights))][1]
        kept = (len(builder.nodes), len(builder.values))
        try:
            rule(builder)
        except Reject:
            for node in builder.nodes[kept[0] :]:
                for name in node.output:
                    builder.made.pop(name, None)
            del builder.nodes[kept[0] :]
            del builder.values[kept[1] :]
