"""Tables as aligned lines of plain text, never folded: wide results are read in wide terminals or piped."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align(grid: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Lines of a table, two blanks between columns; the columns in `left` are flush left, the others right.

    >>> align([("a", "n"), ("long", "10")])
    ['a      n', 'long  10']
    """
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    return [
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in grid
    ]
