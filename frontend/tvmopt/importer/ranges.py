"""The range of each open size: the caller's, else one that the graph and memory bound - the end of a preparation.

smallest   the least size at which no tensor is empty and the model's conditions hold
largest    what the graph allows (a table of 512 positions), else 16 for the first axis of inputs, 2^20 for a signal
           (the last axis of an input of two that is called "audio" or the like: a minute of speech), 4096 for others;
           sizes are doubled in turn as long as the tensors that live at once take 1 GB at most, lengths and pictures
           to four times their named size before a batch; then the first axes up to 4096, as long as all takes 256 MB,
           or they take next to nothing: boxes beside pictures
named      1 for the first axis of inputs, else what such axes mostly are: 224 for a height, 16,000 for a signal (a
           second of speech), 128 for a length, which a first axis may be called, too. The second of a recurrence's
           state [layers, batch, hidden] is the first of others
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import onnx

from tvmopt.dims import Dim, Range, Size, best_sizes, holds, is_open, lowest, near, told
from tvmopt.errors import InputError, ModelError, collect
from tvmopt.importer.branches import deciding_inputs
from tvmopt.importer.fit_networks import REAL_TYPES
from tvmopt.importer.protos import BITS, describe_type, node_name, node_reads
from tvmopt.importer.roll import inner_names
from tvmopt.importer.walk import Walk

GUESSES = (("channel", 3), ("height", 224), ("width", 224), ("seq", 128), ("len", 128), ("time", 128), ("frame", 128))
"""Sizes to name for a dimension whose name contains the word."""

BUDGET = 1 << 30
"""Bytes of tensors that live at once at the largest sizes, where the caller gave no range."""

ROWS_BUDGET = 1 << 28
"""The same up to which the first axes of inputs grow beyond :data:`FIRST`."""

LITTLE = 1 << 22
"""Bytes that a first axis may grow by each time it is doubled, whatever the others take."""

FIRST, OTHER, PIECE = 16, 4096, 512
"""The largest sizes of the first axes of inputs while others grow, of other axes, and of the tokens that a decoder
takes at once, where nothing else bounds them."""

SIGNAL, SECOND = 1 << 20, 16000
"""The largest and the named number of samples of a signal."""
SIGNALS = ("sample", "wave", "audio", "signal", "speech", "pcm")
"""What the name of a signal, or of its size, contains."""

FARTHEST = 1 << 20
"""Up to here a smallest size is looked for: a model of sound may need thousands of samples."""

WIDTH = 4
"""A range goes to so many times its smallest size, at least, where nothing else bounds it."""


def choose(walk: Walk, nodes: Sequence[onnx.NodeProto]) -> dict[str, Range]:
    """A range for each symbol that is left.

    Raises:
        InputError: a range that was given is beyond what the graph allows.
        ModelError: there are no sizes at which the model computes anything.
    """
    symbols = walk.symbols
    _check_given(walk)
    memory = _Memory(walk, nodes)
    smallest = _lowest(walk, memory)
    given = _begun(walk, smallest)
    largest = {n: given[n].max if n in given else smallest[n] for n in symbols.names}
    usual = {
        n: max(_most(walk, n, first), 0 if first else WIDTH * smallest[n]) for n, (first, _) in memory.axes.items()
    }
    caps = {n: symbols.most.get(n, (most, ""))[0] for n, most in usual.items()}
    growing = {n: max(1, smallest[n]) for n in symbols.names if n not in given}  # by how much next
    enough = {n: 0 if first else 4 * named for n, (first, named) in memory.axes.items()}
    while growing:
        name = min(growing, key=lambda n: (largest[n] >= enough[n], largest[n]))
        grown = _grown(walk, memory, largest, name, min(largest[name] + growing[name], max(caps[name], smallest[name])))
        if grown > largest[name]:
            largest[name], growing[name] = grown, grown
        elif symbols.conditions and growing[name] > 1 and memory.peak(largest) <= BUDGET // 2:
            growing[name] //= 2
        else:
            del growing[name]
    for name in (n for n in symbols.names if memory.axes[n][0] and n not in given and not symbols.decoder):
        largest[name] = _many(walk, memory, largest, name)
    for name in (n for n in symbols.names if symbols.decoder and not lowest(n) and n not in given):
        largest[name] = max(largest[name], _alone(walk, smallest, name, caps[name]))
    ranges = {}
    for name in symbols.names:
        best = given[name].opt if name in given and given[name].opt else memory.axes[name][1]
        ranges[name] = Range(smallest[name], largest[name], min(max(best, smallest[name]), largest[name]))
    conditions = tuple(map(str, symbols.conditions))
    named = best_sizes(ranges, conditions)
    return {n: Range(r.min, r.max, r.opt if n in given or not named else named[n]) for n, r in ranges.items()}


def _most(walk: Walk, name: str, first: bool) -> int:
    """The largest size to offer where nothing bounds it: a decoder takes a long text in pieces."""
    if first:
        return FIRST
    if _is_signal(walk, name):
        return SIGNAL
    new = (walk.open_shape(walk.symbols.decoder.ids) or ())[1:] if walk.symbols.decoder else ()
    return PIECE if Dim.symbol(name) in new else OTHER


def _many(walk: Walk, memory: _Memory, largest: dict[str, int], name: str) -> int:
    """The largest size of a first axis once all others have theirs: as many rows as a share of the memory holds, as
    they may as well be frames or windows of one recording as samples of a batch."""
    cap = walk.symbols.most.get(name, (OTHER, ""))[0]
    size = largest[name]
    while 0 < size < cap:
        needed = memory.peak(largest | {name: min(2 * size, cap)})
        if needed > ROWS_BUDGET and needed - memory.peak(largest) > LITTLE:
            break
        grown = _grown(walk, memory, largest, name, min(2 * size, cap))
        if grown <= size:
            break
        size = largest[name] = grown
    return size


def _alone(walk: Walk, smallest: dict[str, int], name: str, cap: int) -> int:
    """The largest length of a cache, the other sizes being the smallest: of a step, whose caches lie outside."""
    conditions = tuple(map(str, walk.symbols.conditions))
    low, high = smallest[name], cap
    while low < high:
        middle = (low + high + 1) // 2
        fits = all(holds(c, smallest | {name: middle}) for c in conditions)
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _grown(walk: Walk, memory: _Memory, largest: dict[str, int], name: str, size: int) -> int:
    """The size next to `size` for which the conditions hold and memory suffices; else the one of now."""
    wanted = largest | {name: size}
    ranges = {n: Range(lowest(n), size) if n == name else Range(lowest(n), v) for n, v in wanted.items()}
    found = near(wanted, ranges, tuple(map(str, walk.symbols.conditions)))
    if not found or memory.peak(found) > BUDGET:
        return largest[name]
    return found[name]


def _begun(walk: Walk, smallest: dict[str, int]) -> dict[str, Range]:
    """The ranges that were given; those of which only the end was begin at the smallest size, and end where the graph's
    do.

    Raises:
        InputError: the smallest size is beyond the end.
    """
    made = dict(walk.symbols.ranges)
    for name, known in made.items():
        if known.at_most:
            end = min(known.max, walk.symbols.most.get(name, (known.max, ""))[0])
            if end < smallest[name]:
                what = f"'{name}' is at least {smallest[name]} in this model, and its range goes to {end}."
                raise InputError(what, where=f"--shape {name}:..{end}", fix=f"--shape {name}:..{2 * smallest[name]}")
            made[name] = Range(smallest[name], end, known.opt if known.opt >= smallest[name] else 0)
    return made


def _check_given(walk: Walk) -> None:
    problems: list[InputError] = []
    for name, (most, node) in walk.symbols.most.items():
        given = walk.symbols.ranges.get(name)
        if given and given.max > most and not given.at_most:
            what = f"'{name}' is at most {most} in this model, and its range goes to {given.max}."
            fix = f"--shape {name}:{given.min}..{most}{_or_one_branch(walk, node)}"
            problems.append(InputError(what, where=f"node '{node}', which takes no more", fix=fix))
    for name, (value, node) in walk.symbols.replaced.items():
        given = walk.symbols.ranges.get(name)
        if given is None or isinstance(value, Dim) or (given.at_most and value in given):
            continue
        if (given.min, given.max) != (value, value):
            what = f"'{name}' is always {value} in this model, and its range is {given}."
            fix = f"--shape {name}:{value}, or export the model without that size in it"
            problems.append(InputError(what, where=f"node '{node}'", fix=fix))
    if problems:
        raise collect(problems)


def _or_one_branch(walk: Walk, node: str) -> str:
    """What binds an If around a node of that name to one of its branches, so that the other one bounds nothing."""
    either = next((n for n in walk.nodes if n.op_type == "If" and node.startswith(f"{node_name(n)}/")), None)
    names = deciding_inputs(walk, either.input[0]) if either is not None else []
    return f", or take one branch: {' '.join(f'--value {name}=NUMBER' for name in names)}" if names else ""


def _lowest(walk: Walk, memory: _Memory) -> dict[str, int]:
    """The least sizes at which each tensor has elements and all conditions hold."""
    given = walk.symbols.ranges
    empty = bool(walk.symbols.decoder)  # an empty cache is a tensor without elements that nothing computes
    sizes = {n: given[n].min if n in given else lowest(n) if empty else 1 for n in walk.symbols.names}
    free = [n for n in walk.symbols.names if n not in given or given[n].at_most]
    conditions = tuple(map(str, walk.symbols.conditions))
    rooms = [c.b - c.a + 1 for c in walk.symbols.conditions if c.sign == "<=" and isinstance(c.b, Dim)]
    for _ in range(64):
        bad = [d for d in memory.sizes if d.at(sizes) < (lowest(str(d)) if empty and d.is_symbol else 1)]
        bad += [room for room in rooms if isinstance(room, Dim) and room.at(sizes) < 1]
        broken = [c for c in conditions if not holds(c, sizes)]
        if not bad and not broken:
            return sizes
        # Each in turn: a quotient has elements only where what it is divided by has some.
        if found := next(filter(None, (_filled(d, sizes, free) for d in bad)), {}):
            sizes |= found
            continue
        if bad:
            break
        ranges = {
            n: given[n] if n in given and n not in free else Range(sizes[n], max(OTHER, WIDTH * sizes[n]))
            for n in sizes
        }
        found = near(sizes, ranges, conditions, up=True)
        if not found or found == sizes:
            break
        sizes = found
    what = ", ".join(map(str, [*(f"{d} < 1" for d in bad), *broken][:3]))
    fix = "begin the ranges at sizes that the model takes: --shape NAME:32..1024"
    if any(" == " in condition for condition in broken):
        fix = "the model was made for one size: --shape NAME:1x3x224x224"
    raise ModelError(
        f"At the smallest sizes {told(sizes)} the model has a tensor without elements, or breaks a condition: {what}.",
        where=", ".join(f"input '{v.name}' {describe_type(walk.types[v.name])}" for v in walk.model.graph.input),
        fix=fix,
    )


def _filled(size: Dim, sizes: dict[str, int], free: Sequence[str]) -> dict[str, int]:
    """The one symbol, and its least value, that makes a size at least 1; empty where none does."""
    for name in (n for n in free if n in size.symbols()):
        high = sizes[name]
        while high <= FARTHEST and size.at(sizes | {name: high}) < 1:
            high = max(1, 2 * high)
        if high <= FARTHEST:
            values = range(sizes[name], high + 1)
            return {name: values[bisect_left(values, True, key=lambda v: size.at(sizes | {name: v}) >= 1)]}
    return {}


class _Memory:
    """What the tensors of a model take at given sizes.

    Attributes:
        sizes: each open size of a tensor, in bodies of loops and branches, too, once; what values decide is apart, and
            may be 0.
        axes: for each symbol whether it counts samples, and the size to name.
    """

    def __init__(self, walk: Walk, nodes: Sequence[onnx.NodeProto]) -> None:
        inputs = [v.name for v in walk.model.graph.input]
        outputs = {v.name for v in walk.model.graph.output}
        last: dict[str, int] = {}
        for index, node in enumerate(nodes):
            last |= {name: index for name in node_reads(node)}
        self.names: dict[str, int] = {}
        self.values: list[tuple[Size, ...]] = []
        for name in inputs:
            self._add(walk, name)
        events: list[tuple[list[int], list[int]]] = []
        for index, node in enumerate(nodes):
            made = [i for name in node.output if name and (i := self._add(walk, name)) is not None]
            dead = [
                self.names[n] for n in node_reads(node) if n in self.names and last[n] == index and n not in outputs
            ]
            events.append((made, dead))
        self.events = events
        inner = (walk.open_shape(name) or () for name in sorted(inner_names(nodes)))
        sizes = list(dict.fromkeys(d for value in (*self.values, *inner) for d in value if isinstance(d, Dim)))
        self.decided = [d for d in sizes if d.symbols() & walk.symbols.decided.keys()]
        self.sizes: list[Dim] = [d for d in sizes if d not in self.decided]
        self.limits = walk.symbols.limits
        self.axes = {name: _axis(walk, inputs, name) for name in walk.symbols.names}

    def _add(self, walk: Walk, name: str) -> int | None:
        shape, kind = walk.open_shape(name), walk.types.get(name)
        if shape is None or kind is None:
            return None
        self.names[name] = len(self.values)
        self.values.append((*shape, max(1, BITS.get(kind.tensor_type.elem_type, 64) // 8)))
        return self.names[name]

    def peak(self, sizes: dict[str, int]) -> int:
        """Bytes of the tensors that live at once, at the most."""
        known = {d: d.at(sizes) for d in self.sizes}
        most = self.limits(sizes)
        known |= {d: d.at(sizes | most) for d in self.decided}
        nbytes = [
            math.prod(max(0, known.get(d, d) if isinstance(d, Dim) else d) for d in value) for value in self.values
        ]
        made = {i for event in self.events for i in event[0]}
        live = sum(size for i, size in enumerate(nbytes) if i not in made)
        highest: int = live
        for new, dead in self.events:
            live += sum(nbytes[i] for i in new)
            highest = max(highest, live)
            live -= sum(nbytes[i] for i in dead)
        return highest


def _axis(walk: Walk, inputs: list[str], symbol: str) -> tuple[bool, int]:
    """Whether a symbol counts samples - it is the first axis of inputs, or called so - and the size to name for it."""
    found = list(_places(walk, inputs, symbol))
    named = next((size for word, size in GUESSES if word in symbol.lower()), 0)
    states = [axis == 1 and len(shape) == 3 and not is_open((shape[0], shape[2])) for axis, shape in found]
    samples = [axis == 0 or state for (axis, _), state in zip(found, states, strict=True)]
    if not named and ("batch" in symbol.lower() or (all(samples) and not all(states))):
        return True, 1
    axis, shape = next((place for place in found if place[0]), (1, ()))
    if named or len(shape) != 4:
        return False, named or (SECOND if _is_signal(walk, symbol) else 128)
    return False, ((1, 3, 224, 224) if is_open(shape[3:]) or not is_open(shape[1:2]) else (1, 224, 224, 3))[axis]


def _is_signal(walk: Walk, symbol: str) -> bool:
    """Whether a symbol counts the numbers of a signal: it is the last axis of a real input of two axes, and no other,
    and one of the two is called so."""
    called = False
    for v in walk.model.graph.input:
        shape, kind = walk.open_shape(v.name) or (), walk.types.get(v.name)
        if not any(isinstance(size, Dim) and symbol in size.symbols() for size in shape):
            continue
        real = kind is not None and kind.tensor_type.elem_type in REAL_TYPES
        if not real or len(shape) != 2 or shape[1] != Dim.symbol(symbol) or shape[0] == shape[1]:
            return False
        called |= any(word in f"{symbol} {v.name}".lower() for word in SIGNALS)
    return called


def _places(walk: Walk, inputs: list[str], symbol: str) -> Iterator[tuple[int, tuple[Size, ...]]]:
    for name in inputs:
        shape = walk.open_shape(name) or ()
        for axis, size in enumerate(shape):
            if isinstance(size, Dim) and symbol in size.symbols():
                yield axis, shape
