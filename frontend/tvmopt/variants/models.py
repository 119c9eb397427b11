"""From the inputs of a call to a compiled model - for the drop-in session.

A model is compiled in a child process when it is first called, kept in the user's cache, and loaded once. One compile
serves every batch and every length. Of a model of convolutions the first call's sizes are compiled as numbers, which is
fastest; for a call of other sizes it is compiled for all sizes up to a bound, which grows with the calls
(`axes.py`). Where that is refused, there is one model for each set of shapes. Where an input decides what is computed
(a sampling rate that chooses a branch), the model is compiled for the input's value.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tvmopt.variants.axes import Axes, Shape, is_bound

Array = np.ndarray[Any, Any]
Signature = tuple[tuple[tuple[int | str, ...], ...], tuple[bytes, ...]]

MOST = 32
"""Compiled models that a session holds at once; the cache on disk has the others."""

DECIDES = 16
"""An integer or boolean input of at most so many elements may decide what is computed."""

PATIENCE = 2.0
"""Seconds of compiling after which the user is told, and is told again."""


@dataclass(frozen=True)
class Variant:
    """What one compiled model is made for.

    Attributes:
        shapes: of the inputs with open dimensions; a text is a size that stays open ("?", or "..2048": that at most).
        values: arrays of the inputs that are constants.
    """

    shapes: Mapping[str, Shape]
    values: Mapping[str, Array]

    @property
    def signature(self) -> Signature:
        return tuple(self.shapes.values()), tuple(v.tobytes() for v in self.values.values())

    @property
    def is_open(self) -> bool:
        return any(isinstance(size, str) for shape in self.shapes.values() for size in shape)

    @property
    def is_bounded(self) -> bool:
        return any(is_bound(size) for shape in self.shapes.values() for size in shape)

    def serves(self, model: Model, feeds: Mapping[str, Array]) -> bool:
        """Whether its model takes these inputs, which have its own sizes where it has numbers."""
        return not self.is_open or model.fits([feeds[i.name].shape for i in model.inputs])

    def __str__(self) -> str:
        shapes = (f"{n} {'x'.join(map(str, s))}" for n, s in self.shapes.items())
        return ", ".join((*shapes, *(f"{n}={v.tolist()}" for n, v in self.values.items())))


class Variants:
    """The compiled models of one ONNX file.

    Args:
        path: the file; `model`: what is in it, without external data.
        title: what it is called in messages.
        inputs: the shape of each input with open dimensions; a name or None is an open size.
        may_decide: inputs that may become constants.
        cores: the processors to run on, as of :func:`tvmopt.load`.
        options: of :func:`tvmopt.compile`.
    """

    def __init__(
        self, path: Path, model: Any, title: str, inputs: Mapping[str, Sequence[int | str | None]],
        may_decide: frozenset[str], quiet: bool, cores: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.path, self.title, self.quiet, self.options, self._cores = path, title, quiet, options, cores
        self._order, self._may_decide = sorted(inputs), may_decide
        # bfloat16 leaves operators with open sizes in float32
        self._axes = Axes(model, inputs) if options["precision"] == "fp32" and inputs else None
        self._bounded: dict[Signature, Variant] = {}  # those that served a call
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
        if self._decide is not None:
            for variant in self._at_hand(feeds, self._decide):
                found = self._find(variant.signature)
                if found is not None and variant.serves(found, feeds):
                    return found, self._decide
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
            if variant.serves(found, feeds):
                self._decide = frozenset(variant.values)
                self._met(variant, feeds)
                return found, self._decide
        raise AssertionError("the last variant has no open size")

    def _at_hand(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> Iterator[Variant]:
        """What may serve a call and may be loaded already."""
        first, last = self._ends(feeds, decide)
        yield first
        yield from (v for v in self._bounded.values() if v.signature[1] == last.signature[1])
        yield last

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
        """The same, where the inputs `decide` are constants."""
        first, last = self._ends(feeds, decide)
        largest = self._largest(last) if self._axes else {}
        if self._axes and largest:
            bounded = Variant(self._axes.bounded(largest), last.values)
            if self._axes.fixes:
                yield from (v for v in (first, last) if self._is_made(v))
                yield bounded
                yield first
            else:
                yield first
                if not self._is_refused(first):
                    yield bounded
        elif first.is_open:
            yield first
        yield last

    def _ends(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> tuple[Variant, Variant]:
        """The variant that is compiled for a first call, and the one with the call's own shapes."""
        values = {name: feeds[name] for name in sorted(decide)}
        shapes = {name: feeds[name].shape for name in self._order if name not in decide}
        last = Variant(shapes, values)
        return Variant(self._axes.first(shapes), values) if self._axes else last, last

    def _met(self, variant: Variant, feeds: Mapping[str, Array]) -> None:
        """Note a call that no loaded model could serve."""
        if variant.is_bounded:
            self._bounded[variant.signature] = variant
        if self._axes:
            last = self._ends(feeds, frozenset(variant.values))[1]
            Models.default().note(self._family(last), self._largest(last) or dict(last.shapes))

    def _largest(self, last: Variant) -> dict[str, list[int]]:
        """The largest sizes of a call and of those before it, in any process; empty if there was none."""
        known = Models.default().noted(self._family(last)) or {}
        return {n: list(map(max, known[n], shape)) for n, shape in last.shapes.items() if n in known}

    def _family(self, last: Variant) -> str:
        """The key of all variants of a model that have the same constants."""
        assert self._axes is not None
        return self._key(Variant(self._axes.every(last.shapes), last.values))

    def _is_made(self, variant: Variant) -> bool:
        return Models.default().find(self._key(variant)) is not None

    def _find(self, signature: Signature) -> Model | None:
        with self._lock:
            found = self._loaded.get(signature)
            if found is not None:
                self._loaded.move_to_end(signature)
            return found

    def _make(self, variant: Variant) -> Model:
        """Load a model, compiled first where the cache has none; other threads go on meanwhile."""
        made = load(self._file(variant), threads=self.options["threads"], mapped=True, cores=self._cores)
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

            compile_isolated(
                self.path, output=path, shape=variant.shapes, values=variant.values, cache=False,
                progress=self._told(f"{self.title} ({variant})" if str(variant) else self.title), **self.options,
            )  # fmt: skip

        return cache.find(key) or cache.make(key, write)

    def _key(self, variant: Variant) -> str:
        """What the compiled model follows from."""
        values = {name: array.tolist() for name, array in variant.values.items()}
        parts = [
            self._hash, dict(variant.shapes), values, self.options, self._machine.as_dict(), made_by(), tuned(),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _told(self, what: str) -> Callable[[str], None]:
        """What takes the stages: it says on stderr that a model is compiled, if that takes long, and now and then the
        stage."""
        told = time.monotonic()

        def progress(stage: str) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= PATIENCE and not self.quiet:
                print(f"tvmopt: compiling {what} for its first use: {stage}", file=sys.stderr, flush=True)
                told = now

        return progress
