"""The child's part of verification: a compiled model and the references on the same inputs - for `verify.py`.

What needs no artifact comes first: it is done while the model is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt import children
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.comparator import Array
from tvmopt.analysis.examine import Examined, Examiner, Rerun
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.metrics import metrics
from tvmopt.analysis.oracle.values import Unsupported
from tvmopt.analysis.rounds import may_round
from tvmopt.analysis.samples import described, trial_inputs, trials
from tvmopt.analysis.verify import REFERENCE, Reference, Trial, broken, distinct, peers_of
from tvmopt.dims import near
from tvmopt.errors import InputError
from tvmopt.importer.protos import dtype_name, subgraphs
from tvmopt.operators.stored import FLOAT
from tvmopt.runtime.draft import read_candidate
from tvmopt.runtime.library import ffi
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.sizes import info_at
from tvmopt.runtime.tensors import TensorInfo, from_plain
from tvmopt.targets.memory import give_back
from tvmopt.toolchain.emulation import EmulatedModel, opened

OPEN = 0.5
"""Seconds by :func:`seconds_of` at open sizes other than the named ones, at the most: larger sizes are halved for it.
The judge's other runs, onnxruntime and the compiled model together take two to five times as long."""

PRODUCTS, REPEATED, BYTES = 2e10, 4e9, 2e9
"""What float64 does in a second: FLOPs of products, FLOPs of a recurrent layer, which reads its weights in each step,
and bytes of float32 that other nodes read and write."""

NODE = 5e-5
"""Seconds of a node of a loop's body, however small: loops have thousands of trips."""

RECURRENT = {"LSTM": 20, "DynamicQuantizeLSTM": 40, "GRU": 20, "RNN": 5}
"""Of how many nodes a step of such a layer takes the time."""

SPECTRUM = 3e-10
"""Seconds that onnxruntime takes for a product of a transform, which it computes as the sum that defines it."""

WALK = 2e-7
"""Seconds of a comparison in a tree: those of all rows and trees are gathered from memory, down to the deepest leaf."""

JUDGED = 6e-8
"""Seconds of comparing a number of an output: it is read some thirty times."""

FORESEEN = 1 << 27
"""Numbers in a model's weights up to which onnxruntime may run it before the importer has said what its inputs are, and
up to which it may be there for two sets of sizes at once."""

FLOATS = ("float32", "float16", "float64")
"""Types of inputs whose values no bounds limit."""

LARGE = 2e11
"""FLOPs above which float64 takes too long: such a model is compared with onnxruntime first."""

EMULATED = 1e9
"""FLOPs above which a run takes seconds in an emulator: then one set of inputs is tried."""

ROUNDED = 2e10
"""FLOPs above which one set of inputs is tried of a decoder that rounds its caches: onnxruntime does not, so that each
set takes some runs in float64."""


@dataclass(frozen=True)
class Peers:
    """Inputs to try, and what onnxruntime makes of them.

    Attributes:
        infos: of the inputs. feeds: by seed. name: onnxruntime's, "" if it refuses the model. peers: its outputs by
            seed.
    """

    infos: list[TensorInfo]
    feeds: dict[int, dict[str, Array]]
    name: str
    peers: dict[int, dict[str, Array]]


@dataclass(frozen=True)
class Sampled(Peers):
    """The same at some sizes.

    Attributes:
        prepared: the model at these sizes, as the importer prepares it. flops: of a run.
    """

    prepared: Any
    flops: float


class Checked:
    """The ONNX file, for the child.

    Args:
        apart: see :class:`Verification`.

    Attributes:
        operators: what the importer converts, as the parent says it; to ask it would load TVM's compiler, which takes
            seconds.
        weights: the numbers in each.
    """

    def __init__(self, model: str, progress: Callable[[str], None], apart: bool = False) -> None:
        from tvmopt.importer import load

        self.model, self.progress, self.apart = model, progress, apart
        self.operators: set[tuple[str, str]] = set()
        self.original = load(model, mapped=True)
        self.guess: Peers | None = None
        self.weights = {t.name: math.prod(t.dims) for t in self.original.graph.initializer}
        self._kept: tuple[dict[str, list[int]], Any] | None = None

    def bound(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """The arrays of the inputs that were bound."""
        from tvmopt.importer.shapes import bound_arrays

        return dict(bound_arrays(self.original.graph, values))

    def prepared(self, infos: Sequence[TensorInfo], values: Mapping[str, Array], keep: bool = False) -> Any:
        """The model as the importer prepares it for static inputs.

        Args:
            keep: it, if it is small and the first one, until it is asked for again: large models prepare for seconds.
        """
        from tvmopt.importer import prepare
        from tvmopt.importer.protos import normal_domain

        shapes = {info.name: list(info.shape) for info in infos}
        if self._kept is not None and self._kept[0] == shapes:
            made, self._kept = self._kept[1], None
            return made
        made = prepare(
            self.original, shapes, values, has_converter=lambda *key: (normal_domain(key[0]), key[1]) in self.operators
        )
        if keep and self._kept is None and sum(self.weights.values()) <= FORESEEN:
            self._kept = shapes, made
        return made

    def foresee(self, shapes: Mapping[str, Any]) -> None:
        """Run onnxruntime on what will most likely be the inputs, while the parent loads TVM and imports the model.

        The file alone tells them where all are floats of known sizes: of integers the bounds are found later.

        Args:
            shapes: that were asked for.
        """
        given = [i for i in self.original.graph.input if i.name not in self.weights]
        infos = [info for i in given if (info := floats_of(i, shapes.get(i.name))) is not None]
        if infos and len(infos) == len(given) and sum(self.weights.values()) <= FORESEEN:
            self.guess = self._peers(infos, {seed: trial_inputs(infos, seed) for seed in trials(infos)}, {})
            give_back()

    def _peers(self, infos: list[TensorInfo], feeds: dict[int, dict[str, Array]], values: Mapping[str, Array]) -> Peers:
        self.progress(REFERENCE)
        return Peers(infos, feeds, *peers_of(self.model, feeds, values, self.apart))

    def rerun(self, values: Mapping[str, Array]) -> Rerun | None:
        """onnxruntime on other inputs, which is loaded when it is first asked; None where it has ended the process.

        Args:
            values: of the inputs that were bound.
        """
        session = cache(partial(Reference, self.model))
        return None if self.apart else lambda feeds: session().run({**feeds, **values})

    def sampled(
        self, infos: list[TensorInfo], values: Mapping[str, Array], most: float = math.inf, few: bool = False,
        keep: bool = False,
    ) -> Sampled:  # fmt: skip
        """Inputs to try, and onnxruntime's outputs.

        Args:
            most: FLOPs of a run above which one seed is enough. few: whether it is in any case. keep: see `prepared`.
        """
        prepared = self.prepared(infos, values, keep)
        flops = float(metrics(prepared).flops)
        seeds = (0,) if few or flops > most else trials(infos)
        found, self.guess = self.guess, None
        if found is None or values or found.infos != infos or tuple(found.feeds) != tuple(seeds):
            bounds = integer_bounds(prepared)
            found = self._peers(infos, {seed: trial_inputs(infos, seed, bounds) for seed in seeds}, values)
        return Sampled(infos, found.feeds, found.name, found.peers, prepared, flops)


def floats_of(given: onnx.ValueInfoProto, asked: Any) -> TensorInfo | None:
    """An input of floats whose sizes are known, by the file or as they were `asked` for; None where it is another."""
    kind = given.type.tensor_type
    sizes = [d.dim_value for d in kind.shape.dim] if asked is None else asked
    known = kind.elem_type != onnx.TensorProto.UNDEFINED and all(isinstance(size, int) and size > 0 for size in sizes)
    dtype = dtype_name(kind.elem_type) if known else ""
    return TensorInfo(given.name, tuple(sizes), dtype) if dtype in FLOATS else None


def warm() -> None:
    """In a child that was started ahead: import what every model needs, besides this module."""
    import onnxruntime  # noqa: F401

    import tvmopt.importer  # noqa: F401


def in_child(
    model: str, rtol: float | None, apart: bool, shapes: Mapping[str, Any] | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The child's part: both runs on every seed, compared, at each of some open sizes. Returns plain data.

    Its parent sends two messages: what is known of the inputs before there is an artifact (see
    :meth:`Verification.begin`), then the artifact.
    """
    checked = Checked(model, progress, apart)
    if shapes is not None:
        checked.foresee(shapes)
    told = children.receive()
    early = bool(told["inputs"])
    checked.operators = {(domain, name) for domain, name in told["operators"]}
    ahead, judge = None, None
    if early:
        infos = [TensorInfo(i["name"], tuple(i["shape"]), i["dtype"]) for i in told["inputs"]]
        ahead = checked.sampled(infos, checked.bound({n: from_plain(v) for n, v in told["values"].items()}), keep=True)
        judge = Judge(ahead.prepared, told["precision"], rtol)
        # which rows are rounded to 8 bits is not known yet
        if not (ahead.flops > LARGE and 0 in ahead.peers) and not any(map(may_round, ahead.prepared.graph.node)):
            judge.foresee(ahead.feeds[0])
    if early:
        ffi()  # the compiled model will ask for TVM's runtime
    loaded = read_candidate(children.receive())  # its parent wrote it just now
    manifest = loaded.manifest
    values = checked.bound(manifest.values)
    compiled = opened(loaded)
    emulated = isinstance(compiled, EmulatedModel)
    most = EMULATED if emulated else ROUNDED if manifest.decoder.kept != FLOAT else math.inf
    found: list[Trial] = []
    name, rerun = "", checked.rerun(values)

    def at(sizes: dict[str, int]) -> list[TensorInfo]:
        return [info_at(info, sizes) for info in manifest.inputs]

    named = {name: known.opt for name, known in manifest.symbols.items()}

    def seconds_at(sizes: dict[str, int]) -> float:
        return seconds_of(checked.prepared(at(sizes), values, keep=sizes == named and ahead is None))

    for index, sizes in enumerate(sizes_to_try(manifest, seconds_at)):
        if ahead is None or ahead.infos != at(sizes) or emulated:
            ahead = judge = None  # what was made at other sizes is freed first
            give_back()
            ahead = checked.sampled(at(sizes), values, most, few=index > 0)
        name = name or ahead.name
        progress("running the compiled model")
        try:
            examiner = Examiner(compiled, model, ahead.prepared, rtol, judge=judge, rerun=rerun, brief=True)
            name = "" if examiner.keeps else name
            for seed, done in examined(examiner, ahead, progress):
                found.append(Trial(seed, done.comparison, done.kernel, done.compared, done.reference, sizes))
        except Unsupported as error:
            return {"trials": [], "reference": "", "reason": f"no reference can run the model: {error}"}
        del examiner
        if found and not found[-1].comparison.ok:
            break
    if not found:
        return {"trials": [], "reference": "", "reason": "no inputs of its own suit the model"}
    exact = any(t.reference == "float64" for t in found)
    reference = " and ".join(filter(None, ("float64" if exact else "", name)))
    emulator = compiled.emulator.told if isinstance(compiled, EmulatedModel) else ""
    return {"trials": [asdict(t) for t in found], "reference": reference, "reason": "", "emulator": emulator}


def seconds_of(prepared: onnx.ModelProto) -> float:
    """How long a reference takes for a run, roughly: float64, or onnxruntime where that takes longer. The outputs are
    compared, too: of a small network with a large one that takes longer still."""
    known = {t.name: t for t in prepared.graph.initializer}
    seconds = NODE * nodes_in_loops(prepared.graph.node, known)
    for op in metrics(prepared).ops:
        if op.op_type in RECURRENT:
            steps = math.prod(op.shape[:2])  # of both directions
            seconds += op.flops / REPEATED + NODE * RECURRENT[op.op_type] * steps
        else:
            seconds += 2 * op.macs / PRODUCTS + op.bytes / BYTES
        if op.op_type.startswith("TreeEnsemble"):
            seconds += WALK * op.flops
        if op.op_type in ("DFT", "STFT"):
            seconds += SPECTRUM * math.prod(op.shape) * 2 * op.shape[-2]
    outputs = (o.type.tensor_type.shape.dim for o in prepared.graph.output)
    return seconds + JUDGED * float(sum(math.prod(max(1, d.dim_value) for d in dims) for dims in outputs))


def nodes_in_loops(nodes: Sequence[onnx.NodeProto], known: Mapping[str, onnx.TensorProto]) -> int:
    """How many nodes a run evaluates in the bodies of loops whose trips are `known` constants."""
    total = 0
    for node in nodes:
        inner = sum(len(graph.node) + nodes_in_loops(graph.node, known) for graph in subgraphs(node))
        if node.op_type == "Loop" and node.input[0] in known:
            inner *= int(numpy_helper.to_array(known[node.input[0]]).reshape(-1)[0])
        total += inner
    return total


def sizes_to_try(manifest: Manifest, seconds: Callable[[dict[str, int]], float]) -> list[dict[str, int]]:
    """Open sizes to verify: the named ones, the smallest, the largest that :data:`OPEN` allows, and some between.

    Args:
        seconds: of one run at some sizes.
    """
    ranges, conditions = manifest.symbols, manifest.conditions
    if not ranges:
        return [{}]
    named = {name: known.opt for name, known in ranges.items()}
    largest = {name: known.max for name, known in ranges.items()}
    if largest != named and seconds(named) > OPEN:
        largest = named
    power, before, halvings = float(len(ranges)), 0.0, 1
    while any(largest[n] > max(r.min, r.opt) for n, r in ranges.items()) and (taken := seconds(largest)) > OPEN:
        power = max(0.5, math.log2(before / taken) / halvings) if before > taken else power
        before, halvings = taken, max(1, int(math.log2(taken / OPEN) / power))  # to ask means to prepare the model
        largest = {
            name: max(size >> halvings, ranges[name].min, min(size, ranges[name].opt)) for name, size in largest.items()
        }
    generator = np.random.default_rng(0)
    between = {n: int(generator.integers(r.min, largest[n] + 1)) for n, r in ranges.items()}
    # a size of which nothing larger than the smallest is allowed is tried at one more: what works for one picture only
    # would have passed
    between |= {n: min(r.min + 1, r.max) for n, r in ranges.items() if largest[n] == r.min}
    wanted = [named, {n: r.min for n, r in ranges.items()}, largest, between]
    return [s for s in distinct(near(one, ranges, conditions, up=i == 1) for i, one in enumerate(wanted)) if s]


def examined(examiner: Examiner, sampled: Sampled, progress: Callable[[str], None]) -> list[tuple[int, Examined]]:
    """What is found with each seed, in their order, until something is wrong; those are left out that an engine
    refuses. While the kernels are compared that ran with the first one, the others run."""

    def found(seeds: Iterable[int], meanwhile: Callable[[], None] | None = None) -> list[tuple[int, Examined]]:
        results = []
        for seed in seeds:
            progress(f"comparing with {described(seed)}")
            peer = sampled.peers.get(seed)
            done = examine(examiner, seed, sampled.feeds[seed], peer, sampled.flops > LARGE, meanwhile)
            results += [(seed, done)] if done is not None else []
            if done is not None and not done.ok:
                break
        return results

    first, *others = sampled.feeds
    started: list[Future[list[tuple[int, Examined]]]] = []
    with ThreadPoolExecutor(1) as aside:
        results = found([first], lambda: started.append(aside.submit(found, others)))
        if results and not results[-1][1].ok:
            return results
        return results + (started[0].result() if started else found(others))


def examine(
    examiner: Examiner, seed: int, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None, large: bool,
    meanwhile: Callable[[], None] | None = None,
) -> Examined | None:  # fmt: skip
    """One seed: the first in full, the others by onnxruntime where that is enough; None where an engine refuses it."""
    try:
        if seed == 0 and not (large and peer is not None):
            return examiner.fully(feeds, peer, meanwhile)
        if broken(feeds):
            return examiner.hostile(feeds, peer)
        if seed > 1 and peer is None:  # onnxruntime refuses these inputs
            return None
        return examiner.quickly(feeds, peer)
    except InputError:  # such inputs divide by zero, or lead out of a tensor: the compiled model says so
        return None
