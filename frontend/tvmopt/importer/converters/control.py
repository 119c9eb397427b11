"""Loop, Scan and SequenceMap, unrolled: their trip count is known when the model is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

MAX_TRIPS = 1024
"""Beyond this an unrolled loop compiles for too long to be of use."""


def _stack(b: Build, parts: Sequence[Any], axis: int) -> Any:
    """Stack along a new axis."""
    shape = list(shape_of(parts[0]))
    axis %= len(shape) + 1
    shape.insert(axis, 1)
    return b.concat([b.reshape(part, shape) for part in parts], axis)


def _condition(ctx: Context, value: Any) -> bool:
    known = ctx.array(value, "condition")
    return True if known is None else bool(np.ravel(known)[0])


def loop(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Loop: the body once a trip, while the condition - which must fold to a constant - holds."""
    assert ctx.subgraph is not None
    b = Build(bb, ctx.name)
    body = attrs["body"]
    limit = ctx.array(inputs[0], "trip count")
    limit = int(np.ravel(limit)[0]) if limit is not None else None
    running, carried = _condition(ctx, inputs[1]), list(inputs[2:])
    count = len(carried)
    collected: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - count)]
    trip = 0
    while running and (limit is None or trip < limit):
        if trip >= MAX_TRIPS:
            raise ctx.unsupported(f"it runs more than {MAX_TRIPS} times, and loops are unrolled")
        results = ctx.subgraph(body, [const(trip, "int64"), const(True, "bool"), *carried])
        carried = list(results[1 : 1 + count])
        for values, value in zip(collected, results[1 + count :], strict=True):
            values.append(value)
        trip += 1
        if limit is None or trip < limit:
            running = _condition(ctx, results[0])
    if trip == 0 and collected:
        raise ctx.unsupported("it never runs, and the shape of what it collects is unknown")
    return (*carried, *(_stack(b, values, 0) for values in collected))


def _scan(b: Build, ctx: Context, attrs: dict[str, Any], states: list[Any], sequences: list[Any]) -> list[Any]:
    assert ctx.subgraph is not None
    body, n = attrs["body"], len(sequences)
    axes = attrs.get("scan_input_axes", (0,) * n)
    back = attrs.get("scan_input_directions", attrs.get("directions", (0,) * n))
    collected: list[list[Any]] = [[] for _ in range(len(body.output) - len(states))]
    length = shape_of(sequences[0])[axes[0]]
    if length > MAX_TRIPS:
        raise ctx.unsupported(f"it runs {length} times, and loops are unrolled up to {MAX_TRIPS}")
    for t in range(length):
        elements = []
        for x, axis, reverse in zip(sequences, axes, back, strict=True):
            shape = list(shape_of(x))
            axis %= len(shape)
            at = length - 1 - t if reverse else t
            piece = b.slice(x, axis, at, at + 1)
            elements.append(b.reshape(piece, shape[:axis] + shape[axis + 1 :]))
        results = ctx.subgraph(body, [*states, *elements])
        states = list(results[: len(states)])
        for values, value in zip(collected, results[len(states) :], strict=True):
            values.append(value)
    out_axes = attrs.get("scan_output_axes", (0,) * len(collected))
    out_back = attrs.get("scan_output_directions", (0,) * len(collected))
    stacked = [
        _stack(b, values[::-1] if reverse else values, axis)
        for values, axis, reverse in zip(collected, out_axes, out_back, strict=True)
    ]
    return [*states, *stacked]


def scan(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Scan: the body once an element of its sequences; opset 8 has a batch dimension in front of everything."""
    b = Build(bb, ctx.name)
    n = attrs["num_scan_inputs"]
    if ctx.opset >= 9:
        values = list(inputs)
        return tuple(_scan(b, ctx, attrs, values[: len(values) - n], values[len(values) - n :]))
    if inputs[0] is not None:
        raise ctx.unsupported("sequence_lens is given", "convert the model to opset 9 or later")
    values = list(inputs)[1:]
    batch = shape_of(values[-1])[0]
    runs = []
    for i in range(batch):
        item = [b.reshape(b.slice(v, 0, i, i + 1), shape_of(v)[1:]) for v in values]
        runs.append(_scan(b, ctx, attrs, item[: len(item) - n], item[len(item) - n :]))
    return tuple(_stack(b, parts, 0) for parts in zip(*runs, strict=True))


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
    ("", "Loop"): loop,
    ("", "Scan"): scan,
    ("", "SequenceMap"): sequence_map,
}
