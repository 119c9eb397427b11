"""The weights of an artifact against those its model compiles to - bit by bit, for `tvmopt compare M.onnx A.tvmopt`.

Lowering the model again gives the same weights in the same order (that is how `refit` works), so a wrong
constant is found exactly, whatever it does to the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmopt.analysis.comparator import Array
from tvmopt.debug.check import Numbers
from tvmopt.debug.files import save, save_inputs
from tvmopt.debug.records import Blame, CompareResult, Constant, Repro, Row, Trace
from tvmopt.errors import ArtifactError, TvmoptError
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import node_name, operator

if TYPE_CHECKING:
    from tvmopt.debug.session import Session


def difference(name: str, nodes: Sequence[str], expected: Any, found: Any, text: str = "") -> Constant | None:
    """How one constant differs from another; None: it does not."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        words = f"{found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"
        return Constant(name, tuple(nodes), found.size, found.size, float("inf"), (), 0.0, 0.0, words)
    raw = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (expected, found)]
    if np.array_equal(raw[0], raw[1]):
        return None
    if expected.dtype.kind not in "fiub":
        return Constant(name, tuple(nodes), 1, expected.size, float("inf"), (), 0.0, 0.0, text)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    error = np.where(np.isnan(error), np.inf, error)
    worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape)) if error.ndim else ()
    different = int((a != b).sum())
    return Constant(
        name,
        tuple(nodes),
        different,
        expected.size,
        float(error[worst]),
        worst,
        float(a[worst]),
        float(b[worst]),
        text,
    )


def explain(session: Session, result: CompareResult, row: Row, trace: Trace | None) -> CompareResult | None:
    """The result with the artifact's wrong weights and a piece that reproduces them; None: they are right."""
    try:
        session.progress("lowering the model again, to compare the weights")
        fresh, wrong = isolated(lambda: _differences(session.settings.other, session.settings.model), "lowering")
    except TvmoptError as error:
        text = f"the artifact's weights could not be compared: {error.what}"
        return replace(result, structure=(*result.structure, text))
    if not wrong:
        return None
    readers = _readers(session, row.label)
    found = [replace(one, nodes=readers.get(int(one.name[1:]), ())) for one in wrong]
    order = {node_name(n): i for i, n in enumerate(session.layers.nodes)}
    found.sort(key=lambda one: min((order.get(n, len(order)) for n in one.nodes), default=len(order)))
    first = found[0]
    inside = {order[n] for n in first.nodes if n in order}
    named = " + ".join(
        f"{node_name(session.layers.nodes[i])} ({operator(session.layers.nodes[i])})" for i in sorted(inside)
    )
    text = (
        f"constant {first.name} of the artifact, read by {named or 'an unknown node'}, is not the model's: "
        f"{first.different} of {first.of} elements differ, by at most {first.largest:.3g}"
    )
    rows = tuple(
        replace(r, status="wrong", message=r.message or text) if r.label == row.label and r.status == "ok" else r
        for r in result.rows
    )
    repro = (
        reproduce(session, inside, {int(one.name[1:]): fresh[int(one.name[1:])] for one in wrong}) if inside else None
    )
    return replace(
        result, rows=rows, constants=tuple(found), repro=repro,
        blame=Blame("constant", named or first.name, text),
    )  # fmt: skip


def _differences(artifact_path: str, model: str) -> tuple[dict[int, Array], list[Constant]]:
    """In a fork: the fresh values of the weights that differ, and how they do.

    Raises:
        ArtifactError: the model compiles to another program today.
    """
    from tvmopt.compiler.driver import Stages, lower
    from tvmopt.compiler.request import request_of
    from tvmopt.runtime.artifact import read
    from tvmopt.tuning.logs import RecordLookup

    artifact = read(artifact_path)
    manifest = artifact.manifest
    request = request_of(manifest, Path(model))
    lowered = lower(request, Stages(), RecordLookup.of_lines(request.machine, manifest.records))
    if lowered.structure != manifest.structure:
        raise ArtifactError("the model compiles to another program than the artifact's.", where=artifact_path)
    fresh: dict[int, Array] = {}
    wrong = []
    for index, ((info, expected), found) in enumerate(zip(lowered.weights, artifact.weights, strict=True)):
        one = difference(f"w{index}", (), np.asarray(expected), np.asarray(found), str(info))
        if one is not None:
            wrong.append(one)
            fresh[index] = np.array(expected)
    return fresh, wrong


def _readers(session: Session, label: str) -> dict[int, tuple[str, ...]]:
    """The ONNX nodes of the kernels that read each weight."""
    from tvmopt.debug.watch import positions

    index = positions(session.layers)
    found: dict[int, tuple[str, ...]] = {}
    for kernel in session.kernels(label):
        names = tuple(node_name(session.layers.nodes[index[n]]) for n in kernel.nodes if n in index)
        for weight in kernel.weights:
            found[weight] = (*found.get(weight, ()), *names)
    return found


def reproduce(session: Session, inside: set[int], fresh: dict[int, Array]) -> Repro | None:
    """The nodes as a model, and beside it its artifact with the wrong weights put in.

    The piece is compiled; each of its weights that has the numbers of a right one of the whole gets those of the wrong
    one.
    """
    best: Repro | None = None
    for count in range(len(inside), 0, -1):  # an activation behind a layer may hide what is wrong with it
        found = _piece(session, set(sorted(inside)[:count]), fresh)
        if found.confirmed:
            return found
        best = best or found
    return _piece(session, inside, fresh) if len(inside) > 1 else best


def _piece(session: Session, inside: set[int], fresh: dict[int, Array]) -> Repro:
    """The files for these nodes."""
    layers = session.layers
    layers.compute(layers.needs(inside), session.progress)
    piece = layers.with_data(layers.piece(inside))
    path = save(piece, session.settings.repro)
    feeds = layers.inputs(piece)
    inputs = save_inputs(feeds, path)
    other = path.with_suffix(".tvmopt")
    try:
        replaced, confirmed = isolated(lambda: _transplant(session, path, feeds, fresh, other), "reproduction")
    except (TvmoptError, RuntimeError):
        replaced, confirmed = 0, False
    nodes = tuple(f"{node_name(n)} ({operator(n)})" for n in piece.graph.node)
    if not replaced:
        return Repro(str(path), str(inputs), nodes)
    command = f"tvmopt compare {path} {other} -i {inputs}{session.settings.flags}"
    return Repro(str(path), str(inputs), nodes, str(other), command, confirmed)


def rearranged(wrong: Array, right: Array, mine: Array) -> Array | None:
    """The wrong weight in the arrangement of `mine`, which holds the numbers of the right one; None if it does not.

    A layer alone may be packed in another order than inside its network, with more or fewer zeros beside its numbers:

    >>> rearranged(np.array([1, 9, 3, 0]), np.array([1, 2, 3, 0]), np.array([[3, 0], [1, 2]]))
    array([[3, 0],
           [1, 9]])
    """
    if mine.dtype != right.dtype:
        return None
    if mine.shape == right.shape and np.array_equal(mine, right):
        return wrong.copy()
    ours, theirs = (np.flatnonzero(array)[np.argsort(array[array != 0], kind="stable")] for array in (mine, right))
    if not len(ours) or not np.array_equal(mine.flat[ours], right.flat[theirs]):
        return None
    moved = mine.copy()
    moved.flat[ours] = wrong.flat[theirs]
    return moved


def _transplant(
    session: Session,
    path: Path,
    feeds: dict[str, Array],
    fresh: dict[int, Array],
    other: Path,
) -> tuple[int, bool]:
    """In a fork: how many weights were replaced, and whether the result is wrong."""
    from tvmopt.compiler.driver import compile_model
    from tvmopt.compiler.request import request_of
    from tvmopt.runtime.artifact import read

    whole = read(session.settings.other)
    manifest = whole.manifest
    artifact, _ = compile_model(replace(request_of(manifest, path), shapes={}))
    weights, replaced = list(artifact.weights), 0
    for index, right in fresh.items():
        for i, mine in enumerate(weights):
            wrong_one = rearranged(np.asarray(whole.weights[index]), right, mine)
            if wrong_one is not None:
                weights[i], replaced = wrong_one, replaced + 1
    if not replaced:
        return 0, False
    pairs = [(w.info, a) for w, a in zip(artifact.manifest.weights, weights, strict=True)]
    wrong = artifact.with_weights(pairs, artifact.manifest)
    wrong.save(other)
    limits = session.settings.limits("")
    check = Numbers(precision=manifest.precision, rtol=limits["rtol"], atol=limits["atol"])
    return replaced, not check.judged(path, feeds, wrong).ok
