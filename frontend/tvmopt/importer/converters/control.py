"""SequenceMap, unrolled; If, Loop and Scan are written out before conversion
(:mod:`tvmopt.importer.control`).
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def sequence_map(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceMap: the body once an element; inputs that are no sequences are passed to every call."""
    assert ctx.subgraph is not None
    length = len(inputs[0].fields)
    results = []
    for i in range(length):
        items = [x.fields[i] if isinstance(x, relax.Tuple) else x for x in inputs]
        results.append(ctx.subgraph(attrs["body"], items))
    return tuple(relax.Tuple(list(column)) for column in zip(*results, strict=True))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "SequenceMap"): sequence_map,
}
