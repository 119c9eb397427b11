"""`InferenceSession` as onnxruntime has it, running compiled models."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import TvmoptError, first_line
from tvmopt.importer.maps import maps
from tvmopt.onnxruntime.exceptions import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    Refusing,
    as_theirs,
    missing,
)
from tvmopt.onnxruntime.options import SessionOptions
from tvmopt.onnxruntime.replace import real
from tvmopt.onnxruntime.values import DTYPES, TYPES, IOBinding, OrtValue, type_name
from tvmopt.runtime.artifact import is_artifact
from tvmopt.runtime.cores import parse
from tvmopt.runtime.model import load
from tvmopt.variants import DECIDES, Variants

Array = np.ndarray[Any, Any]

PROVIDERS = ["CPUExecutionProvider"]
DICTIONARIES = "seq(map(int64,tensor(float)))"
UNVERSIONED = 2**63 - 1  # what onnxruntime says of a file without a model version


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    Attributes:
        shape: sizes; a name or None where the model leaves one open.
        type: as ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """What the ONNX file says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession(Refusing):
    """A model ready to run: `onnxruntime.InferenceSession` over compiled code.

    Args:
        path_or_bytes: an ONNX file, its bytes, or a file that `tvmopt compile` wrote.
        sess_options: see :class:`SessionOptions`.
        providers: taken; the code runs on the CPU.
        fallback: run a model that cannot be compiled in onnxruntime, and say so on stderr.

    A model without open dimensions is compiled now, any other one when shapes are first met. What was compiled is kept
    in the user's cache (`tvmopt.cache`). Attributes that packages read of onnxruntime's session though they are its own
    have their names: `_model_path`, `_inputs_meta`, `_outputs_meta`, `_sess_options`, `_providers`.

    Raises:
        NoSuchFile, InvalidProtobuf: the file cannot be read. TvmoptError: it cannot be compiled.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        fallback: bool = False,
        **_ignored: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is a {type(sess_options).__name__}, not SessionOptions")
        if not isinstance(path_or_bytes, str | os.PathLike | bytes):
            raise TypeError(f"a session is made of a path or of bytes, not of a {type(path_or_bytes).__name__}")
        self._sess_options = sess_options or SessionOptions()
        self._model_path = None if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        if self._sess_options.cores is not None:
            parse(self._sess_options.cores)  # what is wrong is told before any work
        self._begin = time.time_ns()
        self._fallback = fallback
        self._other: Any = None  # a session of onnxruntime, where ours cannot compile the model
        self._asked = (path_or_bytes, providers, provider_options)
        self._artifact: Any = None
        self._folder: Any = None
        self._maps: dict[str, tuple[int, ...]] = {}  # the labels of outputs that are dictionaries
        if (
            isinstance(path_or_bytes, str | os.PathLike)
            and Path(path_or_bytes).is_file()
            and is_artifact(Path(path_or_bytes))
        ):
            self._open_artifact(Path(path_or_bytes))
        else:
            self._open_model(path_or_bytes)

    def _open_artifact(self, path: Path) -> None:
        self._artifact = load(path, threads=self._threads, cores=self._sess_options.cores)
        self._inputs_meta = [NodeArg(i.name, list(i.shape), type_name(i.numpy_dtype)) for i in self._artifact.inputs]
        self._outputs_meta = [NodeArg(o.name, list(o.shape), type_name(o.numpy_dtype)) for o in self._artifact.outputs]
        self._initializers: list[NodeArg] = []
        self._metadata = ModelMetadata(graph_name=self._artifact.manifest.model)

    def _open_model(self, source: str | os.PathLike[str] | bytes) -> None:
        import onnx

        if isinstance(source, bytes):
            self._folder = tempfile.TemporaryDirectory(prefix="tvmopt-session-")
            path, title = Path(self._folder.name) / "model.onnx", "the model"
            path.write_bytes(source)
        else:
            path, title = Path(source), Path(source).name
        try:
            model = onnx.load(str(path), load_external_data=False)
        except OSError as error:
            told = f"Load model from {path} failed: {error.strerror or error}"
            raise NoSuchFile(told, where=str(path), fix="check the path") from None
        except Exception as error:  # protobuf's DecodeError, which is in no public module
            told = f"Load model from {path} failed: Protobuf parsing failed."
            raise InvalidProtobuf(told, where=str(path), fix="give an ONNX file") from error
        graph = model.graph
        given = {i.name for i in graph.initializer}
        sizes = self._sess_options.free_dimensions
        args = [_node_arg(value, sizes) for value in graph.input]
        self._inputs_meta = [a for a in args if a.name not in given]
        self._initializers = [a for a in args if a.name in given]
        self._maps = maps(model)
        self._outputs_meta = [
            NodeArg(value.name, [], DICTIONARIES) if value.name in self._maps else _node_arg(value, sizes)
            for value in graph.output
        ]
        self._metadata = ModelMetadata(
            model.producer_name, graph.name, model.domain, model.doc_string, graph.doc_string,
            model.model_version if model.HasField("model_version") else UNVERSIONED,
            {p.key: p.value for p in model.metadata_props},
        )  # fmt: skip
        dtypes = {a.name: DTYPES.get(a.type) for a in self._inputs_meta}
        open_ = {a.name for a in (_node_arg(value, {}) for value in graph.input) if not _is_fixed(a)}
        entry = self._sess_options._entries.get
        self._variants = Variants(
            path, model, title, {a.name: a.shape for a in self._inputs_meta if a.name in open_},
            frozenset(n for n, dtype in dtypes.items() if dtype is not None and dtype.kind in "biu"),
            self._sess_options.log_severity_level >= 3,
            threads=self._threads, precision=entry("tvmopt.precision", "fp32"),
            verify=entry("tvmopt.verify", "1") != "0", exact=entry("tvmopt.exact", "0") == "1",
            cores=self._sess_options.cores,
        )  # fmt: skip
        if all(map(_is_fixed, self._inputs_meta)):
            zeros = {
                a.name: np.zeros([d for d in a.shape if isinstance(d, int)], dtypes[a.name]) for a in self._inputs_meta
            }
            if not any(array.dtype.kind in "biu" and array.size <= DECIDES for array in zeros.values()):
                self._prepared(zeros)

    @property
    def _threads(self) -> int | None:
        wanted: int = self._sess_options.intra_op_num_threads
        return wanted if wanted > 0 else None

    # -- what it is --------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs_meta)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs_meta)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs with a default; they keep it here: to feed one is refused."""
        return list(self._initializers)

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    def get_providers(self) -> list[str]:
        return list(self._other.get_providers() if self._other else PROVIDERS)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Taken; the code runs on the CPU."""

    def enable_fallback(self) -> None:
        """Of onnxruntime's providers; there is one here."""

    def disable_fallback(self) -> None:
        """Of onnxruntime's providers; there is one here."""

    def get_profiling_start_time_ns(self) -> int:
        return self._begin

    def end_profiling(self) -> str:
        raise missing("end_profiling", "tvmopt profile MODEL")

    # -- running -----------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """The outputs that are named, or all, as arrays.

        Args:
            input_feed: arrays by name; anything else becomes an array of the input's type.

        Raises:
            ValueError: an input is missing. InvalidArgument: a name, type or shape is wrong. TvmoptError: the model
                cannot be compiled for these shapes. Fail: `run_options` says that the run is to end.
        """
        if run_options is not None and run_options.terminate:
            raise Fail("Exiting due to terminate flag being set to true.", fix="set run_options.terminate to False")
        known = [o.name for o in self._outputs_meta]
        if isinstance(output_names, str):
            raise TypeError(f"the outputs wanted are a list of names, not the text {output_names!r}")
        names = list(output_names) if output_names else known
        for name in names:
            if name not in known:
                raise InvalidArgument(
                    f"Invalid output name: {name}.", where=name, fix=f"the outputs are {', '.join(known)}"
                )
        feeds = self._checked(input_feed)
        if self._artifact is not None:
            found = self._artifact.run(feeds)
        else:
            if self._other is None:
                prepared = self._prepared(feeds)
            if self._other is not None:
                return list(self._other.run(names, feeds))
            model, constants = prepared
            found = model.run({name: array for name, array in feeds.items() if name not in constants})
        return [_dictionaries(found[name], self._maps[name]) if name in self._maps else found[name] for name in names]

    def run_async(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], Any, str], None], user_data: Any, run_options: Any = None,
    ) -> None:  # fmt: skip
        """:meth:`run` in a thread, which calls ``callback(outputs, user_data, error)``; without an error that is ""."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = [], str(problem) or type(problem).__name__
            callback(results, user_data, error)

        threading.Thread(target=work, name="tvmopt-run-async", daemon=True).start()

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """:meth:`run` on tensors."""
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(array) for array in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs bound to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound."""
        iobinding.run(run_options)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _prepared(self, feeds: Mapping[str, Array]) -> Any:
        try:
            return self._variants.model(feeds)
        except TvmoptError as error:
            if not self._fallback:
                as_theirs(error)
                raise
            self._other = self._foreign()
            what = first_line(error.what)
            print(f"tvmopt: {self._variants.title} runs in onnxruntime: {what}", file=sys.stderr, flush=True)
            return None

    def _foreign(self) -> Any:
        engine = real()
        options = engine.SessionOptions()
        options.intra_op_num_threads = self._sess_options.intra_op_num_threads
        for name, size in self._sess_options.free_dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        source, providers, provider_options = self._asked
        return engine.InferenceSession(source, options, providers or PROVIDERS, provider_options)

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, Array]:
        if not isinstance(feed, Mapping):
            raise TypeError(f"the inputs are a dictionary of arrays by name, not a {type(feed).__name__}")
        wanted = {i.name: i for i in self._inputs_meta}
        absent = [name for name in wanted if name not in feed]
        if absent:
            raise ValueError(f"Required inputs ({absent}) are missing from input feed ({list(feed)}).")
        fixed = {i.name for i in self._initializers}
        for name in feed:
            if name in fixed:
                raise missing(f"override of the initializer {name!r}", "make it an input without a default")
            if name not in wanted:
                raise InvalidArgument(
                    f"Invalid input name: {name}.", where=name, fix=f"the inputs are {', '.join(wanted)}"
                )
        return {name: _array(feed[name], arg) for name, arg in wanted.items()}


def _array(value: Any, arg: NodeArg) -> Array:
    """A value as an array of an input's type and rank."""
    if isinstance(value, OrtValue):
        value = value.numpy()
    dtype = DTYPES.get(arg.type)
    if not isinstance(value, np.ndarray | np.generic):
        try:
            value = np.asarray(value, dtype)
        except (TypeError, ValueError) as error:
            fix = f"give an array of {arg.type}"
            raise InvalidArgument(f"the input {arg.name!r} is no tensor: {error}.", where=arg.name, fix=fix) from None
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is not None and array.dtype != dtype:
        what = f"Unexpected input data type. Actual: ({type_name(array.dtype)}), expected: ({arg.type})"
        raise InvalidArgument(what, where=arg.name, fix=f"x.astype({dtype.name!r})")
    if array.ndim != len(arg.shape):
        what = f"Invalid rank for input: {arg.name} Got: {array.ndim} Expected: {len(arg.shape)}"
        raise InvalidArgument(what, where=f"{arg.name}: {arg.shape}", fix="reshape it")
    wrong = [i for i, (n, d) in enumerate(zip(array.shape, arg.shape, strict=True)) if isinstance(d, int) and n != d]
    if wrong:
        told = "; ".join(f"index: {i} Got: {array.shape[i]} Expected: {arg.shape[i]}" for i in wrong)
        what = f"Got invalid dimensions for input: {arg.name} for the following indices {told}"
        raise InvalidArgument(what, where=f"{arg.name}: {arg.shape}", fix="give the shape that the model has")
    return array


def _dictionaries(scores: Array, labels: Sequence[int]) -> Any:
    """The rows of a tensor [n, classes] as onnxruntime's ZipMap gives them, in the order of the labels."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    ordered = [labels[i] for i in order]
    return [dict(zip(ordered, row, strict=True)) for row in scores[:, order].tolist()]


def _is_fixed(arg: NodeArg) -> bool:
    return all(isinstance(d, int) for d in arg.shape)


def _node_arg(value: Any, sizes: Mapping[str, int]) -> NodeArg:
    tensor = value.type.tensor_type
    shape: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_param") and dim.dim_param:
            shape.append(sizes.get(dim.dim_param, dim.dim_param))
        else:
            shape.append(int(dim.dim_value) if dim.dim_value > 0 else None)
    word, _ = TYPES.get(tensor.elem_type, (f"type {tensor.elem_type}", None))
    return NodeArg(value.name, shape, f"tensor({word})")
