"""SequenceMap, unrolled; If, Loop and Scan are written out before conversion (:mod:`tvmopt.importer.control`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def elements(sequence: Any) -> list[Any]:
    """The elements of a sequence: the fields of a tuple, or of a variable bound to one."""
    if isinstance(sequence, relax.Tuple):
        return list(sequence.fields)
    return [relax.TupleGetItem(sequence, i) for i in range(len(sequence.ty.fields))]


def is_sequence(expr: Any) -> bool:
    """Whether a value is a sequence."""
    return isinstance(expr, relax.Tuple) or isinstance(expr.ty, relax.TupleType)


MAX_TRIPS = 1024
"""Beyond this an unrolled loop compiles for too long to be of use."""


def _condition(ctx: Context, value: Any) -> bool:
    known = ctx.array(value, "condition")
    return True if known is None else bool(np.ravel(known)[0])


def loop(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Loop: the body once a trip, while the condition - which must fold to a constant - holds."""
    assert ctx.subgraph is not None
    b = Build(bb, ctx.name)
    body = attrs["body"]
    count = ctx.array(inputs[0], "trip count")
    limit = int(np.ravel(count)[0]) if count is not None else None
    running, carried = _condition(ctx, inputs[1]), list(inputs[2:])
    collected: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trip = 0
    while running and (limit is None or trip < limit):
        if trip >= MAX_TRIPS:
            raise ctx.unsupported(f"it runs more than {MAX_TRIPS} times, and loops are unrolled")
        results = ctx.subgraph(body, [const(trip, "int64"), const(True, "bool"), *carried])
        carried = list(results[1 : 1 + len(carried)])
        for values, value in zip(collected, results[1 + len(carried) :], strict=True):
            values.append(b.reshape(value, (1, *shape_of(value))))
        trip += 1
        if limit is None or trip < limit:
            running = _condition(ctx, results[0])
    if trip == 0 and collected:
        raise ctx.unsupported("it never runs, and the shape of what it collects is unknown")
    return (*carried, *(b.concat(values, 0) for values in collected))


def scan8(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Scan of opset 8: a batch dimension in front of everything, each entry scanned by itself.

    Later forms are written out before (:mod:`tvmopt.importer.control`).
    """
    if ctx.opset >= 9 or inputs[0] is not None:
        raise ctx.unsupported("the length of its scan axis is not known", "bind the shapes it depends on")
    assert ctx.subgraph is not None
    b = Build(bb, ctx.name)
    body, count = attrs["body"], attrs["num_scan_inputs"]
    backward = attrs.get("directions", (0,) * count)
    values = list(inputs)[1:]
    batch, length = shape_of(values[-1])[:2]
    runs = []
    for i in range(batch):
        item = [b.reshape(b.slice(v, 0, i, i + 1), shape_of(v)[1:]) for v in values]
        states, sequences = item[:-count], item[-count:]
        collected: list[list[Any]] = [[] for _ in range(len(body.output) - len(states))]
        for t in range(length):
            parts = []
            for x, back in zip(sequences, backward, strict=True):
                at = length - 1 - t if back else t
                parts.append(b.reshape(b.slice(x, 0, at, at + 1), shape_of(x)[1:]))
            results = ctx.subgraph(body, [*states, *parts])
            states = results[: len(states)]
            for column, value in zip(collected, results[len(states) :], strict=True):
                column.append(b.reshape(value, (1, *shape_of(value))))
        runs.append([*states, *(b.concat(column, 0) for column in collected)])
    stacked = [[b.reshape(part, (1, *shape_of(part))) for part in column] for column in zip(*runs, strict=True)]
    return tuple(b.concat(column, 0) for column in stacked)


def sequence_map(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceMap: the body once an element; inputs that are no sequences are passed to every call."""
    assert ctx.subgraph is not None
    length = len(elements(inputs[0]))
    results = []
    for i in range(length):
        items = [bb.normalize(elements(x)[i]) if is_sequence(x) else x for x in inputs]
        results.append(ctx.subgraph(attrs["body"], items))
    return tuple(relax.Tuple(list(column)) for column in zip(*results, strict=True))


def split_to_sequence(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SplitToSequence: by lengths, in pieces of one length, or each index by itself; one piece is a sequence, too."""
    b, x = Build(bb, ctx.name), inputs[0]
    shape, given = shape_of(x), ctx.array(inputs[1], "split")
    axis = int(attrs.get("axis", 0)) % len(shape)
    length = shape[axis]
    if not isinstance(length, int):
        raise ctx.unsupported(f"axis {axis}, along which it splits, is open", "bind it with --shape")
    lengths = [1] * length if given is None else [int(n) for n in given.reshape(-1)]
    if given is not None and given.ndim == 0 and lengths[0] > 0:
        lengths = [min(lengths[0], length - start) for start in range(0, length, lengths[0])]
    if sum(lengths) != length or min(lengths, default=0) < 0:
        raise ctx.invalid(f"Lengths {lengths} do not split an axis of {length}.", "repair the model", 1)
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    parts = [b.slice(x, axis, end - size, end) for size, end in zip(lengths, ends, strict=True)]
    if given is None and not attrs.get("keepdims", 1):
        parts = [b.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts]
    return relax.Tuple(parts)


def sequence_insert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceInsert: before a position, at the end by default."""
    parts = elements(inputs[0])
    at = len(parts) if inputs[2] is None else _place(ctx, inputs, 2, len(parts) + 1)
    parts.insert(at, inputs[1])
    return relax.Tuple(parts)


def sequence_erase(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceErase: all but the element at a position, the last one by default."""
    parts = elements(inputs[0])
    if not parts:
        raise ctx.invalid("A sequence of nothing has no element to erase.", "repair the model", 0)
    del parts[len(parts) - 1 if inputs[1] is None else _place(ctx, inputs, 1, len(parts))]
    return relax.Tuple(parts)


def sequence_at(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceAt: the element at a position."""
    parts = elements(inputs[0])
    return parts[_place(ctx, inputs, 1, len(parts))]


def _place(ctx: Context, inputs: Inputs, number: int, end: int) -> int:
    """The constant position in a sequence that input `number` is, counted from the front; `end`: the first too many."""
    length = len(elements(inputs[0]))
    position = ctx.array(inputs[number], "position")
    assert position is not None
    at = int(position.reshape(-1)[0])
    if not -length <= at < end:
        raise ctx.invalid(f"Position {at} is outside a sequence of {length}.", "repair the model", number)
    return at + length if at < 0 else at


def sequence_length(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SequenceLength: a constant."""
    return const(len(elements(inputs[0])), "int64")


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Loop"): loop,
    ("", "Scan"): scan8,
    ("", "SequenceMap"): sequence_map,
    ("", "SequenceAt"): sequence_at,
    ("", "SequenceErase"): sequence_erase,
    ("", "SequenceInsert"): sequence_insert,
    ("", "SplitToSequence"): split_to_sequence,
    ("", "SequenceLength"): sequence_length,
}
