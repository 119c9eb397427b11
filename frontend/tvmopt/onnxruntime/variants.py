"""From the inputs of a call to a compiled model - for the drop-in session.

A compiled model has fixed shapes. So a session whose model leaves dimensions open has one for each set of shapes that
it meets: compiled in a child process when it is first met, kept in the user's cache, loaded once. Where an input
decides what is computed (a sampling rate that chooses a branch), the model is compiled for the input's value.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tvmopt
from tvmopt.cache import Models
from tvmopt.compiler.request import source_hash
from tvmopt.errors import ModelError
from tvmopt.runtime.manifest import FORMAT, installed_versions
from tvmopt.runtime.model import Model, load
from tvmopt.targets import Machine
from tvmopt.tuning.store import default_path

Array = np.ndarray[Any, Any]
Signature = tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]]

MOST = 32
"""Compiled models that a session holds at once; the cache on disk has the others."""

DECIDES = 16
"""An integer or boolean input of at most so many elements may decide what is computed."""

PATIENCE = 2.0
"""Seconds of compiling after which the user is told."""


class Variants:
    """The compiled models of one ONNX file.

    Args:
        path: the file; `model`: what is in it, without external data.
        title: what it is called in messages.
        open_inputs: inputs with open dimensions. may_decide: inputs that may become constants.
        options: of :func:`tvmopt.compile`.
    """

    def __init__(
        self, path: Path, model: Any, title: str, open_inputs: frozenset[str], may_decide: frozenset[str], quiet: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        self.path, self.title, self.quiet, self.options = path, title, quiet, options
        self._order, self._may_decide = sorted(open_inputs), may_decide
        self._decide: frozenset[str] = frozenset()  # those that do
        self._loaded: OrderedDict[Signature, Model] = OrderedDict()
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
        decide = self._decide
        known = self._find(self._signature(feeds, decide))
        if known is not None:
            return known, decide
        may = frozenset(n for n in self._may_decide if feeds[n].size <= DECIDES)
        if not decide and may and self._is_made(feeds, may) and not self._is_made(feeds, decide):
            decide = may  # another session found that out
        try:
            made = self._make(feeds, decide)
        except ModelError:
            if decide or not may:
                raise
            made, decide = self._make(feeds, may), may
        self._decide = decide
        return made, decide

    def _signature(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> Signature:
        """Shapes of the open inputs, and values of those that decide."""
        shapes = tuple(feeds[name].shape for name in self._order if name not in decide)
        return shapes, tuple(feeds[name].tobytes() for name in sorted(decide))

    def _find(self, signature: Signature) -> Model | None:
        with self._lock:
            found = self._loaded.get(signature)
            if found is not None:
                self._loaded.move_to_end(signature)
            return found

    def _make(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> Model:
        """Load a model, compiled first where the cache has none; other threads go on meanwhile."""
        shapes, values = self._parts(feeds, decide)
        made = load(self._file(self._key(shapes, values), shapes, values), threads=self.options["threads"], mapped=True)
        with self._lock:
            found = self._loaded.setdefault(self._signature(feeds, decide), made)
            if len(self._loaded) > MOST:
                self._loaded.popitem(last=False)
        return found

    def _is_made(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> bool:
        return Models.default().find(self._key(*self._parts(feeds, decide))) is not None

    def _parts(self, feeds: Mapping[str, Array], decide: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same by name, as :func:`tvmopt.compile` takes them."""
        shapes = {name: list(feeds[name].shape) for name in self._order if name not in decide}
        return shapes, {name: feeds[name].tolist() for name in sorted(decide)}

    def _file(self, key: str, shapes: dict[str, Any], values: dict[str, Any]) -> Path:
        cache = Models.default()

        def write(path: Path) -> None:
            from tvmopt.api import compile_isolated

            words = ", ".join(
                [*(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items()), *(f"{n}={v}" for n, v in values.items())]
            )
            with self._told(f"{self.title} ({words})" if words else self.title) as progress:
                compile_isolated(self.path, output=path, shape=shapes, values=values, progress=progress, **self.options)

        return cache.find(key) or cache.make(key, write)

    def _key(self, shapes: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        """What the compiled model follows from."""
        store = default_path()
        tuned = store.stat().st_mtime_ns if store.is_file() else 0
        parts = [
            self._hash, shapes, values, self.options, self._machine.as_dict(), tvmopt.__version__, FORMAT,
            installed_versions(), tuned,
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
