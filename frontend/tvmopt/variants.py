"""From the inputs of a call to a compiled model - for the drop-in session and for PyTorch.

A model is compiled in a child process when it is first called, kept in the user's cache, and loaded once. One compile
serves every batch and every length (:func:`open_shape` says which sizes stay open); there is one for each set of shapes
where a size is fast as a number only, where the open model was refused, or where a call is beyond its ranges. Where an
input decides what is computed (a sampling rate that chooses a branch), the model is compiled for the input's value.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.cache import Models
from tvmopt.compiler.kept import made_by, tuned
from tvmopt.compiler.request import source_hash
from tvmopt.errors import ModelError, TvmoptError
from tvmopt.runtime.model import Model, load
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
Signature = tuple[tuple[tuple[int | str, ...], ...], tuple[bytes, ...]]

MOST = 32
"""Compiled models that a session holds at once; the cache on disk has the others."""

DECIDES = 16
"""An integer or boolean input of at most so many elements may decide what is computed."""

PATIENCE = 2.0
"""Seconds of compiling after which the user is told."""


WINDOWS = frozenset((
    "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GridSample", "LpPool", "MaxPool",
    "QLinearConv", "Resize", "Upsample",
))  # fmt: skip
"""Operators that are fast, or there at all, only where their sizes are numbers, except the batch (docs/limits.md)."""


@dataclass(frozen=True)
class Variant:
    """What one compiled model is made for.

    Attributes:
        shapes: of the inputs with open dimensions; "?" is a size that stays open.
        values: arrays of the inputs that are constants.
    """

    shapes: Mapping[str, tuple[int | str, ...]]
    values: Mapping[str, Array]

    @property
    def signature(self) -> Signature:
        return tuple(self.shapes.values()), tuple(v.tobytes() for v in self.values.values())

    @property
    def is_open(self) -> bool:
        return any("?" in shape for shape in self.shapes.values())

    def __str__(self) -> str:
        shapes = (f"{n} {'x'.join(map(str, s))}" for n, s in self.shapes.items())
        return ", ".join((*shapes, *(f"{n}={v.tolist()}" for n, v in self.values.items())))


def stay_open(model: Any, inputs: Mapping[str, Sequence[int | str | None]]) -> dict[str, frozenset[int]]:
    """The axes of inputs that one compile leaves open, by input: all open ones, but only those that are the first of
    an input (a batch) where the model has convolutions or poolings.

    Args:
        model: an ONNX model.
        inputs: the shapes of its inputs, as the file says them; a name or None is an open size.
    """
    windows = any(node.op_type in WINDOWS for node in model.graph.node)
    first = {shape[0] for shape in inputs.values() if shape and isinstance(shape[0], str)}
    return {
        name: frozenset(
            axis for axis, d in enumerate(shape) if not isinstance(d, int) and (not windows or axis == 0 or d in first)
        )
        for name, shape in inputs.items()
    }


class Variants:
    """The compiled models of one ONNX file.

    Args:
        path: the file; `model`: what is in it, without external data.
        title: what it is called in messages.
        inputs: the shape of each input with open dimensions; a name or None is an open size.
        may_decide: inputs that may become constants.
        options: of :func:`tvmopt.compile`.
    """

    def __init__(
        self, path: Path, model: Any, title: str, inputs: Mapping[str, Sequence[int | str | None]],
        may_decide: frozenset[str], quiet: bool, **options: Any,
    ) -> None:  # fmt: skip
        self.path, self.title, self.quiet, self.options = path, title, quiet, options
        self._order, self._may_decide = sorted(inputs), may_decide
        # bfloat16 leaves operators with open sizes in float32
        self._stay = stay_open(model, inputs) if options["precision"] == "fp32" else {}
        self._decide: frozenset[str] | None = None  # those that do, as soon as that is known
        self._loaded: OrderedDict[Signature, Model] = OrderedDict()
        self._refused: set[Signature] = set()
        self._lock = threading.Lock()
        machine = Machine.load("cpu")
        threads = options["threads"]
        self._machine = machine if threads is None else machine.with_threads(threads)
        self._hash = source_hash(path, model)

    def model(self, feeds: Mapping[str, Array]) -> tuple[Model, frozenset[str]]:
        """The model for these inputs, and the names of those that are constants of it.

        Raises:
            TvmoptError: it cannot be compiled.
        """
        possible = list(self._possible(feeds))
        for variant in possible:
            is_last = variant is possible[-1]
            found = self._find(variant.signature)
            try:
                if found is None:
                    if not is_last and self._is_refused(variant):
                        continue
                    found = self._make(variant)
            except TvmoptError as error:
                if is_last or not (variant.is_open or isinstance(error, ModelError)):
                    raise
                self._refuse(variant, error)
                continue
            if not variant.is_open or found.fits([feeds[i.name].shape for i in found.inputs]):
                self._decide = frozenset(variant.values)
                return found, self._decide
        raise AssertionError("the last variant has no open size")

    def _possible(self, feeds: Mapping[str, Array]) -> Iterator[Variant]:
        """What may serve a call, in the order in which it is tried; the last one has the call's own shapes."""
        if self._decide is not None:
            yield from self._deciding(feeds, self._decide)
            return
        none = list(self._deciding(feeds, frozenset()))
        may = frozenset(n for n in self._may_decide if feeds[n].size <= DECIDES)
        some = list(self._deciding(feeds, may)) if may else []
        if not any(map(self._is_made, some)) or any(map(self._is_made, none)):  # else another session found that out
            yield from none
        yield from some

    def _deciding(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> Iterator[Variant]:
        values = {name: feeds[name] for name in sorted(decide)}
        shapes = {name: feeds[name].shape for name in self._order if name not in decide}
        if any(self._stay.get(name) for name in shapes):
            yield Variant({name: self._opened(name, shape) for name, shape in shapes.items()}, values)
        yield Variant(shapes, values)

    def _is_made(self, variant: Variant) -> bool:
        return Models.default().find(self._key(variant)) is not None

    def _opened(self, name: str, shape: Sequence[int]) -> tuple[int | str, ...]:
        return tuple("?" if axis in self._stay[name] else size for axis, size in enumerate(shape))

    def _find(self, signature: Signature) -> Model | None:
        with self._lock:
            found = self._loaded.get(signature)
            if found is not None:
                self._loaded.move_to_end(signature)
            return found

    def _make(self, variant: Variant) -> Model:
        """Load a model, compiled first where the cache has none; other threads go on meanwhile."""
        made = load(self._file(variant), threads=self.options["threads"], mapped=True)
        with self._lock:
            found = self._loaded.setdefault(variant.signature, made)
            if len(self._loaded) > MOST:
                self._loaded.popitem(last=False)
        return found

    def _is_refused(self, variant: Variant) -> bool:
        if variant.signature not in self._refused and Models.default().is_refused(self._key(variant)):
            self._refused.add(variant.signature)
        return variant.signature in self._refused

    def _refuse(self, variant: Variant, error: TvmoptError) -> None:
        """Do not try it again in this process; if the model is the reason and nothing of this machine, in none."""
        self._refused.add(variant.signature)
        if isinstance(error, ModelError):
            Models.default().refuse(self._key(variant))

    def _file(self, variant: Variant) -> Path:
        cache, key = Models.default(), self._key(variant)

        def write(path: Path) -> None:
            from tvmopt.api import compile_isolated

            with self._told(f"{self.title} ({variant})" if str(variant) else self.title) as progress:
                compile_isolated(
                    self.path, output=path, shape=variant.shapes, values=variant.values, progress=progress,
                    cache=False, **self.options,
                )  # fmt: skip

        return cache.find(key) or cache.make(key, write)

    def _key(self, variant: Variant) -> str:
        """What the compiled model follows from."""
        values = {name: array.tolist() for name, array in variant.values.items()}
        parts = [
            self._hash, dict(variant.shapes), values, self.options, self._machine.as_dict(), made_by(), tuned(),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @contextmanager
    def _told(self, what: str) -> Iterator[Callable[[str], None]]:
        """Say on stderr that a model is compiled, if that takes long; each stage from then on."""
        late = threading.Event()
        timer = threading.Timer(PATIENCE, late.set)
        timer.daemon = True

        def progress(stage: str) -> None:
            if late.is_set() and not self.quiet:
                print(f"tvmopt: compiling {what} for its first use: {stage}", file=sys.stderr, flush=True)

        timer.start()
        try:
            yield progress
        finally:
            timer.cancel()
