"""What the subcommands share: parsing of shapes and inputs, progress, tables, JSON."""

from __future__ import annotations

import difflib
import json
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape as rich_escape
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from tvmopt.analysis.text import align
from tvmopt.dims import Range
from tvmopt.errors import InputError, collect, reason
from tvmopt.files import open_plain
from tvmopt.texts import printable, printable_line, whole_number

if TYPE_CHECKING:
    import numpy as np


class Terminal(Console):
    """A console that shows what a terminal would obey - escape sequences in a node's name - instead of sending it."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class Group(TyperGroup):
    """A command of several words, `tvmopt surgeon extract`, which refuses an unknown one as `tvmopt` does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise no_command(args[0], self.commands, ctx.command_path)
        return super().resolve_command(ctx, args)


def no_command(name: str, known: Collection[str], where: str = "") -> InputError:
    """The error for a command that is not there, with the nearest one."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    what = f"there is no command {name!r}" + (f", did you mean {near[0]!r}?" if near else ".")
    return InputError(what, where=where, fix=f"one of {', '.join(known)}")


out = Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)

LEAST = 8
"""Characters that a column of text keeps, however narrow the terminal."""


def parse_threads(text: str | None) -> int | tuple[int, ...] | None:
    """A number of threads, or several.

    >>> parse_threads("2"), parse_threads("1+2+8")
    (2, (1, 2, 8))

    Raises:
        InputError: one is no positive number.
    """
    if text is None:
        return None
    numbers = [whole_number(word.strip()) for word in text.split("+")]
    found = tuple(number for number in numbers if number is not None)
    if len(found) < len(numbers):
        fix = "give a number, or several for one file: 1+2+8"
        raise InputError(f"--threads is {text!r}, and a number of threads is 1 or more.", where="--threads", fix=fix)
    return found if len(found) > 1 else found[0]


def words_of(texts: Sequence[str] | None) -> list[str]:
    """What an option lists, with commas, by being given again, or both.

    >>> words_of(["onnxruntime", "openvino,tvm"]), words_of(None)
    (['onnxruntime', 'openvino', 'tvm'], [])
    """
    return [word for text in texts or () for word in text.split(",") if word]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """``["x:1x3x224x224"]`` -> ``{"x": (1, 3, 224, 224)}``; the last colon separates, names may have others. A size
    may be a range, which stays a text.

    >>> parse_shapes(["Input:0:1x128", "s:", "seq:1..512@128", "ids:?x1..64"])
    {'Input:0': (1, 128), 's': (), 'seq': ('1..512@128',), 'ids': ('?', '1..64')}

    Raises:
        InputError: every malformed one.
    """
    shapes: dict[str, tuple[int | str, ...]] = {}
    problems = []
    for text in texts:
        name, colon, dims = text.rpartition(":")
        inner = dims.strip().removeprefix("[").removesuffix("]").replace(",", "x")
        sizes = tuple(map(_size, inner.split("x"))) if inner.strip() else ()
        if name in shapes:
            problems.append(_twice("shape", name, f"--shape {text}"))
        elif not colon or not name or None in sizes:
            problems.append(
                InputError(
                    f"{text!r} is not a shape.",
                    where="--shape",
                    fix="--shape NAME:1x3x224x224, positive numbers or ranges: --shape NAME:1..8x3x224x224",
                )
            )
        else:
            shapes[name] = tuple(size for size in sizes if size is not None)
    if problems:
        raise collect(problems)
    return shapes


def _twice(what: str, name: str, where: str) -> InputError:
    return InputError(f"the {what} of {name!r} is given twice.", where=where, fix="give it once")


def _size(text: str) -> int | str | None:
    """A number, or the text of a range; None for anything else."""
    try:
        found = Range.of(text)
    except ValueError:
        return None
    if found is not None and found.min == found.max:
        return whole_number(text.split("..")[-1].split("@")[0])
    return text


def parse_values(texts: Sequence[str]) -> dict[str, Any]:
    """``["sr=16000", "axes=[0, 1]"]`` -> numbers and lists of them by name.

    >>> parse_values(["sr=16000", "on=true", "axes=[0, 1]"])
    {'sr': 16000, 'on': True, 'axes': [0, 1]}

    Raises:
        InputError: every malformed one.
    """
    values, problems = {}, []
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = json.loads(number)
        except ValueError:
            value = None
        if name in values:
            problems.append(_twice("value", name, f"--value {text}"))
        elif not equals or not name or not _numbers(value):
            fix = "--value NAME=16000, or a list: --value NAME=[0,1]"
            problems.append(InputError(f"{text!r} is not a value.", where="--value", fix=fix))
        else:
            values[name] = value
    if problems:
        raise collect(problems)
    return values


def _numbers(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, list) and all(map(_numbers, value)))


def parse_inputs(texts: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """``["x=x.npy", "all.npz"]`` -> arrays by name. Pickles are refused.

    Raises:
        InputError: a file that cannot be read.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    for text in texts:
        name, equals, file = text.rpartition("=")
        try:
            with open_plain(file) as stream:
                loaded = np.load(stream, allow_pickle=False)
                if isinstance(loaded, np.ndarray) != bool(equals):
                    raise ValueError("several arrays, and one name" if equals else "one array, and no name for it")
                arrays.update({name: loaded} if equals else loaded)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            foreign = "pickled" in str(error) or "Object arrays" in str(error)  # NumPy says how to load it all the same
            raise InputError(
                f"cannot read the input: {'it is not an array of numbers' if foreign else reason(error)}",
                where=f"-i {text}",
                fix="-i NAME=FILE.npy, or -i FILE.npz with named arrays",
            ) from error
    return arrays


@contextmanager
def progress(quiet: bool = False, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows the stage of long work on stderr: a spinner on a terminal, and elsewhere nothing, or with
    `lines` a line for each stage."""
    console = Terminal(stderr=True)
    if quiet or not console.is_terminal:
        told = [""]

        def line(stage: str) -> None:
            if lines and not quiet and stage != told[0]:
                told[0] = stage
                print(printable_line(stage), file=sys.stderr, flush=True)

        yield line
        return
    start = time.perf_counter()

    def tell(stage: str) -> None:
        status.update(f"{escape(stage)} ... [dim]{time.perf_counter() - start:.0f} s[/]")
        status.start()

    with console.status("starting") as status:
        _spinning.append(status)
        try:
            yield tell
        finally:
            _spinning.remove(status)


_spinning: list[Status] = []


def without_spinner() -> None:
    """Take the spinner off the line that is about to be printed; the next stage brings it back."""
    for status in _spinning:
        status.stop()


def note(text: str) -> None:
    """Something to know, beside the result: on stderr."""
    print(f"note: {printable(text)}", file=sys.stderr)


def many_threads(threads: int | None, on: str | None = None) -> None:
    """Say so if there are more threads than cores, or than those of `on`: they wait for each other.

    Args:
        threads: that were asked for; None: what TVM_NUM_THREADS says, if anything.

    Raises:
        InputError: there cannot be so many, or there are no such cores.
    """
    from tvmopt.runtime.cores import parse
    from tvmopt.runtime.pool import check_threads
    from tvmopt.targets.detect import usable_cores

    if threads is not None:
        check_threads(threads, "--threads")
    source, text = "", os.environ.get("TVM_NUM_THREADS", "")
    if threads is None and text.isdecimal():  # another text is refused where the model is loaded
        source, threads = " of TVM_NUM_THREADS", int(text)
    cores = usable_cores() if on is None else parse(on).count
    if threads is not None and threads > cores:
        shared = f"{threads} threads{source} share {cores} core{'s' * (cores != 1)}"
        note(f"{shared}: they wait for each other, and times say little.")


def written(*paths: str | None) -> None:
    """Say which files there are now; nothing for None and ""."""
    names = ", ".join(filter(None, paths))
    if names:
        out.print(f"written: {names}", markup=False)


def print_json(value: Any) -> None:
    """A result as JSON on stdout: the dataclass, field by field. JSON has no NaN and no Inf: null in their place."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    try:
        text = json.dumps(plain, indent=2, default=_plain, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(plain, default=_plain), parse_constant=lambda _: None)
        text = json.dumps(finite, indent=2)
    print(text, flush=True)  # who reads it from a pipe may wait for it


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.item() if hasattr(value, "item") else str(value)


def table(
    columns: Iterable[str],
    rows: Iterable[Sequence[Any]],
    *,
    left: int = 1,
    title: str = "",
    prose: Collection[int] = (),
) -> None:
    """Print a plain table: the first `left` columns flush left, the others right. A row is a line.

    On a terminal the longest of the left columns are shortened until a line fits; in a file or a pipe nothing is.
    `prose`: columns of sentences, which lose their end; names lose their middle.
    """
    columns, title = [printable_line(column) for column in columns], printable(title)
    rows = [[cell if isinstance(cell, Text) else printable_line(str(cell)) for cell in row] for row in rows]
    if not out.is_terminal:
        cells = [[c.plain if isinstance(c, Text) else str(c) for c in row] for row in rows]
        for line in [title] * bool(title) + align([columns, *cells], set(range(left))):
            print(line.rstrip(), file=out.file)
        return
    grid = Table(box=None, pad_edge=False, title=rich_escape(title) or None, title_justify="left", title_style="bold")
    texts = [[c.plain if isinstance(c, Text) else str(c) for c in row] for row in [columns, *rows]]
    for index, (column, width) in enumerate(zip(columns, fitting(texts, left, out.width - 1), strict=True)):
        grid.add_column(rich_escape(column), justify="left" if index < left else "right", no_wrap=True, width=width)
    widths = [column.width or 0 for column in grid.columns]
    for row in rows:
        fitted = [c if isinstance(c, Text) else _fitted(str(c), widths[i], i in prose) for i, c in enumerate(row)]
        grid.add_row(*fitted)
    out.print(grid)


def fitting(grid: Sequence[Sequence[str]], left: int, most: int) -> list[int]:
    """Widths of the columns, two blanks between, for lines of at most `most`; the longest of the left ones give way.

    >>> fitting([("kernel", "node", "n"), ("a" * 50, "b" * 30, "7")], 2, 45)
    [20, 20, 1]
    """
    widths = [max(cell_len(row[i]) for row in grid) for i in range(len(grid[0]))]
    while sum(widths) + 2 * (len(widths) - 1) > most and left:
        widest = max(range(min(left, len(widths))), key=widths.__getitem__)
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    return widths


def _fitted(text: str, width: int, prose: bool) -> str:
    if prose and cell_len(text) > width:
        return escape(text[: width - 1] + "…")
    return escape(shortened(text, width))


def shortened(text: str, width: int) -> str:
    """A name with its middle left out: kernels and nodes are told apart by how they end.

    >>> shortened("/layer1/layer1.0/conv1/Conv +3", 16)
    '/layer…1/Conv +3'
    """
    if cell_len(text) <= width:
        return text
    tail = (width - 1) * 3 // 5
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def escape(text: Any, *, lines: bool = False) -> str:
    """A text from outside, such as a name, for :data:`out`: as it is, no markup, in one line unless `lines`.

    >>> escape("[red]a\\nb[/]")
    '\\\\[red]a\\\\nb\\\\[/]'
    """
    return rich_escape(str(text) if lines else printable_line(str(text)))


def human(number: float, unit: str = "") -> str:
    """A number with an SI prefix.

    >>> human(4_100_000_000, "FLOP")
    '4.10 GFLOP'
    """
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return (
                f"{number / size:.3g} {prefix}{unit}" if number / size >= 100 else f"{number / size:.2f} {prefix}{unit}"
            )
    return f"{number:.0f} {unit}".rstrip()
