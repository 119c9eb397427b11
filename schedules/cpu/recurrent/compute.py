"""LSTM, GRU and RNN over all steps as one kernel: the state and the gates never leave the cache.

For one direction, steps one after the other, vectors over the *hidden units*::

    for a step t, for a block j of W = nv*V hidden units, for a tile of mb sequences
      acc[r, g, v]  = projected[t, r, g, j]                             registers: mb * G * nv * chains
      acc[r, g, v] += sum_k h[r, k] * R[j, k, g, v]                     R packed: one stream, in this order
      h'[r, j], c'[r, j] = gates(acc)                                   all gates of a unit are in one tile

h and c exist twice: a step reads one copy and writes the other. So the last block may begin before its place and
compute some units twice: no size needs padding; and cores can share the blocks of a step if they meet after it
(`recurrent_plan` decides). A GRU whose reset gate acts on h (not on h R^T) needs a second pass over its blocks.
Steps and sequences may be open sizes: each sequence is a task then, and the steps are counted when the kernel runs.
An LSTM of integers rounds its states in front of each step (rounded.py), and takes four terms at a time where they are
bytes::

      total[r, g, v] += dot4(codes of h[r, 4k ..], R[j, 4k .., g, v])
      acc[r, g, v]    = projected[t, r, g, j] + float(total - zero[r] * sum_k R) * step[r] * scale[g, j]

Everything else is float32, or unrolled (:mod:`tvmopt.passes.unroll_recurrence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.tirx.op import call_intrin

from tvmopt.lowering.common import OPAQUE, Symbols, constant, named_size, sizes, static_shape
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
    const_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
    vector_type,
)
from tvmopt.lowering.quads import DOT4_ADD, WORD, pack_quads, quad
from tvmopt.operators.recurrence import Function, Spec, spec_of
from tvmopt.schedules.cpu.recurrent.gates import Gates, Unit
from tvmopt.schedules.cpu.recurrent.rounded import Rounded
from tvmopt.schedules.cpu.recurrent.tile import GateTile, RecurrentPlan, plan
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
SHAPES: dict[str, Callable[[int, Any, int], tuple[Any, ...]]] = {
    "bias": lambda d, b, h: (d, h),
    "lengths": lambda d, b, h: (b,),
    "h0": lambda d, b, h: (d, b, h),
    "c0": lambda d, b, h: (d, b, h),
    "peephole": lambda d, b, h: (d, 3 * h),
    "scale": lambda d, b, h: (d, 4 * h),
}


def declines(call: relax.Call, machine: Machine) -> str | None:
    """Why this machine has no kernel for a call of `tvmopt.recurrent`; None if it has one."""
    operands = spec_of(call).named(call.args)
    kinds = sorted({str(a.ty.dtype) for name, a in operands.items() if name != "lengths"} - {"float32"})
    if kinds == ["int8"] and is_bytes(operands):
        kinds = []
    if kinds:
        return f"no kernel for {', '.join(kinds)}"
    if any((s := sizes(a)) is None or 0 in s for a in call.args):
        return "a shape is not known or empty"
    if static_shape(operands["recurrence"]) is None:
        return "the weights have an open size"
    return None


def is_bytes(operands: Mapping[str, Any]) -> bool:
    """Whether R is of bytes, which rounded states multiply as integers."""
    return "scale" in operands and str(operands["recurrence"].ty.dtype) == "int8"


def passes(spec: Spec) -> tuple[int, ...]:
    """Gates of each pass over R in a step."""
    return (2, 1) if spec.kind == "GRU" and not spec.linear_before_reset else (spec.gates,)


@dataclass(frozen=True)
class _Step:
    """Where a step of a task is: time, first sequence, and the copies of the states read and written."""

    t: Expr
    first: Expr
    old: Expr
    new: Expr


class RecurrentWriter:
    """Writes the kernel of one recurrence of these sizes; `steps` and `batch` may be expressions, whose variables that
    no tensor's size gives are `handed`. `of_bytes`: whether R is of bytes, four a word."""

    def __init__(
        self, spec: Spec, steps: Any, batch: Any, directions: int, hidden: int, p: RecurrentPlan,
        handed: Sequence[Any] = (), of_bytes: bool = False,
    ) -> None:  # fmt: skip
        self.spec, self.plan, self.steps, self.batch, self.hidden = spec, p, as_index(steps), as_index(batch), hidden
        self.handed = handed
        self.directions, self.rows = directions, p.rows
        self.of_bytes, self.word = of_bytes, WORD if of_bytes else 1  # and the terms of a step of the product
        terms = max(map(self._trips, p.tiles)) * self.word
        lanes = p.tiles[0].lanes
        self.width = -(-terms // lanes) * lanes if self.rounds else terms  # of a sequence in a state; then zeros
        self.size = p.rows * self.width
        self.locals: list[Any] = []
        self.projected = new_buffer("projected", steps, batch, directions * spec.gates * hidden)
        self.packed = [
            new_buffer(f"packed{i}", directions, t.blocks, self._trips(t), t.gates * t.width,
                       dtype="int32" if of_bytes else "float32")
            for i, t in enumerate(p.tiles)
        ]  # fmt: skip
        if of_bytes:
            self.packed.append(new_buffer("sums", directions, spec.gates * hidden, dtype="int32"))
        self.given = {
            name: new_buffer(
                name, *SHAPES[name](directions, batch, hidden), dtype="int32" if name == "lengths" else "float32"
            )
            for name in spec.operands
        }
        self.y = new_buffer("y", steps, directions, batch, hidden)
        self.last = [new_buffer(f"last_{name}", directions, batch, hidden) for name in spec.states]
        self.state = {name: self._local(name, 2 * self.size) for name in spec.states}
        self.between = self._local("between", 2 * self.size) if len(p.tiles) == 2 else None  # reset * h, update
        self.d, self.task = tirx.Var("vd", INDEX), tirx.Var("vtask", INDEX)
        self.functions: tuple[Function, ...] = ()
        self.rounded: Rounded | None = None

    @property
    def rounds(self) -> bool:
        """Whether each step rounds the states to 8 bits."""
        return "scale" in self.spec.operands

    def _trips(self, shape: GateTile) -> int:
        """Steps of the product with R, with those added that make whole trips through its loop."""
        return shape.terms(-(-self.hidden // self.word))

    def _local(self, name: str, size: int, dtype: str = "float32") -> Any:
        buffer = new_buffer(f"{name}_{len(self.locals)}", size, dtype=dtype)
        self.locals.append(buffer)
        return buffer

    def func(self) -> Any:
        """PrimFunc(projected, packed..., given..., [handed], y, h, [c])."""
        inputs, outputs = [self.projected, *self.packed, *self.given.values()], [self.y, *self.last]
        axes = [(self.d, self.directions), (self.task, tirx.floordiv(self.batch, const_index(self.rows)))]
        body = self._directions()  # before the block: it fills `locals`
        loops = nest(
            "recurrent", axes, ("direction", "task"), list(map(everything, inputs)), list(map(everything, outputs)),
            body, self.locals, {"tvmopt.kernel": "recurrent", "tvmopt.mode": self.plan.mode},
        )  # fmt: skip
        return prim_func([*inputs, *self.handed, *outputs], loops, OPAQUE)

    def _directions(self) -> Any:
        """One program, or one per direction where their activations differ."""
        programs = []
        for functions in self.spec.functions:
            self.functions = functions
            programs.append(self._program())
            if len(set(self.spec.functions)) == 1:
                return programs[0]
        return tirx.IfThenElse(self.d.equal(const_index(0)), *programs)

    def _program(self) -> Any:
        """One task: the states' first values, the steps, their last values."""
        first, zero = self.task * self.rows, tirx.const(0.0, "float32")

        def each(body: Callable[[Expr, Expr, Expr], Any]) -> Any:
            def row(r: Expr) -> Any:
                return loop(self.hidden, lambda i: body(first + r, i, r * self.width + i), "i")

            return loop(self.rows, row, "r")

        def clear(buffer: Any) -> Any:
            return loop(2 * self.size, lambda i: store(buffer, zero, i), "i")

        def start(name: str) -> Any:
            given = self.given[f"{name}0"]
            return each(lambda row, i, at: store(self.state[name], load(given, self.d, row, i), at))

        def finish(name: str, out: Any) -> Any:
            at_end = tirx.floormod(self.steps, const_index(2)) * self.size
            return each(lambda row, i, at: store(out, load(self.state[name], at + at_end), self.d, row, i))

        # cleared here, a buffer is allocated here: once for all cores
        cleared = [clear(b) for b in (*self.state.values(), self.between) if b is not None]
        steps = loop(self.steps, lambda s: self._step(s, first), "s")
        if self.plan.mode == "steps":
            steps = _pragma("parallel_launch_point", steps)
        return seq([
            *cleared, *(start(name) for name in self.spec.states if f"{name}0" in self.given), steps,
            *(finish(name, out) for name, out in zip(self.spec.states, self.last, strict=True)),
        ])  # fmt: skip

    def _step(self, s: Expr, first: Expr) -> Any:
        back = self.steps - 1 - s
        t = s + self.d * (back - s) if self.directions == 2 else back if self.spec.reverse else s
        old = tirx.floormod(s, const_index(2)) * self.size
        at = _Step(t, first, old, const_index(self.size) - old)
        if self.rounds:
            lanes = self.plan.tiles[0].lanes
            self.rounded = Rounded(self.state["h"], self.rows, self.width, lanes, self.of_bytes, self._local)
            return seq(
                [*self.rounded.statements(old), self._pass(0, at, self.rounded.codes, const_index(0), Gates.lstm)]
            )
        if self.between is None:
            gates = {"LSTM": Gates.lstm, "GRU": Gates.gru, "RNN": Gates.rnn}[self.spec.kind]
            return self._pass(0, at, self.state["h"], old, gates)
        return seq([
            self._pass(0, at, self.state["h"], old, Gates.gru_gates),
            self._pass(1, at, self.between, const_index(0), Gates.gru_candidate),
        ])  # fmt: skip

    def _pass(self, number: int, at: _Step, source: Any, base: Expr, gates: Callable[[Gates], dict[str, Expr]]) -> Any:
        """All hidden units of these gates: `source` (from `base` on) times packed R."""
        shape = self.plan.tiles[number]
        whole, rest = divmod(self.rows, shape.rows)

        def block(j: Expr) -> Any:
            start = j * shape.width
            if shape.blocks * shape.width != self.hidden:
                start = tirx.min(start, const_index(self.hidden - shape.width))

            def one(row: Expr, rows: int) -> Any:
                return self._tile(number, at, source, base, gates, j, start, row, rows)

            parts = [loop(whole, lambda i: one(i * shape.rows, shape.rows), "tile")] if whole else []
            return seq([*parts, *([one(const_index(whole * shape.rows), rest)] if rest else [])])

        var = tirx.Var("j", INDEX)
        shared = self.plan.mode == "steps"
        kind = tirx.ForKind.PARALLEL if shared else tirx.ForKind.SERIAL
        blocks = tirx.For(var, const_index(0), const_index(shape.blocks), kind, block(var))
        return _pragma("parallel_barrier_when_finish", blocks) if shared else blocks

    def _tile(
        self, number: int, at: _Step, source: Any, base: Expr, gates: Callable[[Gates], dict[str, Expr]],
        j: Expr, start: Expr, row: Expr, rows: int,
    ) -> Any:  # fmt: skip
        shape, packed = self.plan.tiles[number], self.packed[number]
        lanes, chains = shape.lanes, range(shape.chains)
        places = [(r, v) for r in range(rows) for v in range(shape.vectors)]
        cells = [(r, g, v) for r in range(rows) for g in range(shape.gates) for v in range(shape.vectors)]
        kind = "int32" if self.of_bytes else "float32"
        acc = {(cell, chain): self._local("acc", lanes, kind) for cell in cells for chain in chains}
        whole = vector(0, lanes)

        def begin(cell: tuple[int, int, int], chain: int) -> Expr:
            r, g, v = cell
            if chain or self.rounds:
                return splat(0, lanes, kind)
            return self._begin(at, row + r, start + v * lanes, g + (2 if number else 0), lanes)

        def add(k: Expr, chain: int) -> list[Any]:
            out = []
            for r, g, v in cells:
                first = base + (row + r) * self.width + k * self.word
                weight = load(packed, self.d, j, k, vector(g * shape.width + v * lanes, lanes))
                target = acc[(r, g, v), chain]
                old = load(target, whole)
                if self.of_bytes:
                    four = spread(quad(*(load(source, first + byte) for byte in range(WORD))), lanes)
                    total = call_intrin(vector_type("int32", lanes), DOT4_ADD, old, four, weight)
                else:
                    total = old + spread(load(source, first), lanes) * weight
                out.append(store(target, total, whole))
            return out

        statements = [store(acc[key], begin(*key), whole) for key in acc]

        def trip(k: Expr) -> Any:
            return seq([s for n in range(shape.unroll) for s in add(k * shape.unroll + n, n % shape.chains)])

        statements.append(loop(self._trips(shape) // shape.unroll, trip, "k"))
        for cell in cells if shape.chains > 1 else ():
            total = load(acc[cell, 0], whole)
            for chain in chains[1:]:
                total = total + load(acc[cell, chain], whole)
            statements.append(store(acc[cell, 0], total, whole))
        # unrolled: LLVM takes a loop in a loop for hotter than the product's, and gives its constants the registers
        for r, v in places:
            sums = [load(acc[(r, g, v), 0], whole) for g in range(shape.gates)]
            if self.rounds:
                unit = start + v * lanes
                sums = [self._real(at, row + r, unit, g, lanes, value) for g, value in enumerate(sums)]
            statements += self._unit(at, row + r, start + v * lanes, lanes, sums, gates)
        return seq(statements)

    def _begin(self, at: _Step, row: Expr, unit: Expr, gate: int, lanes: int) -> Expr:
        """What a sum starts with: x's share, or the bias of h R^T where the reset gate multiplies it."""
        if self.spec.linear_before_reset and gate == 2:
            bias = self.given.get("bias")
            return splat(0.0, lanes) if bias is None else load(bias, self.d, vector(unit, lanes))
        return self._projected(at, row, unit, gate, lanes)

    def _real(self, at: _Step, row: Expr, unit: Expr, gate: int, lanes: int, total: Expr) -> Expr:
        """x's share and that of the rounded state, whose product is `total`."""
        assert self.rounded is not None
        column = vector(unit + gate * self.hidden, lanes)
        if self.of_bytes:
            zero = spread(load(self.rounded.zeros, row), lanes)
            total = (total - zero * load(self.packed[-1], self.d, column)).astype(vector_type("float32", lanes))
        scale = spread(load(self.rounded.steps, row), lanes) * load(self.given["scale"], self.d, column)
        return self._projected(at, row, unit, gate, lanes) + total * scale

    def _projected(self, at: _Step, row: Expr, unit: Expr, gate: int, lanes: int) -> Expr:
        column = self.d * (self.spec.gates * self.hidden) + (unit + gate * self.hidden)
        return load(self.projected, at.t, at.first + row, vector(column, lanes))

    def _unit(
        self, at: _Step, row: Expr, unit: Expr, lanes: int, sums: list[Expr],
        gates: Callable[[Gates], dict[str, Expr]],
    ) -> list[Any]:  # fmt: skip
        """The gates of one vector of one sequence, and where their results go; an ended sequence gives 0 and keeps
        its states."""
        place = row * self.width + unit

        def before(name: str) -> Expr:
            if name == "x2":
                return self._projected(at, row, unit, 2, lanes)
            if name == "update":
                return load(self.between, vector(place + self.size, lanes))
            if name.startswith("peephole"):
                return load(self.given["peephole"], self.d, vector(unit + int(name[-1]) * self.hidden, lanes))
            return load(self.state[name], vector(place + at.old, lanes))

        writer = Gates(self.spec, self.functions, Unit(lanes, sums, before, lambda n: self._local("value", n)))
        values = gates(writer)
        if "update" in values:
            parts = (("reset", place), ("update", place + self.size))
            return [*writer.done, *(store(self.between, values[n], vector(p, lanes)) for n, p in parts)]
        out = values["h"]
        if "lengths" in self.given:
            alive = load(self.given["lengths"], at.first + row).astype(INDEX) > at.t
            alive = spread(alive, lanes)
            out = tirx.Select(alive, out, splat(0.0, lanes))
            values = {n: tirx.Select(alive, v, before(n)) for n, v in values.items()}
        states = [store(self.state[n], v, vector(place + at.new, lanes)) for n, v in values.items()]
        return [*writer.done, *states, store(self.y, out, at.t, self.d, at.first + row, vector(unit, lanes))]


def _pragma(name: str, body: Any) -> Any:
    return tirx.AttrStmt(const_index(0), f"pragma_{name}", tirx.const(1, "int32"), body)


# -- lowering -------------------------------------------------------------------------------------


def recurrent(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """The operator of :mod:`tvmopt.operators.recurrence`."""
    if (reason := declines(call, machine)) is not None:
        return Declined(reason)
    spec = spec_of(call)
    operands = spec.named(call.args)
    symbols = Symbols()
    steps, batch, _ = symbols.of(operands["projected"])
    for name in spec.operands:
        symbols.of(operands[name])
    handed = symbols.to_hand_over()
    directions, _, hidden = static_shape(operands["recurrence"]) or ()
    named = [named_size(bb, [d]) for d in (sizes(operands["projected"]) or ())[:2]]
    of_bytes, value = is_bytes(operands), constant(bb, operands["recurrence"])
    if of_bytes and value is None:
        return Declined("bytes of R that are no constant")
    p = plan(
        named[0], named[1], directions, hidden, passes(spec), machine, one_by_one=not isinstance(batch, int),
        terms=-(-hidden // WORD) if of_bytes else hidden,
    )  # fmt: skip
    args, gate = [operands["projected"]], 0
    for shape in p.tiles:
        args.append(_packed(bb, operands["recurrence"], hidden, gate, shape))
        gate += shape.gates
    if of_bytes and value is not None:
        args.append(relax.const(value.sum(axis=2, dtype=np.int32), "int32"))
    args += [operands[name] for name in spec.operands]
    func = RecurrentWriter(spec, steps, batch, directions, hidden, p, handed, of_bytes).func()
    return relax.call_tir(bb.add_func(func, "recurrent"), [*args, *symbols.named(handed)], list(call.ty.fields))


def _packed(bb: relax.BlockBuilder, weight: Any, hidden: int, gate: int, shape: GateTile) -> Any:
    """R[D, G*H, H] of `shape.gates` gates from `gate` on as [D, blocks, terms, gates * width], zeros beyond H; a
    constant of bytes as words of four terms, int32."""
    starts = np.minimum(np.arange(shape.blocks) * shape.width, hidden - shape.width)
    gates = (gate + np.arange(shape.gates)) * hidden
    rows = (starts[:, None, None] + gates[:, None] + np.arange(shape.width)).reshape(-1)
    value = constant(bb, weight)
    if value is not None:
        picked = value[:, rows].reshape(len(value), shape.blocks, -1, hidden).transpose(0, 1, 3, 2)
        picked = pack_quads(picked) if value.dtype == np.int8 else picked
        more = shape.terms(picked.shape[2]) - picked.shape[2]
        return relax.const(np.pad(picked, ((0, 0), (0, 0), (0, more), (0, 0))))
    more = shape.terms(hidden) - hidden
    directions = (static_shape(weight) or ())[0]
    picked = bb.emit(relax.op.take(weight, relax.const(rows.astype("int64")), 1))
    picked = bb.emit(relax.op.reshape(picked, (directions, shape.blocks, shape.gates * shape.width, hidden)))
    picked = bb.emit(relax.op.permute_dims(picked, [0, 1, 3, 2]))
    return bb.emit(relax.op.nn.pad(picked, [0, 0, 0, 0, 0, more, 0, 0])) if more else picked
