"""Which products of an ONNX model have their rows rounded to 8 bits - for the oracle, which then rounds them, too.

`accuracy_level` 4 of MatMulNBits allows it and asks for nothing: one compiled model rounds, another one does not. So
the judge marks the nodes that did, by a private attribute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tvmopt.analysis.oracle.values import ROUNDS
from tvmopt.importer.protos import node_name

STAGE = "tvmopt.RoundActivations"
"""The pass that rounds; its decisions name nodes."""
LEVEL, ALLOWED = "accuracy_level", 4


def may_round(node: Any) -> bool:
    """Whether an engine may round the rows of a node."""
    if node.op_type != "MatMulNBits":
        return False
    return any(a.name == LEVEL and a.i == ALLOWED for a in node.attribute)


def rounded_by(report: Mapping[str, Any]) -> set[str]:
    """The nodes whose rows a compiled model rounds, by its manifest's report."""
    told = report.get("decisions", ())
    return {d["node"] for d in told if d["stage"] == STAGE and d["verdict"] == "applied"}


def mark(model: Any, names: Collection[str] | None = None) -> bool:
    """Mark the nodes of these names, and no others, in the model itself; without names all that allow it.

    Returns:
        Whether a node is marked now, or was before.
    """
    touched = False
    for node in filter(may_round, model.graph.node):
        before = [a for a in node.attribute if a.name == ROUNDS]
        touched |= bool(before)
        for attribute in before:
            node.attribute.remove(attribute)
        if names is None or node_name(node) in names:
            touched = True
            node.attribute.add(name=ROUNDS, i=1, type=2)  # AttributeProto.INT
    return touched
