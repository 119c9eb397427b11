"""Every tensor of a model as a reference runtime computes it, kept in files - what layers are compared with.

Outputs are marked a few at a time, so that memory stays bounded; weights are written once and shared by all
pieces cut from the model. The reference is onnxruntime without optimisations, else ONNX's own evaluator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.verify import run_reference
from tvmopt.children import Progress
from tvmopt.debug.extract import borders
from tvmopt.debug.files import save
from tvmopt.debug.graph import cut, infer_types, inputs_of, value_info
from tvmopt.errors import TvmoptError
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import static_shape, tensor_type

CHUNK = 1 << 28
"""Bytes of marked outputs in one run of the reference."""


class Layers:
    """A model on a workbench: its pieces as files, its tensors as arrays.

    Args:
        model: nodes in topological order, weights in memory.
        feeds: arrays for its inputs.
        folder: an existing folder to work in; the caller removes it.

    Attributes:
        model: the same with its weights in a file of `folder`.
        types: of every tensor; those that were computed have their actual shape.
        reference: the runtime that computed the values, once it has.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> None:
        self.folder = folder
        self.path = save(model, folder / "whole.onnx", external=True)
        self.model = onnx.load(str(self.path), load_external_data=False)
        self.feeds = dict(feeds)
        self.types: dict[str, onnx.TypeProto] = dict(infer_types(model))
        self.types.update((n, tensor_type(a)) for n, a in self.feeds.items() if a.dtype.kind not in "OUS")
        self.reference = ""
        self._files: dict[str, Path] = {}
        self._absent: set[str] = set()

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        nodes: Sequence[onnx.NodeProto] = self.model.graph.node
        return nodes

    # -- values ------------------------------------------------------------------------------------------

    def compute(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Make the reference compute these tensors, unless it has; strings and sequences are left out.

        Raises:
            TvmoptError: no reference can run the model.
        """
        todo = [n for n in dict.fromkeys(names) if n not in self._files and n not in self.feeds]
        todo = [n for n in todo if n not in self._absent]
        for index, chunk in enumerate(self.chunks(todo)):
            if progress:
                progress(f"reference values, {min(len(todo), (index + 1) * len(chunk))} of {len(todo)} tensors")
            target = self.folder / f"values{len(self._files)}"
            target.mkdir()
            made, self.reference = isolated(partial(self._run, chunk, target), "reference run", str(self.path))
            for name, file in made.items():
                self._files[name] = Path(file)
                array = self.value(name)
                if array is not None:
                    self.types[name] = tensor_type(array)
            self._absent.update(n for n in chunk if n not in made)

    def value(self, name: str) -> Array | None:
        """A tensor's value, read from its file when it is used; None: it was not computed."""
        if name in self.feeds:
            return self.feeds[name]
        file = self._files.get(name)
        return None if file is None else np.load(file, mmap_mode="r", allow_pickle=False)

    def chunks(self, names: Sequence[str]) -> Iterable[list[str]]:
        """Tensors in groups that fit in memory together."""
        chunk: list[str] = []
        size = 0
        for name in names:
            shape = static_shape(self.types.get(name))
            size += 8 * prod(shape) if shape is not None else CHUNK // 64
            chunk.append(name)
            if size > CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _run(self, names: Sequence[str], target: Path) -> tuple[dict[str, str], str]:
        """In a child: the tensors' files, and the reference's name."""
        path = self.marked(names, "marked.onnx")
        reference, (outputs,) = run_reference(path, [self.feeds])
        made = {}
        for index, name in enumerate(names):
            array = outputs.get(name)
            if isinstance(array, np.ndarray) and array.dtype.kind in "fiubc":
                file = target / f"{index}.npy"
                np.save(file, array)
                made[name] = str(file)
        return made, reference

    def marked(self, names: Sequence[str], file: str) -> Path:
        """The whole model with these tensors as its outputs."""
        model = cut(self.model, [], list(names), self.types)
        for value in inputs_of(self.model):
            if value.name not in {v.name for v in model.graph.input}:
                model.graph.input.append(value)
        return self._write(model, file)

    # -- pieces ------------------------------------------------------------------------------------------

    def piece(self, inside: set[int], outputs: Sequence[str] = ()) -> onnx.ModelProto:
        """The nodes with these indices as a model; what they read from outside are its inputs.

        Args:
            outputs: of the piece; empty: every tensor that others read of it, and outputs of the model.
        """
        reads, gives = borders(self.model, inside)
        part = onnx.ModelProto.FromString(self.model.SerializeToString())
        kept = [part.graph.node[i] for i in sorted(inside)]
        kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
        del part.graph.node[:]
        part.graph.node.extend(kept)
        return cut(part, [value_info(n, self.types) for n in reads], list(outputs) or gives, self.types)

    def needs(self, inside: set[int]) -> list[str]:
        """The tensors that a piece reads from outside."""
        return borders(self.model, inside)[0]

    def write(self, piece: onnx.ModelProto, file: str) -> Path:
        """A piece as a file of the folder, its weights shared."""
        return self._write(piece, file)

    def inputs(self, piece: onnx.ModelProto) -> dict[str, Array]:
        """The reference's values for the inputs of a piece.

        Raises:
            TvmoptError: a value is not known.
        """
        found = {}
        for value in inputs_of(piece):
            array = self.value(value.name)
            if array is None:
                raise TvmoptError(f"the reference gives no value of {value.name!r}.", where="reference run")
            found[value.name] = np.asarray(array)
        return found

    def _write(self, model: onnx.ModelProto, file: str) -> Path:
        path = self.folder / file
        path.write_bytes(model.SerializeToString())
        return path

    def with_data(self, piece: onnx.ModelProto) -> onnx.ModelProto:
        """A piece with its weights in memory, to be written elsewhere."""
        copy = onnx.ModelProto.FromString(piece.SerializeToString())
        onnx.load_external_data_for_model(copy, str(self.folder))
        for tensor in copy.graph.initializer:
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
        return copy
