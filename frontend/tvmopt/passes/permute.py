"""Arithmetic of permutations and of reshapes seen through them - for the passes that move transposes.

A permutation is a tuple `p` as in ``R.permute_dims(x, axes=p)``: axis i of the result is axis ``p[i]`` of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmopt.dims import Size

Perm = tuple[int, ...]


def identity(perm: Sequence[int]) -> bool:
    """Whether nothing moves."""
    return list(perm) == list(range(len(perm)))


def compose(first: Sequence[int], then: Sequence[int]) -> Perm:
    """One permutation that does `first` and `then` after it.

    >>> compose((0, 2, 3, 1), (0, 3, 1, 2))
    (0, 1, 2, 3)
    """
    return tuple(first[i] for i in then)


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes `perm`.

    >>> inverse((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


def permuted(perm: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The values in the order of the permutation: element i is ``values[perm[i]]``."""
    return [values[p] for p in perm]


def moves_data(perm: Sequence[int], dims: Sequence[Size]) -> bool:
    """Whether permuting a tensor of these sizes reorders its elements: axes of size 1 move for free.

    >>> moves_data((0, 3, 1, 2), (1, 1, 1, 64)), moves_data((0, 2, 1), (4, 8, 2))
    (False, True)
    """
    kept = [p for p in perm if dims[p] != 1]
    return kept != sorted(kept)


def groups(source: Sequence[Size], target: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """The finest split of a reshape into independent reshapes of consecutive axes; sizes of 1 are left out.

    >>> groups((2, 12, 5), (2, 3, 4, 5))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    a = [i for i, n in enumerate(source) if n != 1]
    b = [i for i, n in enumerate(target) if n != 1]
    out: list[tuple[list[int], list[int]]] = []
    while a and b:
        left, right = [a.pop(0)], [b.pop(0)]
        m, n = source[left[0]], target[right[0]]
        while m != n:
            if m < n:
                left.append(a.pop(0))
                m *= source[left[-1]]
            else:
                right.append(b.pop(0))
                n *= target[right[-1]]
        out.append((left, right))
    return out


def reshape_of_permuted(
    dims: Sequence[Size], perm: Sequence[int], target: Sequence[Size]
) -> tuple[Perm | None, list[Size], Perm] | None:
    """Swap ``reshape(permute(z, perm), target)`` into ``permute(reshape(permute(z, q), middle), r)``.

    Args:
        dims: sizes of z.
        perm: the permutation before the reshape.
        target: sizes of the result.

    Returns:
        ``(q, middle, r)``; q is None where no data moves before the reshape. None for an empty tensor, or
        where the permutation cannot leave the reshape at all (r would be the identity: nothing is gained).

    >>> reshape_of_permuted((1, 14, 14, 768), (0, 3, 1, 2), (1, 768, 196))  # ViT: pixels become tokens
    (None, [1, 196, 768], (0, 2, 1))
    >>> reshape_of_permuted((1, 7, 7, 6, 4), (0, 4, 3, 1, 2), (1, 24, 7, 7))  # a channel shuffle in NHWC
    ((0, 1, 2, 4, 3), [1, 7, 7, 24], (0, 3, 1, 2))
    """
    if math.prod(dims) == 0:
        return None
    split = groups(permuted(perm, dims), target)
    sources = [[perm[i] for i in left] for left, _ in split]  # axes of z, a group
    order = sorted(range(len(split)), key=lambda g: min(sources[g]))
    wanted = [z for g in order for z in sources[g]]
    q: Perm | None = None
    if wanted != sorted(wanted):
        q = tuple(_with_units(wanted, dims))
    middle_axes = [axis for g in order for axis in split[g][1]]
    full = _with_units(middle_axes, target)
    r = inverse(full)
    if not moves_data(r, [target[i] for i in full]):
        return None
    return q, [target[i] for i in full], r


def merged_axes(dims: Sequence[Size], merged: Sequence[Size]) -> list[list[int]] | None:
    """The neighbouring axes that each axis of a reshape is made of; None where it does more than put axes together.

    >>> merged_axes((2, 12, 5, 64), (24, 5, 64)), merged_axes((2, 12), (3, 8))
    ([[0, 1], [2], [3]], None)
    """
    made: list[list[int]] = []
    rest = list(range(len(dims)))
    for size in merged:
        group, product = list[int](), 1
        while product != size or not group:
            if not rest:
                return None
            group.append(rest.pop(0))
            product *= dims[group[-1]]
        made.append(group)
    return None if any(dims[i] != 1 for i in rest) else [*made[:-1], [*made[-1], *rest]] if made else None


def split_again(
    dims: Sequence[Size], merged: Sequence[Size], perm: Sequence[int], target: Sequence[Size]
) -> Perm | None:
    """The one permutation that ``reshape(permute(reshape(x, merged), perm), target)`` is, where the second reshape
    takes apart what the first has put together; None where it does not.

    >>> split_again((2, 12, 5, 64), (24, 5, 64), (0, 2, 1), (2, 12, 64, 5))  # keys, as torch exports attention
    (0, 1, 3, 2)
    """
    made = merged_axes(dims, merged)
    axes = [] if made is None else [axis for p in perm for axis in made[p]]
    return tuple(axes) if axes and permuted(axes, dims) == list(target) else None


def _with_units(axes: list[int], dims: Sequence[Size]) -> list[int]:
    """`axes` with the missing ones (of size 1) put where they move least: first, or after their neighbour."""
    out = list(axes)
    for i in range(len(dims)):
        if i not in out:
            out.insert(out.index(i - 1) + 1 if i else 0, i)
    return out
