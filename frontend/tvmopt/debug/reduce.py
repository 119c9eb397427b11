"""`tvmopt surgeon reduce`: the smallest piece of a model that still fails.

    whole          n1 n2 n3 n4 n5 n6      fails
    end            n1 n2 n3 n4            the earliest tensor with which it fails: bisection, or one by one
    start                n3 n4            the latest start with which it fails
    single nodes         n3 n4            no node can be left out any more

A piece is fed with the values that the reference computed at its borders, not with random ones: a failure that needs
those values stays. A failure of another kind does not count, so the search cannot slide into another bug.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.amounts import check_seed, check_tolerance
from tvmopt.analysis.feeds import arrays_of, completed
from tvmopt.children import Progress
from tvmopt.compiler.request import model_files
from tvmopt.debug.check import Check, Command, Finding, Numbers
from tvmopt.debug.files import save, save_inputs
from tvmopt.debug.graph import needed
from tvmopt.debug.layers import Layers
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, TvmoptError
from tvmopt.files import check_writable
from tvmopt.importer.protos import node_name, operator

MODES = ("bisect", "linear")
SINGLES = 48
"""Pieces up to this size are tried node by node after a bisection."""


@dataclass(frozen=True)
class Reduced:
    """The result of a reduction.

    Attributes:
        path: the smallest failing model; `inputs` the .npz beside it with which it fails.
        nodes: before and after.
        names: the nodes that are left, ``name (Operator)``.
        kind: of the failure (see :class:`tvmopt.debug.check.Finding`); `failure` its message.
        checks, seconds: what it cost.
        confirmed: what was written was checked once more, and fails.
        warning: something the user should know about the check.
    """

    path: str
    inputs: str
    nodes: tuple[int, int]
    names: tuple[str, ...]
    kind: str
    failure: str
    checks: int
    seconds: float
    confirmed: bool = True
    warning: str = ""


def reduce(
    model: str | Path,
    *,
    check: str = "numbers",
    mode: str = "bisect",
    output: str | Path,
    shape: Shapes | None = None,
    inputs: str | Path | None = None,
    seed: int = 0,
    target: str = "cpu",
    precision: str = "fp32",
    rtol: float | None = None,
    atol: float = 0.0,
    fail_regex: str = "",
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> Reduced:
    """Find the smallest piece of a model that still fails, and write it with its inputs.

    Args:
        check: ``"numbers"`` (compile, run, compare with the reference), ``"compile"`` (compile only), or a
            command with ``{model}`` and optionally ``{inputs}``, which fails with a non-zero exit code.
        mode: "bisect" (few checks, assumes that a failure stays when more is kept) or "linear" (every step).
        output: the file to write; inputs go beside it as .npz.
        inputs: an .npz with the model's inputs; else seeded random ones.
        target, precision, rtol, atol: of the built-in checks.
        fail_regex: the command fails where its output matches, whatever the exit code.
        timeout: seconds a check may take; more is a failure.

    Raises:
        InputError: the model does not fail this check, or an argument makes no sense.
    """
    from tvmopt import children

    check_seed(seed)
    check_tolerance(rtol, "--rtol")
    check_tolerance(atol, "--atol")
    if mode not in MODES:
        raise InputError(f"there is no mode {mode!r}.", where="--mode", fix=" or ".join(MODES))
    if check not in ("numbers", "compile"):
        Command(check, fail_regex)
    if inputs and not Path(inputs).is_file():
        raise InputError("cannot read the inputs: no such file.", where=str(inputs), fix="give an .npz of named arrays")
    check_writable(output)
    beside = Path(output).with_suffix(".npz")  # where the inputs go
    check_writable(output, beside, reads=[*model_files(model), *([inputs] if inputs else [])])
    answer = children.call(
        "tvmopt.debug.reduce:in_child",
        {
            "model": str(model), "check": check, "mode": mode, "output": str(output),
            "shape": {k: list(v) for k, v in (shape or {}).items()}, "inputs": str(inputs) if inputs else "",
            "seed": seed, "target": str(target), "precision": precision, "rtol": rtol, "atol": atol,
            "fail_regex": fail_regex, "timeout": timeout,
        },
        progress=progress,
    )  # fmt: skip
    return Reduced(**{**answer, "nodes": tuple(answer["nodes"]), "names": tuple(answer["names"])})


def in_child(
    *, model: str, check: str, mode: str, output: str, shape: dict[str, Any], inputs: str, seed: int,
    target: str, precision: str, rtol: float | None, atol: float, fail_regex: str, timeout: float,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """The child's part: nothing but imports happens in its own process, every check in a fork of it."""
    test: Check
    if check in ("numbers", "compile"):
        test = Numbers(target, precision, rtol, atol, compare=check == "numbers", seconds=timeout)
    else:
        test = Command(check, fail_regex, timeout)
    wants = check == "numbers" or (isinstance(test, Command) and test.wants_inputs)
    progress("reading")
    if isinstance(test, Numbers):
        from tvmopt.debug.forks import warm

        warm()
    with tempfile.TemporaryDirectory(prefix="tvmopt-reduce-") as folder:
        for candidate in candidates(model, shape, strict=check == "numbers"):
            feeds = feeds_of(candidate, inputs, seed) if wants else {}
            layers = Layers(candidate, feeds, Path(tempfile.mkdtemp(dir=folder)))
            search = Search(layers, test, wants, progress)
            first = search.whole()
            if first.fails:
                warning = always_fails(test, Path(folder)) if isinstance(test, Command) else ""
                inside = search.run(mode)
                return asdict(search.result(inside, output)) | {"warning": warning}
    raise InputError(
        "the model does not fail this check: there is nothing to reduce.",
        where=f"{model}, --check {check}",
        fix="give the check, the inputs and the shapes with which it fails",
    )


def always_fails(test: Command, folder: Path) -> str:
    """A warning when the command fails even on a model of one Identity: then it finds nothing about this model."""
    kind = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "nothing", [kind("x", 1, [1])], [kind("y", 1, [1])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "nothing.onnx"
    path.write_bytes(model.SerializeToString())
    found = test(path, model, {"x": np.zeros(1, np.float32)})
    if not found.fails:
        return ""
    return f"the command fails on a model of one Identity too, so it may be the command: {found.text[-300:]}"


def candidates(model: str, shape: Shapes, strict: bool) -> list[onnx.ModelProto]:
    """The model prepared as the importer takes it, and as it is: what fails of the two is reduced."""
    from tvmopt.importer import load, prepare_named

    loaded = load(model)
    if strict:
        return [prepare_named(loaded, shape)]
    try:
        return [loaded, prepare_named(loaded, shape)]
    except TvmoptError:
        return [loaded]


def feeds_of(model: onnx.ModelProto, inputs: str, seed: int) -> dict[str, Any]:
    """The inputs of an .npz file, and seeded ones for those that are not in it.

    Raises:
        InputError: a file that cannot be read; see :func:`tvmopt.analysis.feeds.completed`.
    """
    return completed(model, arrays_of(inputs) if inputs else {}, seed)


class Search:
    """The search over sets of nodes; each set is checked once.

    Args:
        layers: the model on its workbench.
        check: decides.
        wants: whether the check needs values at the borders.
    """

    def __init__(self, layers: Layers, check: Check, wants: bool, progress: Progress | None = None) -> None:
        self.layers, self.check, self.wants = layers, check, wants
        self.progress = progress or (lambda stage: None)
        self.checks, self.start = 0, time.perf_counter()
        self.finding = Finding()
        self._seen: dict[tuple[frozenset[int], tuple[str, ...]], bool] = {}

    def whole(self) -> Finding:
        """The check of the whole model; its kind of failure is the one that is kept."""
        self.progress("checking the whole model")
        self.checks += 1
        self.finding = self.check(self.layers.path, self.layers.model, self.layers.feeds)
        return self.finding

    def fails(self, inside: set[int], outputs: Sequence[str] = ()) -> bool:
        """Whether these nodes alone fail in the same way."""
        key = (frozenset(inside), tuple(outputs))
        if key not in self._seen:
            self._seen[key] = bool(inside) and self._fails(inside, outputs)
        return self._seen[key]

    def _fails(self, inside: set[int], outputs: Sequence[str]) -> bool:
        self.checks += 1
        self.progress(f"check {self.checks}: {len(inside)} of {len(self.layers.nodes)} nodes")
        if self.wants:
            self.layers.compute(self.layers.needs(inside), self.progress)
        piece = self.layers.piece(inside, outputs)
        if not piece.graph.output or not piece.graph.node:
            return False
        try:
            feeds = self.layers.inputs(piece) if self.wants else {}
        except TvmoptError:
            return False
        path = self.layers.write(piece, f"piece{self.checks}.onnx")
        found = self.check(path, piece, feeds)
        path.unlink()
        return found.kind == self.finding.kind

    def run(self, mode: str) -> set[int]:
        """The smallest failing set of nodes found."""
        inside = self.earliest_end(mode)
        inside = self.latest_start(inside, mode)
        if mode == "linear" or len(inside) <= SINGLES:
            inside = self.without_singles(inside)
        return inside

    def earliest_end(self, mode: str) -> set[int]:
        """The ancestors of the first tensor, in order, that fails with everything before it. Bisection looks in front
        of the last output that fails: the model's last tensor may be right where another output is wrong."""
        nodes = self.layers.nodes
        everything = set(range(len(nodes)))

        def fails(last: int) -> bool:
            names = [o for o in nodes[last].output if o]
            return self.fails(set(needed(nodes, names, ())[0]), names)

        outputs = {o.name for o in self.layers.model.graph.output}
        ends = [i for i, node in enumerate(nodes) if outputs.intersection(node.output)] if mode == "bisect" else []
        last = next((i for i in reversed(ends) if fails(i)), len(nodes) - 1)
        found = smallest(last + 1, fails, mode)
        if found is None:  # no single tensor does: it takes several outputs
            return everything
        return set(needed(nodes, [o for o in nodes[found].output if o], ())[0])

    def latest_start(self, inside: set[int], mode: str) -> set[int]:
        """The set without as many of its first nodes as possible."""
        order = sorted(inside)

        def fails(drop: int) -> bool:  # from few nodes to many
            return self.fails(set(order[len(order) - 1 - drop :]))

        found = smallest(len(order), fails, mode)
        return inside if found is None else set(order[len(order) - 1 - found :])

    def without_singles(self, inside: set[int]) -> set[int]:
        """The set after leaving out every node that the failure does not need."""
        changed = True
        while changed:
            changed = False
            for node in sorted(inside):
                if len(inside) > 1 and self.fails(inside - {node}):
                    inside, changed = inside - {node}, True
        return inside

    def result(self, inside: set[int], output: str | Path) -> Reduced:
        """Write the model and its inputs; check what was written once more for its message."""
        piece = self.layers.with_data(self.layers.piece(inside))
        if self.wants:
            self.layers.compute(self.layers.needs(inside))
        path = save(piece, output)
        inputs = str(save_inputs(self.layers.inputs(piece), path)) if self.wants else ""
        final = self.check(path, piece, self.layers.inputs(piece) if self.wants else {})
        nodes = [self.layers.nodes[i] for i in sorted(inside)]
        return Reduced(
            str(path), inputs, (len(self.layers.nodes), len(nodes)),
            tuple(f"{node_name(n)} ({operator(n)})" for n in nodes),
            self.finding.kind, final.text or self.finding.text, self.checks,
            time.perf_counter() - self.start, final.kind == self.finding.kind,
        )  # fmt: skip


def smallest(count: int, fails: Callable[[int], bool], mode: str) -> int | None:
    """The smallest index below `count` that fails.

    Bisection assumes that all larger ones fail too. Where the last does not fail, or what was found does not,
    that was wrong, and every index is tried.

    >>> smallest(10, lambda i: i >= 7, "bisect"), smallest(10, lambda i: i == 3, "linear")
    (7, 3)
    >>> smallest(4, lambda i: i == 1, "bisect"), smallest(3, lambda i: False, "bisect")
    (1, None)
    """
    if mode == "bisect" and count and fails(count - 1):
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) // 2
            if fails(middle):
                high = middle
            else:
                low = middle + 1
        return low
    return next((i for i in range(count) if fails(i)), None)
