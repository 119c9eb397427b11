"""Kernels over pictures whose height or width is known at run time only: static tiles of a row's pixels, scheduled by
their family and moved over the picture - so that one kernel serves every size, and nothing is padded but the border.

    y[n, y, x, :] = f(b[n, y*s + ky, x*s + kx, :])     for task in parallel(pictures x pieces of their rows):
                                                         b = the piece's rows of the picture, with their border
    b: the picture with its border                       for part of a tile's tasks (panels of weights):
                                                           for row of the piece:
                                                             tiles of 8, 6, 4 pixels, and single ones

Each body is the family's schedule of the function for one row of so many pixels. That is right only where every access
follows the pixel, `pixel * stride + offset`, or does not depend on it, which :func:`pictures_of` proves. What is left
of a row behind its whole tiles is a tile moved back, which computes some pixels twice; only where a row is shorter than
that tile are there several small ones. A kernel that computes squares (Winograd) has tiles of several rows, the last of
which are moved back, too::

    23 pixels   8 8 6 1          21   8 8 6 (moved back by 1)          7   6 1          3   1 1 1 (4 are too many)

The bordered rows are memory of the task, which stays in L2, as in a kernel of a known size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal, structural_map, structural_mutate, structural_walk

from tvmopt.scheduling.blocks import blocks_of
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.open_borders import COUNT, FLAT, REACH, SQUARE, TOP
from tvmopt.scheduling.open_rows import at_sizes, variables_beside

PICTURE, ROW, PIXEL = 0, 1, 2
"""The first three axes of a result [n, y, x, c]."""


@dataclass(frozen=True)
class Follows:
    """How an index follows an axis of the result: `pixel * stride + offset`, offset from 0 to `reach`."""

    axis: int
    stride: int = 1
    reach: int = 0

    def room(self, pixels: int) -> int:
        """The extent that so many pixels need."""
        return (pixels - 1) * self.stride + self.reach + 1


@dataclass(frozen=True)
class Pictures:
    """A kernel over pictures.

    Attributes:
        func: the function.
        core: it without the block that makes the border, whose buffer is its last parameter.
        size: of the result: pictures, rows, pixels of a row.
        places: buffer of `core` -> axis -> what its index follows.
        pixels: variable of a block -> the axis of the result that it counts.
        border: the block that makes the border, if there is one.
        square: pixels of the side of the squares that the kernel computes; 1: single pixels.
        flat: whether these have one row.
    """

    func: tirx.PrimFunc
    core: tirx.PrimFunc
    size: tuple[Any, Any, Any]
    places: Mapping[Any, Mapping[int, Follows]]
    pixels: Mapping[Any, int]
    border: Any | None
    square: int = 1
    flat: bool = False

    @property
    def smallest(self) -> tirx.PrimFunc:
        """The static function for one square, or one pixel."""
        return self.at(self.square, 1 if self.flat else self.square)

    def at(self, pixels: int, rows: int = 1) -> tirx.PrimFunc:
        """The static function for rows of so many pixels of one picture; its last parameter is the border's buffer,
        if there is one."""
        return _resized(self, (1, rows, pixels)) if self.square == 1 else _in_squares(self, (1, rows, pixels))


# -- the proof ---------------------------------------------------------------------------------------------------------


def pictures_of(func: tirx.PrimFunc) -> Pictures | Declined:
    """The kernel as one over pictures [n, y, x, c], or why it is none."""
    core, border = _without_border(func)
    written = [r.source for b in blocks_of(core) for r in b.writes]
    results = [p for p in core.params if any(p.same_as(w) for w in written)]
    shapes = [list(p.ty.shape) for p in results]
    if not results or any(len(s) != 4 for s in shapes) or not isinstance(shapes[0][3], tirx.IntImm):
        return Declined("a result that is no picture with its channels last")
    if any(not structural_equal(s[:3], shapes[0][:3]) for s in shapes):
        return Declined("results of other sizes")
    if all(isinstance(d, tirx.IntImm) for d in shapes[0][1:3]):
        return Declined("pictures of a known size: each is a row")
    proof = _Proof(core, tuple(shapes[0][:3]), results)
    square = 1
    for realize in reversed(list(_realizes(core))):
        square = max(square, int(realize.block.annotations.get(SQUARE, 1)))
        if (reason := proof.block(realize)) is not None:
            return Declined(reason)
    flat = False
    if square > 1:
        marks = next(b.annotations for b in blocks_of(core) if REACH in b.annotations)
        flat = FLAT in marks
        if border is None or not all(isinstance(d, tirx.Var) for d in proof.size[2 if flat else 1 :]):
            return Declined("squares of a picture without a border, or of a known height or width")
        reach = int(marks[REACH])
        down = Follows(1, 1, 0 if flat else reach)
        proof.places[core.params[-1]] = {0: Follows(0), 1: down, 2: Follows(2, 1, reach)}
    return Pictures(func, core, proof.size, proof.places, proof.pixels, border, square, flat)


def _without_border(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Any | None]:
    """The function without the block that makes a border, and that block."""
    found = [b for b in blocks_of(func) if TOP in b.annotations]
    if len(found) != 1:
        return func, None
    (border,), realize = found, func.body
    root, buffer = realize.block, found[0].writes[0].source
    steps = [s for s in root.body.seq if not _contains(s, border)]
    body = steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)
    left = [b for b in root.alloc_buffers if not b.same_as(buffer)]
    inner = SBlock([], [], [], "root", body, None, left, [], root.annotations)
    whole = SBlockRealize([], tirx.const(True, "bool"), inner)
    return tirx.PrimFunc([*func.params, buffer], whole, func.ret_type, func.attrs, func.span), border


def _contains(statement: Any, block: Any) -> bool:
    return any(b.block.same_as(block) for b in _under(statement))


def _realizes(func: tirx.PrimFunc) -> Iterator[Any]:
    """The blocks with what binds their variables, in program order."""
    return iter(_under(func.body.block.body))


def _under(statement: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(statement, ((SBlockRealize, found.append),))
    return found


class _Proof:
    """Follows the pixels from the results to the operands, block by block, backwards."""

    def __init__(self, core: tirx.PrimFunc, size: tuple[Any, Any, Any], results: Sequence[Any]) -> None:
        self.size = size
        self.params = list(core.params)
        exact = {k: Follows(k) for k in (PICTURE, ROW, PIXEL)}
        self.places: dict[Any, dict[int, Follows]] = {p: dict(exact) for p in results}
        self.pixels: dict[Any, int] = {}
        self.sizes = {v for p in self.params for d in _shape(p) for v in undefined_vars(d, [])}
        self.sizes |= {p for p in self.params if not hasattr(p.ty, "shape")}

    def block(self, realize: Any) -> str | None:
        """Why a block does not follow the pixels; None where it does."""
        block, mine = realize.block, dict[Any, int]()
        squares = SQUARE in block.annotations
        if squares and not any(region.source in self.places for region in block.writes):
            return None  # inside of a square
        for region in block.writes:
            for axis, place in self.places.get(region.source, {}).items():
                var = region.region[axis].min
                if not isinstance(var, tirx.Var) or mine.setdefault(var, place.axis) != place.axis:
                    return "a result that is not written pixel by pixel"
        if not isinstance(realize.predicate, tirx.IntImm) or not mine:
            return "a block of other results"
        for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if iv.var not in mine:
                if not isinstance(iv.dom.extent, tirx.IntImm):
                    return "a sum over an open size, or all of it read for each pixel"
            elif not structural_equal(iv.dom.extent, self.size[mine[iv.var]]) or not isinstance(value, tirx.Var):
                return "a part of the pixels"
        self.pixels |= mine
        ranges = {iv.var: iv.dom for iv in block.iter_vars if iv.var not in mine}
        wrong: list[str] = []

        def fixed(buffer: Any, indices: Any) -> list[Any]:
            if squares and buffer not in self.places:
                return [tirx.const(0, str(i.ty.dtype)) for i in indices]
            here = {k: self._follows(i, mine, ranges) for k, i in enumerate(indices)}
            if any(isinstance(f, str) for f in here.values()):
                wrong.append("an operand that is read at places that do not follow the pixel")
            found = {k: f for k, f in here.items() if isinstance(f, Follows)}
            if not self._agree(buffer, found):
                wrong.append("an operand that is read at other pixels too")
            return [tirx.const(0, str(i.ty.dtype)) if k in found else i for k, i in enumerate(indices)]

        left = variables_beside(block, fixed)
        if any(v in mine for v in left):
            wrong.append("the number of a pixel in its arithmetic")
        if any(v in self.sizes for v in left):
            wrong.append("an open size in its arithmetic")
        return wrong[0] if wrong else None

    def _follows(self, index: Any, mine: Mapping[Any, int], ranges: Mapping[Any, Any]) -> Follows | str | None:
        used = [v for v in undefined_vars(index, []) if v in mine]
        if not used:
            return None
        if isinstance(index, tirx.Var):
            return Follows(mine[index])
        if len(used) > 1 or len(terms := detect_linear_equation(index, used)) != 2:
            return "no multiple of one pixel"
        stride, offset = terms
        analyzer = Analyzer()
        for var, dom in ranges.items():
            analyzer.bind(var, dom)
        bound = analyzer.const_int_bound(offset)
        if not isinstance(stride, tirx.IntImm) or int(stride) < 1 or bound.min_value < 0 or bound.max_value > 1 << 30:
            return "no multiple of one pixel"
        return Follows(mine[used[0]], int(stride), int(bound.max_value))

    def _agree(self, buffer: Any, found: Mapping[int, Follows]) -> bool:
        """Whether all accesses of a buffer follow the pixels alike; only parameters are read beside them."""
        known = self.places.setdefault(buffer, dict(found))
        if known.keys() != found.keys():
            return False
        for axis, new in found.items():
            old = known[axis]
            if (old.axis, old.stride) != (new.axis, new.stride):
                return False
            known[axis] = Follows(old.axis, old.stride, max(old.reach, new.reach))
        inside = any(buffer.same_as(p) for p in self.params)
        return inside or all(f == Follows(f.axis) for f in known.values())


def _shape(param: Any) -> list[Any]:
    return list(getattr(param.ty, "shape", None) or [])


def _resized(pictures: Pictures, size: tuple[int, int, int]) -> tirx.PrimFunc:
    """The core function for a result of another size, each buffer only as large as it needs."""
    core, places = pictures.core, pictures.places
    buffers: dict[Any, Any] = {}

    def smaller(buffer: Any) -> Any:
        """The buffer with what its indices follow as long as they need; what is open and is not read: 1."""
        if not _shape(buffer):
            return buffer
        if buffer not in buffers:
            follows = places.get(buffer, {})
            shape = [
                follows[k].room(size[follows[k].axis]) if k in follows else d for k, d in enumerate(_shape(buffer))
            ]
            shape = [1 if not isinstance(d, int | tirx.IntImm) else int(d) for d in shape]
            buffers[buffer] = tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), layout=None)
        return buffers[buffer]

    extents: dict[Any, int] = {}
    for realize in _realizes(core):
        for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if iv.var in pictures.pixels:
                extents[value] = extents[iv.var] = size[pictures.pixels[iv.var]]
    body = _with_extents(core.body, extents, smaller)
    params = [smaller(p) for p in core.params if hasattr(p.ty, "shape")]  # a scalar tensor has an empty one
    body = structural_map(body, (tirx.Var, lambda v: buffers.get(v, v)))
    return tirx.PrimFunc(params, body, core.ret_type, core.attrs, core.span)


def _with_extents(
    body: Any, extents: Mapping[Any, int], allocated: Callable[[Any], Any] = lambda buffer: buffer
) -> Any:
    """Loops and blocks with other extents of some of their variables.

    Args:
        allocated: what a block has in place of a buffer that it allocates.
    """

    def extent(var: Any) -> Any:
        return tirx.const(extents[var], str(var.ty.dtype))

    def loop(node: Any, mutator: Any) -> Any:
        node, var = mutator.default_mutate(node), node.loop_var
        if var not in extents:
            return node
        return tirx.For(var, node.min, extent(var), node.kind, node.body, None, node.annotations)

    def block(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        iters = [
            tirx.IterVar(Range(iv.dom.min, extent(iv.var)), iv.var, iv.iter_type) if iv.var in extents else iv
            for iv in node.iter_vars
        ]
        return SBlock(
            iters, node.reads, node.writes, node.name_hint, node.body, node.init,
            [allocated(b) for b in node.alloc_buffers], node.match_buffers, node.annotations,
        )  # fmt: skip

    return structural_mutate(body, ((tirx.For, loop), (SBlock, block)))


def _of_one(pictures: Pictures) -> tirx.PrimFunc:
    """The core function of a kernel that computes squares, for one picture where their number is known: each task has
    its own. Memory between the blocks keeps its shape, of which TVM allocates what is used."""
    core, ones = pictures.core, dict[Any, int]()
    for realize in _realizes(core):
        place = realize.block.annotations.get(COUNT)
        for index, iv in enumerate(realize.block.iter_vars):
            if pictures.pixels.get(iv.var) == PICTURE or (place is not None and index == int(place)):
                ones[iv.var] = ones[realize.iter_values[index]] = 1
    return tirx.PrimFunc(core.params, _with_extents(core.body, ones), core.ret_type, core.attrs, core.span)


def _in_squares(pictures: Pictures, size: tuple[int, int, int]) -> tirx.PrimFunc:
    """The core function for a result of another size, in whole squares; the picture behind the border is not read."""
    params = pictures.core.params
    core = _of_one(pictures) if isinstance(pictures.size[PICTURE], int | tirx.IntImm) else pictures.core
    known = {v: 1 for p in params for d in _shape(p) for v in undefined_vars(d, [])}
    known |= {v: n for v, n in zip(pictures.size, size, strict=True) if isinstance(v, tirx.Var)}

    def folded(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        numbers = isinstance(node.a, tirx.IntImm) and isinstance(node.b, tirx.IntImm)
        return Analyzer().simplify(node) if numbers else node

    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
    return structural_mutate(at_sizes(core, known), tuple((kind, folded) for kind in kinds))
