"""Two ONNX models on the same inputs: constants that differ, the first layer that does, and its node cut out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.judge import Judge
from tvmopt.debug.constants import difference
from tvmopt.debug.files import save, save_inputs
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Blame, CompareResult, Constant, Layer, Repro, Row, Trace
from tvmopt.debug.session import Session
from tvmopt.errors import InputError, TvmoptError
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import node_name, operator

HOW = "every tensor of both models by the reference runtime"


def compare_models(session: Session, expected: Mapping[str, Array]) -> CompareResult:
    """The second model's outputs, constants and layers against the first's."""
    from tvmopt.importer import load, prepare_named

    settings = session.settings
    session.progress(f"reading {settings.other}")
    other = prepare_named(load(settings.other), settings.shapes, settings.values)
    folder = session.folder / "other"
    folder.mkdir()
    theirs = Layers(other, _feeds(session, other), folder)
    label = Path(settings.other).name
    row = _outputs(session, theirs, expected, label)
    pairs = aligned(session.layers, theirs)
    structure = () if pairs is not None else _structure(session.layers, theirs)
    found = constants(session.layers, theirs, pairs)
    result = CompareResult(
        Path(settings.model).name,
        session.layers.reference,
        {},
        (row,),
        constants=tuple(found),
        structure=structure,
    )
    if row.status == "ok" and not found and not settings.layers:
        return result
    for layers in (session.layers, theirs):
        layers.compute([o for n in layers.nodes for o in n.output if o], session.progress)
    trace = _trace(session, theirs, pairs, label)
    result = replace(result, traces=(trace,), nonfinite=session.nonfinite(True))
    return _explained(session, theirs, pairs, result, trace) if settings.bisect else result


def _feeds(session: Session, other: onnx.ModelProto) -> dict[str, Array]:
    """The first model's inputs for the second: by name, or in order.

    Raises:
        InputError: the inputs do not fit.
    """
    specs = [v for v in other.graph.input]
    mine = dict(session.feeds)
    if {v.name for v in specs} <= mine.keys():
        return {v.name: mine[v.name] for v in specs}
    if len(specs) == len(mine):
        return {v.name: a for v, a in zip(specs, mine.values(), strict=True)}
    raise InputError(
        "the two models have different inputs.", where=f"{sorted(mine)} and {sorted(v.name for v in specs)}",
        fix="compare models with the same inputs",
    )  # fmt: skip


def _outputs(session: Session, theirs: Layers, expected: Mapping[str, Array], label: str) -> Row:
    """The second model's outputs, by name, or in order where the names differ."""
    from tvmopt.analysis.verify import run_reference

    try:
        name, (found,) = isolated(lambda: run_reference(theirs.path, [theirs.feeds]), "reference run", label)
    except TvmoptError as error:
        return Row(label, "failed", error.what)
    if set(found) != set(expected) and len(found) == len(expected):
        found = dict(zip(expected, found.values(), strict=True))
    settings = session.settings
    compared = Judge(session.model, "fp32", settings.rtol, settings.atol).judged(session.feeds, found, expected)
    return Row(
        label,
        "ok" if compared.ok else "wrong",
        "" if compared.ok else str(compared),
        {"engine": name},
        compared.outputs,
    )


def aligned(mine: Layers, theirs: Layers) -> dict[int, int] | None:
    """Index of a node of the first model -> of the second, where both have the same operators in the same order.

    Tensors may then have other names. None: the graphs differ.
    """
    if [n.op_type for n in mine.nodes] != [n.op_type for n in theirs.nodes]:
        return None
    if any(
        len(a.output) != len(b.output) or len(a.input) != len(b.input)
        for a, b in zip(mine.nodes, theirs.nodes, strict=True)
    ):
        return None
    return {i: i for i in range(len(mine.nodes))}


def _structure(mine: Layers, theirs: Layers) -> tuple[str, ...]:
    """How the sequences of operators differ, in words."""
    a, b = [n.op_type for n in mine.nodes], [n.op_type for n in theirs.nodes]
    found = [f"the models have {len(a)} and {len(b)} nodes"]
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            names = [node_name(n) for n in mine.nodes[i:j][:3]], [node_name(n) for n in theirs.nodes[k:m][:3]]
            found.append(
                f"{tag} at node {i}: {' '.join(a[i:j]) or '-'} {names[0]} -> {' '.join(b[k:m]) or '-'} {names[1]}"
            )
    return tuple(found[:12])


def constants(mine: Layers, theirs: Layers, pairs: Mapping[int, int] | None) -> list[Constant]:
    """Initialisers that differ, in the order of the nodes that read them."""
    a = {t.name: t for t in mine.with_data(mine.model).graph.initializer}
    b = {t.name: t for t in theirs.with_data(theirs.model).graph.initializer}
    readers: dict[tuple[str, str], list[str]] = {}
    if pairs is not None:
        for i, j in pairs.items():
            for x, y in zip(mine.nodes[i].input, theirs.nodes[j].input, strict=True):
                if x in a and y in b:
                    readers.setdefault((x, y), []).append(node_name(mine.nodes[i]))
    else:
        for node in mine.nodes:
            for name in node.input:
                if name in a and name in b:
                    readers.setdefault((name, name), []).append(node_name(node))
    found = []
    for (x, y), nodes in readers.items():
        one = difference(x, nodes, numpy_helper.to_array(a[x]), numpy_helper.to_array(b[y]))
        if one is not None:
            found.append(one)
    return found


def _trace(session: Session, theirs: Layers, pairs: Mapping[int, int] | None, label: str) -> Trace:
    """Tensors of both models, by position or by name."""
    places: dict[str, int] = {}
    found: dict[str, Array] = {}
    for i, node in enumerate(session.layers.nodes):
        others = theirs.nodes[pairs[i]].output if pairs is not None else node.output
        for name, other in zip(node.output, others, strict=True):
            array = theirs.value(other) if name else None
            if array is not None:
                places[name], found[name] = i, np.asarray(array)
    compared = session.tensors(found)
    layers = []
    for name, one in compared.items():
        node = session.layers.nodes[places[name]]
        status = "ok" if one.ok else "differs"
        layers.append(Layer(places[name], node_name(node), operator(node), name, status, one, nodes=(node_name(node),)))
    first = next((k for k, layer in enumerate(layers) if layer.status == "differs"), None)
    return Trace(label, HOW, tuple(layers), first)


def _explained(
    session: Session, theirs: Layers, pairs: Mapping[int, int] | None, result: CompareResult, trace: Trace
) -> CompareResult:
    """The node to blame, and its two versions as models: the first model's and the second's."""
    order = {node_name(n): i for i, n in enumerate(session.layers.nodes)}
    culprit = trace.culprit
    index = culprit.index if culprit else None
    named = next(
        (c for c in result.constants if index is None or node_name(session.layers.nodes[index]) in c.nodes),
        None,
    )
    if index is None and named is not None:
        index = order[named.nodes[0]]
    if index is None:
        return result
    node = session.layers.nodes[index]
    words = f"{node_name(node)} ({operator(node)})"
    if named is not None:
        text = (
            f"constant {named.name!r} of {words} differs: {named.different} of {named.of} elements, "
            f"by at most {named.largest:.3g} at {list(named.worst)} "
            f"({named.expected:.6g} and {named.found:.6g})"
        )
        blame = Blame("constant", words, text)
    else:
        blame = Blame(
            "node",
            words,
            f"{words} is the first whose result differs; its constants do not: its attributes or inputs do",
        )
    j = pairs[index] if pairs is not None else _same_output(theirs, node)
    repro = _repro(session, theirs, index, j) if j is not None else None
    return replace(result, blame=blame, repro=repro)


def _same_output(theirs: Layers, node: onnx.NodeProto) -> int | None:
    return next((j for j, n in enumerate(theirs.nodes) if set(n.output) & set(node.output)), None)


def _repro(session: Session, theirs: Layers, i: int, j: int) -> Repro | None:
    """One node of each model with the first model's values at its inputs."""
    mine = session.layers
    good, bad = mine.with_data(mine.piece({i})), theirs.with_data(theirs.piece({j}))
    feeds = mine.inputs(good)
    if len(bad.graph.input) != len(good.graph.input):
        return None
    path = save(bad, session.settings.repro)
    expected = save(good, path.with_name(f"{path.stem}.expected.onnx"))
    inputs = save_inputs(feeds, path)
    theirs_feeds = {v.name: a for v, a in zip(bad.graph.input, feeds.values(), strict=True)}

    def differ() -> bool:
        from tvmopt.analysis.verify import run_reference

        _, (a,) = run_reference(expected, [feeds])
        _, (b,) = run_reference(path, [theirs_feeds])
        b = dict(zip(a, b.values(), strict=True))
        return not Judge(good, **session.settings.limits("")).judged(feeds, b, a).ok

    command = f"tvmopt compare {expected} {path} -i {inputs}{session.settings.flags}"
    return Repro(
        str(path), str(inputs), (f"{node_name(theirs.nodes[j])} ({operator(theirs.nodes[j])})",),
        str(expected),
        command, bool(isolated(differ, "reproduction")),
    )  # fmt: skip
