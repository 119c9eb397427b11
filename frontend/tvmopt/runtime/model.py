"""A loaded model: call it with NumPy arrays or anything that speaks DLPack - from as many threads as you like.

    model = tvmopt.load("resnet50.tvmopt")
    y = model(x)                              # one output: an array; several: a tuple
    outputs = model.run({"data": x})          # by name

C-contiguous arrays are read in place, wherever they begin; others are copied into a staging buffer. Outputs
are views of TVM's memory: no copy, and yours until you drop them. The library is unloaded when the model is closed, or
when nobody refers to it any more.
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn, Self, overload

import numpy as np

from tvmopt.dims import Range, Shapes, at
from tvmopt.errors import ArtifactError, InputError, collect, reason
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime import pool
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.batch import Batch
from tvmopt.runtime.beside import begun
from tvmopt.runtime.call_caches import LENGTH_AXIS, CallCaches
from tvmopt.runtime.cores import Cores, parse, running_on
from tvmopt.runtime.decoder import Decoder
from tvmopt.runtime.library import Session, arity, cuda_available, default_threads, ffi, load_library
from tvmopt.runtime.manifest import Manifest, check_versions
from tvmopt.runtime.places import check_text, numbers
from tvmopt.runtime.plain import Fitting, plain_call
from tvmopt.runtime.refused import refusal, refusals
from tvmopt.runtime.sizes import OpenSizes, decided, info_at
from tvmopt.runtime.tensors import (
    ALIGNMENT,
    Array,
    TensorInfo,
    address,
    aligned_empty,
    as_array,
    carrier,
    from_ffi,
    is_direct,
    to_ffi,
)
from tvmopt.runtime.tiles import use_tiles
from tvmopt.runtime.timing import Timing, measure
from tvmopt.texts import threads_of


@dataclass
class _Instance:
    """What one call at a time uses: a virtual machine, staging buffers, which outputs share memory that is not theirs,
    and the open `sizes` of the call at hand. A model makes as many as there are calls at once, and keeps them for later
    calls of any thread.
    """

    session: Session
    staging: list[Array | None]
    staged: list[Any]
    aliased: tuple[int, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    owned: bool = False

    def __post_init__(self) -> None:
        self.main = self.session.main


class _Own(threading.local):
    """What belongs to one thread; a default here is found at once, one of `getattr` after an error."""

    instance: _Instance | None = None


class Model:
    """A compiled model, ready to run. Safe to call from several threads at once; the weights are shared.

    A process that is forked may go on calling it, and gets threads of its own (on a GPU it may not: that is an error).

    Args:
        artifact: from :func:`tvmopt.runtime.artifact.read` or a compile.
        threads: threads a call; default: TVM_NUM_THREADS, else one for each of `cores`, else what the artifact was
            compiled for, at most the cores this process may use.
        cores: the processors that calls run on, their caller meanwhile too. Models that are given the same ones share
            them; those that are given others have threads of their own.

    Raises:
        ArtifactError: its weights were stripped, it needs instructions or a GPU that are not here, or it is
            damaged.
    """

    def __init__(self, artifact: Artifact, *, threads: int | None = None, cores: Cores | None = None) -> None:
        manifest = artifact.manifest
        if manifest.stripped:
            raise ArtifactError(
                "the artifact has no weights: it was made with --strip-weights.",
                where=artifact.where,
                fix=f"put them in: tvmopt refit {artifact.where} {manifest.model}",
            )
        if threads is not None:
            threads = pool.check_threads(threads, "threads")
        artifact.check_host()
        if "amx-tile" in manifest.features:
            use_tiles(artifact.where)
        self._cuda = manifest.kind == "cuda"
        if self._cuda and not cuda_available():
            raise ArtifactError(
                "the artifact is for an NVIDIA GPU, and none can be used here.",
                where=f"{artifact.where} (compiled for {manifest.target}, {manifest.mcpu})",
                fix="run it on a machine with the GPU, its driver and libcudart.so.13 on the loader's path "
                "(`tvmopt doctor` looks for them), or compile the model with --target cpu",
            )
        check_versions(manifest, artifact.where)
        self._artifact = artifact
        self._threads, self._cores = threads or default_threads(manifest.threads, cores), cores
        self._library = load_library(artifact.library, artifact.where)
        self._place = pool.place_of(cores.processors, artifact.where) if cores is not None else 0
        behind = manifest.decoder.in_place + manifest.decoder.placed  # the numbers of rows, the places
        wanted = arity(self._library) - behind
        given = len(manifest.inputs) + len(manifest.weights)
        if wanted != given:
            raise self._contradiction(f"its code takes {wanted} tensors, its manifest has {given}")
        self._arrays = artifact.weights
        weights = [to_ffi(array, w.dtype) for array, w in zip(artifact.weights, manifest.weights, strict=True)]
        self._weights = [_to_device(w) for w in weights] if self._cuda else weights
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        self._names = tuple(i.name for i in self._inputs)
        self._ends = tuple(o.name for o in self._outputs)
        self._checks = tuple((i.shape, i.numpy_dtype, i.dtype) for i in self._inputs)
        self._open = OpenSizes(manifest)
        self._caches = CallCaches(self._inputs, self._outputs, manifest.decoder)
        self._taken = self._caches.types(self._inputs)
        self._fitting = Fitting(self._inputs)
        more = self._cuda or self._caches or cores is not None
        self._plain = None if more else plain_call(self._inputs, self._outputs, self._weights, self._fitting, ffi())
        largest = self._open.largest
        self._staged_shapes = tuple(at(i.shape, largest) for i in self._inputs)
        self._idle: list[_Instance] = []
        self._own = _Own()  # of a thread that asked for a session
        self._pid = os.getpid()
        self._beginning: Model | None = None

    # -- what it is --------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        return self._artifact.manifest

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each input, in order; an open size is a `tvmopt.dims.Dim`."""
        return self._inputs

    @property
    def symbols(self) -> dict[str, Range]:
        """The range of each open size, by its name; none for a static model."""
        return self._open.ranges

    def inputs_at(self, sizes: Mapping[str, int] | None = None) -> tuple[TensorInfo, ...]:
        """The inputs at these open sizes; those that are not mentioned are the named ones."""
        return tuple(info_at(i, self._open.named | dict(sizes or {})) for i in self._inputs)

    def inputs_beside(self, given: Mapping[str, Any], shape: Shapes | None = None) -> tuple[TensorInfo, ...]:
        """The inputs at the sizes that some arrays have, which are given by name, and at those that are asked for."""
        return self.inputs_at(self._open.completed({name: np.shape(value) for name, value in given.items()}, shape))

    def fits(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether a call takes inputs of these shapes, in order."""
        if len(shapes) != len(self._inputs):
            return False
        if not all(info.fits(tuple(shape)) for info, shape in zip(self._inputs, shapes, strict=True)):
            return False
        try:
            self.bind(shapes)
        except InputError:
            return False
        return True

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The open sizes in the shapes of the inputs, in order, which fit each by itself.

        Raises:
            InputError: a size is out of range, or sizes disagree.
        """
        return self._open.bind(shapes)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each output, in order."""
        return self._outputs

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The names of classes, by the output that has their numbers: of what was compiled with `labels`."""
        return {name: tuple(names) for name, names in self.manifest.options.get("labels", {}).items()}

    @property
    def threads(self) -> int:
        """Threads that a call uses, the caller among them."""
        return self._threads

    @property
    def cores(self) -> Cores | None:
        """The processors that calls run on, where the model was given some."""
        return self._cores

    def __repr__(self) -> str:
        return f"<tvmopt.Model {self.manifest.model}: {self.signature}>"

    @property
    def signature(self) -> str:
        """Inputs, outputs, target and threads in one line."""
        ins, outs = "; ".join(map(str, self._inputs)), "; ".join(map(str, self._outputs))
        where = f"{self.manifest.target}, {threads_of(self._threads)}"
        where += f" on cores {self._cores}" if self._cores is not None else ""
        return f"{ins} -> {outs} on {where}"

    def close(self) -> None:
        """Unload the library and drop the weights. A later call is an error; outputs of earlier ones stay valid."""
        self._library = None
        self._weights, self._arrays = [], ()
        self._beginning = None
        self._idle.clear()
        self._own = _Own()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- calling -----------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run on positional or named inputs; returns the output array, or a tuple when the model has several.

        Raises:
            InputError: a wrong number, name, shape or dtype - all problems at once; or an index or a divisor that the
                model cannot use.
        """
        results = self._invoke(self._in_order(args, named) if named or len(args) != len(self._names) else args)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name; returns outputs by name.

        Raises:
            InputError: a missing or unknown name, a wrong shape or dtype - all problems at once; or an index or a
                divisor that the model cannot use.
        """
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            fix = f"give arrays by name, or call the model with them in order: model({', '.join(self._names)})"
            raise InputError(f"run takes a dictionary, not a {type(feeds).__name__}.", fix=fix)
        try:
            values = list(map(feeds.__getitem__, self._names))
        except KeyError:
            values = []
        if len(feeds) != len(self._names) or len(values) != len(self._names):
            values = self._in_order((), feeds)
        found, named = self._invoke(values), {}
        for place, name in enumerate(self._ends):  # a tenth of a short call sooner than a dictionary of a strict zip
            named[name] = found[place]
        return named

    def time(
        self, feeds: Mapping[str, Any], *, iterations: int = 100, warmup: int = 10, duration: float = 0.0
    ) -> Timing:
        """Latency of the compiled code alone, inputs already in place: what trtexec calls compute time.

        Args:
            feeds: inputs by name.
            iterations: calls to measure; more if `duration` (seconds) has not passed by then.
            warmup: calls before measuring.
        """
        instance = self._of_this_thread()
        tensors = self._tensors(
            instance,
            [feeds[n] for n in self._names] if not self._problem_names(feeds) else self._in_order((), feeds),
        )
        main, weights, sync = instance.session.main, self._weights, _synchronise if self._cuda else None

        def call() -> None:
            main(*tensors, *weights)
            if sync:
                sync()

        with refusals(self.manifest.model), running_on(self._cores):
            return measure(call, iterations=iterations, warmup=warmup, duration=duration)

    @overload
    def decoder(self, max_length: int | None = None, *, sequences: None = None, **beside: Any) -> Decoder: ...
    @overload
    def decoder(self, max_length: int | None = None, *, sequences: int, **beside: Any) -> Batch: ...
    def decoder(self, max_length: int | None = None, *, sequences: int | None = None, **beside: Any) -> Decoder | Batch:
        """The model with a state: keys and values of the tokens that it has seen.

        Args:
            max_length: tokens of the longest text; default: as many as the model takes.
            sequences: room for so many texts, which a step goes on with together; default: a decoder of one text.
            beside: what it looks at besides its own text, by the name of the input: an encoder's output, a mask, caches
                of keys and values made of them.

        Raises:
            InputError: the model is no decoder whose caches are kept, does not take so many tokens, or not those of
                several texts; something that it looks at is missing, unknown or does not fit.
        """
        given: Mapping[str, Any] = beside
        if self._artifact.beginning is not None:
            if self._beginning is None:
                self._beginning = Model(self._artifact.beginning, threads=self._threads, cores=self._cores)
            given = begun(self._beginning, self._names, beside, self.manifest.model)
        return Decoder(self, max_length, given) if sequences is None else Batch(self, sequences, max_length, given)

    @property
    def looks_at(self) -> set[str]:
        """The names of all that a decoder may be given, besides its own text."""
        beginning = self._artifact.beginning
        before = {info.name for info in beginning.manifest.inputs} if beginning is not None else set()
        return before | set(self._names)

    def new_session(self) -> Session:
        """A virtual machine that no other call uses."""
        return self._make_instance().session

    def call_in_place(
        self, session: Session, given: Mapping[str, Any], past: int, scores: int, places: Any = None,
        apart: bool = False,
    ) -> Any:  # fmt: skip
        """Call a decoder's code on tensors that are known to fit: the outputs as it returns them.

        Args:
            session: one that no other call uses.
            given: TVM's tensors by the name of the input, caches as buffers. past: how many of their rows are filled.
            scores: of how many of the last tokens scores are wanted.
            places: the text and the position of each token, int64[2, tokens]; default: those of the first text behind
                `past`.
            apart: the tokens are not consecutive ones of one text; no position is `past` plus their number, or more.
        """
        pool.use_threads(self._threads, self._place)
        roles = self.manifest.decoder
        told = numbers(roles, past, int(given[roles.ids].shape[1]), scores, places, apart)
        try:
            with running_on(self._cores):
                return session.main(*(given[name] for name in self._names), *told, *self._weights)
        except Exception as error:
            if refused := refusal(error, self.manifest.model):
                raise refused from None
            raise self._failure(error) from error

    def session(self) -> Session:
        """The virtual machine that all further calls of this thread use, for instruments (profilers)."""
        return self._of_this_thread().session

    def instrumented(self) -> Session:
        """The one that an instrument sees every kernel of: on a GPU, another that makes no CUDA graphs."""
        return Session(self._library, cuda=True, graphs=False) if self._cuda else self.session()

    def arguments(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The TVM tensors that `session().main` takes: inputs, then weights."""
        instance = self._of_this_thread()
        return [*self._tensors(instance, self._in_order((), feeds)), *self._weights]

    def results(self, returned: Any) -> list[Array]:
        """What `session().main` returned, as arrays: the outputs in order."""
        arrays = [from_ffi(returned[i], info) for i, info in enumerate(self._caches.results)]
        self._caches.read(arrays)
        return arrays

    # -- inside ------------------------------------------------------------------------------------------

    def _invoke(self, values: Sequence[Any]) -> list[Array]:
        instance = self._own.instance or self._free_instance()
        pool.use_threads(self._threads, self._place)
        arrays = None
        if self._plain is not None and instance.aliased is not None:  # the first call looks at what the code returns
            try:
                arrays = self._plain(instance.main, values)
            except Exception as error:
                self._fail(instance, error)
        if arrays is None:
            arrays = self._invoke_any(instance, values)
        for index in instance.aliased or ():
            arrays[index] = arrays[index].copy()
        if not instance.owned:
            self._idle.append(instance)
        return arrays

    def _invoke_any(self, instance: _Instance, values: Sequence[Any]) -> list[Array]:
        """The outputs of any model, for whatever can be read as its inputs."""
        tensors = self._tensors(instance, values)
        try:
            if self._cores is None:
                results = instance.main(*tensors, *self._weights)
            else:
                with running_on(self._cores):
                    results = instance.main(*tensors, *self._weights)
        except Exception as error:
            self._fail(instance, error)
        if instance.aliased is None:
            self._check_outputs(results, instance.sizes)
        arrays = [from_ffi(results[i], info) for i, info in enumerate(self._caches.results)]
        if instance.aliased is None:
            instance.aliased = () if self._cuda else self._aliased(arrays, tensors)
        self._caches.read(arrays)
        return arrays

    def _fail(self, instance: _Instance, error: Exception) -> NoReturn:
        """Raise what a call ends in whose code raised an error."""
        if told := refusal(error, self.manifest.model):
            self._idle += [] if instance.owned else [instance]  # its machine stopped between two kernels
            raise told from None
        raise self._failure(error) from error

    def _free_instance(self) -> _Instance:
        """One that no call uses. A call that fails does not give its own back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_instance()

    def _of_this_thread(self) -> _Instance:
        """One that only this thread uses, from now on."""
        instance = self._own.instance
        if instance is None:
            instance = self._own.instance = self._free_instance()
            instance.owned = True
        pool.use_threads(self._threads, self._place)
        return instance

    def _make_instance(self) -> _Instance:
        if self._library is None:
            raise InputError("the model was closed.", where=self.manifest.model, fix="load it again: tvmopt.load")
        if self._cuda and os.getpid() != self._pid:
            raise InputError(
                "the model was loaded on the GPU before this process was forked, and CUDA does not survive a fork.",
                where=self.manifest.model,
                fix="load the model in the child, or start it with multiprocessing.get_context('spawn')",
            )
        count = len(self._inputs)
        return _Instance(Session(self._library, cuda=self._cuda), [None] * count, [None] * count)

    def _tensors(self, instance: _Instance, values: Sequence[Any]) -> list[Any]:
        tensors = []
        checks = self._checks
        if self._open:
            values, checks = self._bound(instance, values)
        for index, (value, (shape, dtype, name)) in enumerate(zip(values, checks, strict=True)):
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = self._convert(values, index)
            if is_direct(value):
                tensors.append(to_ffi(value, name))
                continue
            stage = instance.staging[index]
            if stage is None:
                stage = instance.staging[index] = aligned_empty(self._staged_shapes[index], dtype)
                instance.staged[index] = to_ffi(stage, name)
            if self._open:
                stage = stage.reshape(-1)[: prod(shape)].reshape(shape)
                tensors.append(to_ffi(stage, name))
            else:
                tensors.append(instance.staged[index])
            stage[...] = value
        if self._caches:
            past = instance.sizes[str(self._inputs[self._caches.first].shape[LENGTH_AXIS])]
            tokens, roles = self._tokens(values), self.manifest.decoder
            check_text(roles, dict(zip(self._names, values, strict=True)), past, tokens, self.manifest.model)
            tensors += numbers(roles, past, tokens, tokens)
        return [_to_device(tensor) for tensor in tensors] if self._cuda else tensors

    def _tokens(self, values: Sequence[Any]) -> int:
        """How many tokens a call of a decoder has: of all of them scores are wanted."""
        return int(np.shape(values[self._names.index(self.manifest.decoder.ids)])[1])

    def _bound(
        self, instance: _Instance, values: Sequence[Any]
    ) -> tuple[list[Array], tuple[tuple[Any, Any, str], ...]]:
        """The inputs of open sizes as arrays, and what :meth:`_tensors` compares them with.

        Raises:
            InputError: a wrong shape or dtype - all problems at once; else a size that is out of range, or sizes that
                disagree.
        """
        arrays = []
        for index, (value, info) in enumerate(zip(values, self._inputs, strict=True)):
            if type(value) is not np.ndarray or value.dtype != info.numpy_dtype or not info.fits(value.shape):
                value = self._convert(values, index)
            arrays.append(value)
        shapes = tuple(array.shape for array in arrays)
        instance.sizes = self._open.bind(shapes)
        if self._plain is not None:
            self._fitting.add(shapes)
        self._caches.fill(arrays, instance.sizes)
        return arrays, tuple((array.shape, array.dtype, name) for array, name in zip(arrays, self._taken, strict=True))

    def _aliased(self, outputs: Sequence[Array], tensors: Sequence[Any]) -> tuple[int, ...]:
        """Outputs that lie in an input or a weight (a model can return either): they must be copied every time."""
        given = [
            (t, i) for n, (t, i) in enumerate(zip(tensors, self._inputs, strict=False)) if n not in self._caches.pairs
        ]
        sizes = [prod(t.shape) * i.numpy_dtype.itemsize for t, i in given]
        foreign = [(t.data_ptr(), t.data_ptr() + max(1, n)) for (t, _), n in zip(given, sizes, strict=True)]
        foreign += [(address(w), address(w) + max(1, w.nbytes)) for w in self._arrays]
        shared = []
        for index, output in enumerate(outputs):
            start = address(output)
            if any(a <= start < b for a, b in foreign):
                shared.append(index)
        return tuple(shared)

    # -- an artifact that contradicts itself ------------------------------------------------------------------------

    def _contradiction(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"the artifact contradicts itself: {what}.",
            where=self._artifact.where,
            fix="the file was edited: compile the model again",
        )

    def _failure(self, error: Exception) -> Exception:
        """What to raise for an error of a call: the machine and the kernels compare what they get with their types."""
        if any(word in str(error) for word in ("match_cast", "CheckTensorInfo", "ErrorContext", "on argument #")):
            return self._contradiction(f"its code takes other tensors than its manifest says ({reason(error)})")
        if "bad_alloc" in str(error) or "out of memory" in str(error).lower():
            return InputError(
                "there is not enough memory for the tensors between its kernels.",
                where=self.manifest.model,
                fix="free memory, raise the limit of this process, or compile it with smaller shapes",
            )
        return error

    def _check_outputs(self, results: Sequence[Any], sizes: Mapping[str, int]) -> None:
        found = [f"{result.dtype}{list(result.shape)}" for result in results]
        sizes = {**decided(self._outputs, results), **sizes}
        told = [f"{carrier(info.dtype)}{list(at(info.shape, sizes))}" for info in self._caches.results]
        if found != told:
            raise self._contradiction(f"its code gives {', '.join(found)}, its manifest says {', '.join(told)}")

    # -- wrong input -------------------------------------------------------------------------------------

    def _problem_names(self, feeds: Mapping[str, Any]) -> list[InputError]:
        expected = "; ".join(map(str, self._inputs))
        problems = []
        for name in feeds:
            if name not in self._names:
                lower = {n.lower(): n for n in self._names}
                near = [lower[n] for n in difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.4)]
                what = f"no input is called {name!r}" + (f", did you mean {near[0]!r}?" if near else ".")
                problems.append(InputError(what, where=self.manifest.model, fix=f"the inputs are {expected}"))
        for info in self._inputs:
            if info.name not in feeds:
                problems.append(
                    InputError(
                        f"the input {info} is missing.",
                        where=self.manifest.model,
                        fix=f"the inputs are {expected}",
                    )
                )
        return problems

    def _in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        if len(args) > len(self._names):
            raise InputError(
                f"{len(args)} inputs given, the model takes {len(self._names)}.",
                where=self.manifest.model,
                fix="the inputs are " + "; ".join(map(str, self._inputs)),
            )
        feeds = dict(zip(self._names, args, strict=False))
        twice = sorted(set(feeds) & set(named))
        if twice:
            raise InputError(f"the input {twice[0]!r} is given twice.", where=self.manifest.model, fix="give it once")
        feeds.update(named)
        problems = self._problem_names(feeds)
        if problems:
            raise collect(problems)
        return [feeds[name] for name in self._names]

    def _convert(self, values: Sequence[Any], index: int) -> Array:
        """An array of the right dtype and shape out of what is not one; or every problem of these inputs at once."""
        bound = self.manifest.options.get("shapes", {})
        array = as_array(values[index], self._inputs[index], bound)
        if not isinstance(array, InputError):
            return array
        found = [as_array(value, info, bound) for value, info in zip(values, self._inputs, strict=True)]
        raise collect([problem for problem in found if isinstance(problem, InputError)])


def load(
    path: str | Path,
    *,
    threads: int | None = None,
    mapped: bool = False,
    verify: bool = True,
    target: str | None = None,
    cores: str | int | Iterable[int] | None = None,
) -> Model:
    """Load an artifact. Needs TVM's runtime library only.

    Args:
        path: the file that `tvmopt compile` wrote.
        threads: threads a call; default: see :class:`Model`.
        mapped: map the weights from the file (shared between processes) instead of reading them into huge
            pages.
        verify: check the hashes of library and weights.
        target: of an artifact for a fleet, the name of the target to run; default: the best that this machine can.
            `model.manifest.target` tells which it is, `model.manifest.fleet` what there was.
        cores: the processors that calls run on, as `taskset -c` takes them, or of NUMA nodes: "0-3,8", "node0", or
            numbers. The weights lie in the memory of their nodes, unless they are mapped.

    Raises:
        ArtifactError: damaged, of another version, stripped, or for another machine.
        InputError: the artifact has no such target; this process may not use those cores.
    """
    if threads is not None:
        threads = pool.check_threads(threads, "threads")
    given = parse(cores) if cores is not None else None
    used = threads or (default_threads(pool.MOST, given) if given is not None else 0)
    artifact = artifacts.read(path, mapped=mapped, verify=verify, target=target or "", threads=used, cores=given)
    return Model(artifact, threads=threads, cores=given)


def _to_device(tensor: Any) -> Any:
    module = ffi()
    device = module.device("cuda", 0)
    allocate = module.get_global_func("runtime.TVMTensorAllocWithScope")
    target = allocate(module.Shape(tensor.shape), module.dtype(str(tensor.dtype)), device, None)
    module.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, target)
    return target


def _synchronise() -> None:
    ffi().get_global_func("runtime.Device_StreamSync")(ffi().device("cuda", 0), 0)


__all__ = ["ALIGNMENT", "Model", "load"]
