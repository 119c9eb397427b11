"""What a schedule family is: one kind of kernel, from the operators that become it to its machine code - for whoever
writes a folder in `schedules/`, or a package of their own.

A family is a module or a package with the names of :class:`Family` in it. Two constants and three functions schedule
kernels::

    NAME, VERSION = "gemm", 1

    def recognise(func, machine) -> Problem | None   # pure analysis: "this is mine", in microseconds
    def knobs(problem, machine) -> Space             # the choices; the first point is the analytic answer
    def apply(sch, problem, knobs) -> None           # schedule primitives only

and each of the others is left out where its default is meant. One more makes operators kernels of the family::

    LOWERS = {"relax.matmul": matmul}                # matmul(bb, call, machine) -> Expr | Declined | None

Knobs come from a tuning record for this workload *and this target*, else from the analytic point; while tuning,
MetaSchedule draws them. Families are asked in the order of one list (`schedules/cpu/__init__.py`, `schedules/cuda/`).
Recognisers are disjoint: a function that two families recognise is a bug, and a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tvmopt.targets import Machine

Knobs = Mapping[str, int]


@dataclass(frozen=True)
class Space:
    """The tunable choices of one kernel.

    Attributes:
        choices: knob name -> the values it may take; the first value of each is the analytic answer.

    >>> Space({"mr": (14, 12), "nr": (32,)}).analytic
    {'mr': 14, 'nr': 32}
    >>> Space({"mr": (14, 12), "nr": (32,)}).size
    2
    """

    choices: dict[str, tuple[int, ...]]

    @property
    def analytic(self) -> dict[str, int]:
        return {name: values[0] for name, values in self.choices.items()}

    @property
    def size(self) -> int:
        size = 1
        for values in self.choices.values():
            size *= len(values)
        return size

    def __contains__(self, knobs: object) -> bool:
        return (
            isinstance(knobs, Mapping)
            and dict(knobs).keys() == self.choices.keys()
            and all(knobs[name] in values for name, values in self.choices.items())
        )


@dataclass(frozen=True)
class RowTiles:
    """How a family's kernels are cut where the number of rows is known at run time only (scheduling/open_rows.py).

    Attributes:
        height: rows of a tile.
        lower: rows of the tiles for what is left behind those, the highest first; the last is 1.
        fetching: whether tiles, where there are two or more, prefetch the next weights between them: they get a body of
            their own.
        pieces: into how many pieces the rows are cut, where there are enough, for threads that a tile has no tasks for.
        enough: tiles of a piece from which they are.
        cached: rows that fit into half of the cache: a quarter more are cut into pieces of as many; 0: they are not.
        threads_from: rows from which the work is worth threads; 0: what the family's schedules of some numbers say.
        together: whether rows must lie one behind the other in memory, as instructions read them that take an address
            and a distance: there is no axis of a known size in front of the open one.
        knobs: from the problem of a tile to its knobs; by default the analytic point.
        fetching_knobs: to those of a tile that fetches.
    """

    height: int = 1
    lower: tuple[int, ...] = ()
    fetching: bool = False
    pieces: int = 1
    enough: int = 2
    cached: int = 0
    threads_from: int = 0
    together: bool = False
    knobs: Callable[[Any], Knobs] | None = None
    fetching_knobs: Callable[[Any], Knobs] | None = None


@dataclass(frozen=True)
class PixelTiles:
    """How a family's kernels are cut where the height or width of a picture is open (scheduling/open_pictures.py).

    Attributes:
        widths: pixels of a row that a tile computes, the widest first; the last is 1.
        knobs: from the problem of a tile to its knobs.
        bytes: of bordered rows that a task may copy, or of rows that it reads and writes where they lie.
        threads_from: pixels of the result from which the work is worth threads; up to 1: there is no form for one.
        parts: in how many parts threads share the tasks of a tile (panels of weights), each for all rows of a piece.
        parts_up_to: rows of a picture's result up to which they do, and share the rows of higher ones; 0: always.
        parts_uneven: rows up to which they do where these do not divide evenly by the cores.
        parts_below: pixels of a picture's result below which they do.
        height: rows of a tile; of widths whose last is more than 1, rows and columns of the result are never fewer.
        by_channels: each task of a tile reads as many channels of the picture, in their order: from where they lie.
    """

    widths: tuple[int, ...]
    knobs: Callable[[Any], Knobs]
    bytes: int
    threads_from: int
    parts: int = 1
    parts_up_to: int = 0
    parts_uneven: int = 0
    parts_below: int = 0
    height: int = 1
    by_channels: bool = False


def row_by_row(problem: Any, machine: Machine) -> RowTiles:
    """The `open_rows` of families whose kernels gain nothing from several rows, or samples, at a time."""
    return RowTiles()


@dataclass(frozen=True)
class Declined:
    """Why a family does not lower a call that it would otherwise lower: the condition that does not hold, in a few
    words (``"float16 operands"``). `tvmopt explain` shows it beside the family's name and the ONNX node."""

    reason: str


Lowering = Callable[[Any, Any, Machine], Any]
"""`fn(bb, call, machine)`: an expression that replaces the call of a Relax operator, :class:`Declined`, or None for a
call that is not of the family's kind at all. It chooses a form of the loops and packs constant weights for it; it never
schedules."""


def _recognises_nothing(func: Any, machine: Machine) -> Any | None:
    return None


def _nothing_to_choose(problem: Any, machine: Machine) -> Space:
    return Space({})


def _applies_nothing(sch: Any, problem: Any, knobs: Knobs) -> None:
    return None


@dataclass(frozen=True, eq=False)
class Family:
    """A family's fields, by the names that its module gives them.

    Attributes:
        NAME: what reports, tuning records and the annotation `tvmopt.kernel` of its blocks call it.
        VERSION: part of a record's key; raise it when `apply` changes meaning.
        recognise: `(func, machine)`: the problem that `apply` needs, or None: not mine. Pure; it never raises on a
            foreign function. A family that only lowers operators leaves the three functions out.
        knobs: `(problem, machine)`: the tunable choices, the analytic point first.
        apply: `(sch, problem, knobs)`: schedule `sch` in place. The number of loops that it makes must not depend on a
            knob: MetaSchedule replays traces.
        LOWERS: Relax operator -> the function that makes it a kernel of this family.
        KEEPS: Relax operator -> `(call)`: whether a call stays as it is in a first round of lowering, for a family that
            finds it before an operator of its own and takes it over. What none has taken over is lowered in a second.
        UNROLLED: operator of ours that a graph pass writes out where no kernel takes it -> `(call, machine)`, which
            says why this family does not take a call, None if it does.
        STAYS: Relax operator -> `(call, machine, exact)`: whether a call in channels-first, beside which nothing is in
            channels-last, is faster as it lies, by a kernel of this family.
        NEEDS: features of the instruction set without which the family is not asked. What AMX needs stands in an
            artifact only if one of its kernels uses it.
        ROUNDS_DIFFERENTLY: it rounds in other places than the operator's definition: `--exact` leaves it out.
        FALLBACK: it takes what no other family recognises, and is asked last.
        open_rows: `(problem, machine)`, the problem that of one row: how its kernels are cut into tiles where the
            number of rows, or of samples, is open; left out: they are not.
        open_pixels: `(problem, machine)`, the problem that of one pixel: how its kernels are cut into tiles of pixels
            where the height or width of pictures is open; left out: they are not.
        open_sizes: `(func, machine)`: a function with open sizes, scheduled by its own loops; None: not mine.
        normalise: `(func)`: its kernels in the form that it recognises and that tuning records are of; any other
            function as it is.
        INDEX_BITS: of indices in its kernels; 64 where their instructions take strides of 64 bits.
        finish: `(func)`: what it rewrites behind its schedule; any other function as it is.
        READS_PARTS, WRITES_PARTS: its scheduled kernels may read an argument from a part of a larger tensor, and write
            their result into one.
        RESCHEDULED_FOR_PARTS: where loops over several rows do not stay in a part, its kernels are scheduled again.
        REREADS: its kernels read elements more than once: an operator before them is not computed in them.
        MOVES: its kernels move elements to other places and compute nothing.
        keeps_fp32: `(operator, call, machine, precision)`: why a call stays in fp32 with "bf16" or "fp16", else None.
        float_cycles: `(product, machine)`: cycles of one core in which it computes a product of quantised numbers in
            fp32, :class:`tvmopt.scheduling.byte_cost.Product`; None: not mine, or not faster than the direct form.
        AT_ROOF: what `tvmopt profile` advises for a kernel at the arithmetic roof; empty: the usual.
        origin: the module that it was read from.
    """

    NAME: str
    VERSION: int
    recognise: Callable[[Any, Machine], Any | None] = _recognises_nothing
    knobs: Callable[[Any, Machine], Space] = _nothing_to_choose
    apply: Callable[[Any, Any, Knobs], None] = _applies_nothing
    LOWERS: Mapping[str, Lowering] = field(default_factory=dict)
    KEEPS: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    UNROLLED: Mapping[str, Callable[[Any, Machine], str | None]] = field(default_factory=dict)
    STAYS: Mapping[str, Callable[[Any, Machine, bool], bool]] = field(default_factory=dict)
    NEEDS: tuple[str, ...] = ()
    ROUNDS_DIFFERENTLY: bool = False
    FALLBACK: bool = False
    open_rows: Callable[[Any, Machine], RowTiles] | None = None
    open_pixels: Callable[[Any, Machine], PixelTiles] | None = None
    open_sizes: Callable[[Any, Machine], Any] | None = None
    normalise: Callable[[Any], Any] | None = None
    INDEX_BITS: int = 32
    finish: Callable[[Any], Any] | None = None
    READS_PARTS: bool = True
    WRITES_PARTS: bool = True
    RESCHEDULED_FOR_PARTS: bool = False
    REREADS: bool = False
    MOVES: bool = False
    keeps_fp32: Callable[[str, Any, Machine, str], str | None] | None = None
    float_cycles: Callable[[Any, Machine], float | None] | None = None
    AT_ROOF: str = ""
    origin: str = ""

    @classmethod
    def of(cls, module: Any) -> Family | None:
        """The family that a module describes; None where it has no NAME and VERSION, or neither schedules nor lowers.

        >>> from types import SimpleNamespace
        >>> Family.of(SimpleNamespace(NAME="mine", VERSION=1, LOWERS={"relax.erf": None})).NAME
        'mine'
        >>> Family.of(SimpleNamespace(NAME="mine")) is None
        True
        """
        given = {f.name: getattr(module, f.name) for f in fields(cls) if hasattr(module, f.name)}
        schedules = given.keys() >= {"recognise", "knobs", "apply"}
        if not given.keys() >= {"NAME", "VERSION"} or not (schedules or "LOWERS" in given):
            return None
        return cls(**{**given, "origin": getattr(module, "__name__", "")})

    def runs_on(self, machine: Machine) -> bool:
        """Whether the machine has what the family needs."""
        return all(machine.has(feature) for feature in self.NEEDS)
