"""Every kernel of a compiled model in a real run: what it wrote, and which tensor of the model that is.

Marking inner tensors as outputs would change what is fused. Here the module runs as it is; TVM's instrument hook copies
what each kernel wrote, in whatever layout: axes permuted (NHWC), reshaped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, largest
from tvmopt.analysis.writers import Writers, changed, place_of, tensors_in, whole_writers
from tvmopt.runtime.refused import refusals
from tvmopt.runtime.tensors import TensorInfo, from_ffi

SAMPLE = 1 << 12
"""Elements compared to find out how a tensor is laid out."""
ELSEWHERE = 2.0
"""How many times as well an order of axes must fit as those that the shape of a buffer says: where rounding leaves no
digit of what tells elements apart, another order may fit a little better by chance."""


@dataclass(frozen=True)
class Seen:
    """One call of a kernel: its symbol, the bindings it computes, the weights it read, what it wrote.

    Attributes:
        number: of the call in its run.
        reads: numbers of the calls whose results it read, besides the model's inputs and weights; None where that is
            not known.
    """

    symbol: str
    nodes: tuple[str, ...]
    weights: tuple[int, ...]
    array: Any
    number: int = -1
    reads: tuple[int, ...] | None = None


def observe(model: Any, feeds: Mapping[str, Array], room: int = 1 << 31) -> tuple[list[Array], list[Seen]]:
    """Run a loaded model once: its outputs, and what every kernel wrote (its last argument is its output).

    Args:
        room: bytes of results that are kept; what comes later is left out.
    """
    sites = {k["name"]: k["nodes"] for k in model.manifest.report["kernels"]}
    calls: dict[str, int] = {}
    seen: list[Seen] = []
    left = [room]
    arguments = model.arguments(feeds)
    count = len(model.manifest.weights)
    inputs, constants = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
    weights = {int(w.data_ptr()): i for i, w in enumerate(constants)}
    writers = writers_of(model.manifest, inputs, constants)
    certain = whole_writers(model.manifest.report.get("flow", {}))

    def instrument(function: Any, symbol: str, before: bool, result: Any, *values: Any) -> int:
        if before:
            return 0
        if symbol not in sites:
            writers.forget(changed(symbol, values, result))
            return 0
        number = calls[symbol] = calls.get(symbol, 0) + 1
        nodes = sites[symbol][min(number, len(sites[symbol])) - 1] if sites[symbol] else ()
        tensors = [v for v in values if hasattr(v, "data_ptr")]
        read = tuple(weights[p] for p in (int(t.data_ptr()) for t in tensors[:-1]) if p in weights)
        array = written(tensors[-1]) if tensors else None
        if array is None or left[0] < array.nbytes:
            writers.forget(changed(symbol, values, result))
            return 0
        left[0] -= array.nbytes
        *places, end = map(place_of, tensors)
        reads = writers.read_by(places) if symbol in certain else None
        if symbol not in certain:
            writers.forget(places)
        writers.wrote(end, len(seen))
        seen.append(Seen(symbol, tuple(nodes), read, array, len(seen), reads))
        return 0

    session = model.session()
    session.set_instrument(instrument)
    try:
        with refusals(model.manifest.model):
            results = session.main(*arguments)
        outputs = [np.array(array) for array in model.results(results)]
    finally:
        session.set_instrument(None)
    return outputs, seen


def writers_of(manifest: Any, inputs: Sequence[Any], weights: Sequence[Any]) -> Writers:
    """What stands in memory when a run begins. Caches in place are inputs that the code writes."""
    given = [place_of(tensor) for tensor in tensors_in(inputs)]
    known = [place_of(tensor) for tensor in weights]
    return Writers(known, given) if manifest.decoder.in_place else Writers([*known, *given])


def written(tensor: Any) -> Array | None:
    """A copy of a tensor in host memory; None where NumPy lacks its type."""
    try:
        dtype = str(tensor.dtype)
        if dtype in ("bfloat16", "float16") or dtype.startswith("float8"):  # .npy files know none of these
            info = TensorInfo("", tuple(map(int, tensor.shape)), dtype)
            return np.array(from_ffi(tensor, info)).astype(np.float32)
        return np.array(np.from_dlpack(tensor))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None


def candidates(nodes: Sequence[Any], inside: Sequence[int], named: Collection[int]) -> list[str]:
    """Tensors that a kernel computing these nodes may have written, likeliest first.

    Outputs of its nodes, the last one's first; then of following nodes that no kernel names (folded into a
    weight, or a reshape); then what the nodes read (a kernel that only brings an input into another layout).
    """
    names = [o for i in reversed(inside) for o in nodes[i].output if o]
    front, follow = set(names), []
    for i in range((inside[-1] if inside else -1) + 1, len(nodes)):
        if i not in named and front & set(nodes[i].input):
            front |= set(nodes[i].output)
            follow += [o for o in nodes[i].output if o]
        if len(follow) > 8:
            break
    reads = [n for i in inside for n in nodes[i].input if n]
    return list(dict.fromkeys([*names, *follow, *reads]))


def bindings(nodes: Sequence[Any]) -> dict[str, int]:
    """Name of a node, as kernels tell it -> its index."""
    from tvmopt.importer.protos import node_name

    return {node_name(node): i for i, node in enumerate(nodes)}


def _orders(rank: int) -> Iterator[tuple[int, ...]]:
    """Orders of axes to try: as they are, channels last without and with a batch, then all others.

    >>> list(_orders(3))
    [(0, 1, 2), (1, 2, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0)]
    """
    plain = tuple(range(rank))
    first = dict.fromkeys((plain, (*plain[1:], *plain[:1]), (*plain[:1], *plain[2:], *plain[1:2])))
    yield from first
    if rank <= 5:
        yield from (order for order in permutations(plain) if order not in first)


def fitted(expected: Array, found: Array) -> tuple[Array, float]:
    """(`found` in the layout of `expected` that a sample fits best, the mean error of that sample).

    What is no number has to be in its place first: of tensors that have many, few elements are left to compare. An
    infinity is as large as the largest number, which a kernel may keep in a wider type.

    >>> rows = np.array([[0.0, 1, 2], [1, 2, 4]])
    >>> fitted(rows, rows.T)[0].tolist(), fitted(rows, rows[:, ::-1])[0].tolist()
    ([[0.0, 1.0, 2.0], [1.0, 2.0, 4.0]], [[2.0, 1.0, 0.0], [4.0, 2.0, 1.0]])
    """
    if not expected.size:
        return found.reshape(expected.shape), 0.0
    axes = [a for a, size in enumerate(expected.shape) if size > 1]
    best, least, fit = found.reshape(expected.shape), 0.0, (float("inf"), float("inf"))
    lies = [size for size in found.shape if size > 1]
    picks = np.random.default_rng(0).integers(0, max(1, found.size), min(SAMPLE, found.size))
    flat = found.reshape(-1)[picks].astype(np.float64)
    own = largest(flat)
    for order in _orders(len(axes)):
        sizes = [expected.shape[axes[k]] for k in order]
        where = np.unravel_index(picks, sizes) if sizes else ()
        index: list[Any] = [0] * expected.ndim
        for k, position in zip(order, where, strict=True):
            index[axes[k]] = position
        with np.errstate(all="ignore"):
            values = expected[tuple(index)].astype(np.float64)
            top = max(largest(values), own)
            errors = np.minimum(np.abs(np.clip(values, -top, top) - np.clip(flat, -top, top)), 1e30)
        numbers = ~np.isnan(errors)
        error = float(errors[numbers].mean()) if numbers.any() else 0.0
        misplaced = float((np.isnan(values) != np.isnan(flat)).sum())
        if (misplaced, weighed := error * (1.0 if sizes == lies else ELSEWHERE)) < fit:
            least, fit = error, (misplaced, weighed)
            inverse = np.argsort(order)
            best = found.reshape(sizes).transpose(inverse).reshape(expected.shape) if sizes else best
            finite = flat[np.isfinite(flat)]
            # beside what tells elements apart: of numbers round 1000 every order is near to every other one
            if not misplaced and finite.size and error <= 1e-3 * float(np.abs(finite - finite.mean()).mean()):
                break
    return best, least
