"""`tvmopt inspect MODEL|ARTIFACT`: what it is and what it costs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tvmopt.analysis.told import accuracy
from tvmopt.cli.common import escape, human, out, parse_shapes, print_json, progress, table, written
from tvmopt.cli.rendering import fleet
from tvmopt.operators.stored import BYTES, FLOAT, HALF, row_bytes
from tvmopt.texts import threads_of

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    source: Annotated[str, typer.Argument(help="An ONNX file or a compiled file.", metavar="MODEL|ARTIFACT")],
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1x3x224x224", help="Shape of an open input; repeatable.")
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, help="Show the nodes with the most FLOPs; 0: all of them, in graph order.")
    ] = 10,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE.html", help="Write the graph of kernels as one page: what fused into what."),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--timed", help="With --html: time the kernels here, in place of FLOPs.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", help="With --html, for an ONNX file: the machine. Of a file for a fleet: which target."
        ),
    ] = "cpu",
    precision: Annotated[
        str, typer.Option(help="With --html, for an ONNX file: fp32, bf16, fp16, or tf32 (GPUs).")
    ] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """FLOPs, parameters, bytes moved and peak memory of a model, in total, by operator and by node; or what a
    compiled file says of itself. With --html, the compiled graph as a page to look at and search.
    """
    from tvmopt.api import inspect
    from tvmopt.runtime.artifact import is_artifact

    with progress(as_json) as show:
        found = inspect(
            source, shape=parse_shapes(shape or []), html=html, timed=timed, target=target, precision=precision,
            progress=show,
        )  # fmt: skip
    if as_json:
        print_json(found if is_artifact(source) else found.as_dict())
    elif is_artifact(source):
        _artifact(found)
    else:
        _model(found, top)
    if not as_json:
        written(html)


def _artifact(manifest: Any) -> None:
    threads = f", {threads_of(manifest.threads)}" if manifest.kind == "llvm" else ""
    rows = [
        ("model", f"{manifest.model}  sha256 {manifest.model_sha256[:16]}"),
        *((f"input {i}", tensor) for i, tensor in enumerate(manifest.inputs)),
        *((f"output {i}", tensor) for i, tensor in enumerate(manifest.outputs)),
        *_stages(manifest),
        *((f"size {name}", known) for name, known in manifest.symbols.items()),
        *(("only where", condition) for condition in manifest.conditions),
        *(("decoder", line) for line in _decoder(manifest)),
        ("target", f"{manifest.target} ({manifest.kind}, {manifest.mcpu})" + threads),
        ("needs", " ".join(manifest.features) or "-"),
        ("precision", manifest.precision),
        ("library", human(manifest.parts[manifest.library].bytes, "B")),
        (
            "weights",
            "stripped"
            if manifest.stripped
            else f"{human(manifest.weight_bytes, 'B')} in {len(manifest.weights)} tensors",
        ),
        ("made by", ", ".join(f"{name} {number}" for name, number in manifest.versions.items())),
        ("structure", manifest.structure[:16]),
        ("accuracy", accuracy(manifest.accuracy)),
    ]
    for name, text in rows:
        out.print(f"{name:<10} {escape(str(text))}")
    fleet(manifest)


def _stages(manifest: Any) -> list[tuple[str, str]]:
    """What stands before and behind the model in the artifact."""
    found = (("takes", "preprocess"), ("gives", "postprocess"))
    return [
        (word, f"{name}={text}" if name else text)
        for word, option in found
        for name, text in manifest.options.get(option, {}).items()
    ]


def _decoder(manifest: Any) -> list[str]:
    """What is known of a decoder: its caches, and whether they stay where they are."""
    roles = manifest.decoder
    if not roles:
        return []
    first, count = roles.caches[0], len(roles.caches)
    told = f"kept in place{_STORED[roles.kept]}" if roles.in_place else "copied at each call"
    begins = manifest.options.get("beginning", ())
    named = {"tokens": roles.ids, "mask": roles.mask, "positions": roles.positions, "scores": roles.logits}
    return [
        f"{count} caches, {told}: {first.past} -> {first.present}" + (", ..." if count > 1 else ""),
        ", ".join(f"{what} {name}" for what, name in named.items() if name),
        *([f"looks at {'; '.join(begins)}, which is computed once"] if begins else []),
        *([_a_token(manifest)] if roles.in_place else []),
        *(["takes one token at a time: nothing in the model tells the order of several"] if roles.one_token else []),
    ]


_STORED = {FLOAT: "", HALF: " in bfloat16", BYTES: " as bytes with a step each row"}


def _a_token(manifest: Any) -> str:
    """What the caches take for each token of a text."""
    shapes = {info.name: info.shape for info in manifest.inputs}
    caches = [shapes[cache.past] for cache in manifest.decoder.caches]
    size = sum(int(heads) * row_bytes(int(depth), manifest.decoder.kept) for _, heads, _, depth in caches)
    return f"a token's keys and values take {human(size, 'B')}"


def _model(found: Any, top: int) -> None:
    ends = [
        (f"{end} {i}", f"{one.name}: {one.dtype}[{','.join(map(str, one.shape))}]")
        for end, many in (("input", found.inputs), ("output", found.outputs))
        for i, one in enumerate(many)
    ]
    rows = [
        *ends,
        ("work", f"{human(found.flops, 'FLOP')} ({human(found.macs, 'MAC')})"),
        ("parameters", f"{human(found.parameters)} ({human(found.weight_bytes, 'B')})"),
        ("bytes moved, nothing fused", human(found.bytes, "B")),
        ("bytes that must move", human(found.floor_bytes, "B")),
        ("arithmetic intensity", f"{found.intensity:.1f} FLOP/B"),
        ("peak activations", f"{human(found.peak_activation_bytes, 'B')} at {found.peak_op}"),
    ]
    if made := found.quantization:
        data = (
            f", {made.get('samples')} samples, data {str(made.get('data_sha256'))[:16]}" if made.get("samples") else ""
        )
        rows.append(("quantised by", f"{made.get('method')}, {made.get('preset')}{data}"))
        rows.append(("ranges", str(made.get("ranges_sha256"))[:16]))
        rows.append(("left in floats", ", ".join(map(str, made.get("excluded") or ())) or "no layer by request"))
    for name, known in found.symbols.items():
        fixed = str(known).isdigit()  # a range of one value
        told = f"fixed to {known}" if fixed else f"{known}; all figures at {found.sizes[name]}"
        rows.append((f"{'' if fixed else 'open '}size {name}", told))
    table((found.name, ""), rows, left=2)
    out.print()
    total = found.flops or 1.0
    by_type = [
        (kind, n, human(f, "FLOP"), f"{100 * f / total:.1f} %", human(b, "B"))
        for kind, (n, f, b) in found.by_type().items()
    ]
    table(("operator", "nodes", "FLOPs", "share", "bytes"), by_type)
    ops = found.ops if top == 0 else sorted(found.ops, key=lambda op: -op.flops)[:top]
    nodes = [
        (
            op.name,
            op.op_type,
            human(op.flops, "FLOP"),
            human(op.bytes, "B"),
            f"{op.intensity:.1f}",
            "x".join(map(str, op.shape)),
        )
        for op in ops
    ]
    table(
        ("node", "operator", "FLOPs", "bytes", "FLOP/B", "output"),
        nodes,
        left=2,
        title="\nnodes with the most FLOPs" if top else "",
    )
    if found.unknown:
        out.print(f"[yellow]note:[/] left out, shapes unknown: {escape(', '.join(found.unknown[:5]))}")
