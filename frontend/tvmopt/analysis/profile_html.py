"""A profile as one HTML file with nothing to load: kernels, roofline, timeline."""

from __future__ import annotations

from html import escape

from tvmopt.analysis.memory import memory_svg
from tvmopt.analysis.profile import Profile
from tvmopt.analysis.roofline import roofline_axes
from tvmopt.analysis.svg import COLOURS, Plot, html_table, page
from tvmopt.texts import threads_of

KERNELS = (
    "<p><small>GFLOP/s: executed, what the roofs limit; by ONNX: the work of the operators' definitions, of "
    "which Winograd executes less. Gain: of the whole model, if the advice works out (Amdahl).</small></p>"
)
BOUND_COLOURS = {"compute": COLOURS[2], "memory": COLOURS[0], "latency": COLOURS[1]}


def roofline_svg(found: Profile) -> str:
    """Every kernel under the roofs: the area of a dot is its share of the time, its colour what bounds it."""
    shown = [k for k in found.kernels if k.flops > 0 and k.bytes > 0 and k.seconds > 0]
    points = [(k.position.intensity, k.flops / k.seconds) for k in shown]
    plot = roofline_axes(found.peaks, points, sorted({k.precision for k in shown}) or (found.precision,))
    for kernel in shown:
        label = (
            f"{kernel.name} ({kernel.family}): {kernel.share:.1%} of the time, "
            f"{kernel.gflops:.1f} GFLOP/s executed, "
            f"{kernel.onnx_gflops:.1f} by ONNX, "
            f"{kernel.position.roof_share:.0%} of its roof ({kernel.precision}), {kernel.position.bound} bound; "
            f"{', '.join(kernel.nodes[:6])}"
        )
        radius = 3 + 22 * kernel.share**0.5
        colour = BOUND_COLOURS[kernel.position.bound]
        plot.dot(kernel.position.intensity, kernel.flops / kernel.seconds, colour, label, radius, 0.55)
    return plot.render()


def timeline_svg(found: Profile) -> str:
    """The run from left to right: a box a call, coloured by what bounds its kernel."""
    by_name = {k.name: k for k in found.kernels}
    end = max((c.start + c.seconds for c in found.calls), default=1e-9)
    plot = Plot((0, end * 1e3), (0, 1), size=(1040, 130), left=20, xlabel="ms", title="timeline of one run", yticks=[])
    for call in found.calls:
        kernel = by_name[call.kernel]
        label = f"{'+'.join(call.nodes) or call.kernel}: {call.seconds * 1e6:.1f} us ({kernel.family})"
        span = (call.start * 1e3, (call.start + call.seconds) * 1e3)
        plot.box(span, (0.1, 0.9), BOUND_COLOURS[kernel.position.bound], label, 0.7)
    return plot.render()


def html(found: Profile) -> str:
    """The file's text."""
    title = f"Profile of {found.model}"
    parts = (f"<h2>{heading}</h2>{text}" for heading, text in sections(found).items())
    return page(title, "\n".join([f"<h1>{escape(title)}</h1>", f"<p>{summary(found)}</p>", *parts]))


def sections(found: Profile) -> dict[str, str]:
    """The page's parts by their headings."""
    legend = ", ".join(f'<b style="color:{colour}">{bound} bound</b>' for bound, colour in BOUND_COLOURS.items())
    peaks = found.peaks
    roofs = (
        f"<p>{legend}; a dot's area is its share of the time. Roofs measured on "
        f"{escape(peaks.machine)} with {threads_of(peaks.threads)} ({peaks.source}).</p>{roofline_svg(found)}"
    )
    return {
        "Roofline": roofs, "One run": timeline_svg(found), "Memory": _memory(found), "Kernels": KERNELS + kernels(found)
    }  # fmt: skip


def kernels(found: Profile) -> str:
    """The table of kernels."""
    header = ("kernel, its ONNX nodes", "schedule", "calls", "time us", "share", "GFLOP/s", "by ONNX",
              "FLOP/B", "of roof", "bound", "gain", "advice")  # fmt: skip
    rows = [
        (
            f"<code>{escape(k.name)}</code><small>{_nodes(k.nodes)}</small>",
            f"{escape(k.family)}<small>{escape(k.source)}</small>", str(k.calls),
            f"{k.seconds * 1e6:.1f}", f"{k.share:.1%}", f"{k.gflops:.1f}", f"{k.onnx_gflops:.1f}",
            f"{k.position.intensity:.1f}", f"{k.position.roof_share:.0%}", k.position.bound,
            f"{k.advice.gain:.2f}x" if k.advice.gain >= 1.005 else "", escape(k.advice.text),
        )
        for k in found.kernels
    ]  # fmt: skip
    return html_table(header, rows, left={0, 1, 11}, wide=11)


def summary(found: Profile) -> str:
    """The paragraph on top."""
    quiet = ", the quickest: the machine was never quiet" if found.disturbed else ", undisturbed"
    rate = found.onnx_flops / found.latency_s / 1e9
    added = (
        f"no run was quiet, the kernels are {found.covered:.1%} of a run with the instrument"
        if found.disturbed
        else f"the kernels account for {found.accounted_s / found.latency_s:.1%}"
    )
    definition = f"{found.onnx_flops / 1e9:.2f} GFLOP by the model's definition ({rate:.0f} GFLOP/s), " if rate else ""
    return (
        f"{escape(found.target)}, {threads_of(found.threads)}: <b>{found.latency_s * 1e3:.3f} ms</b>, "
        f"{definition}{found.flops / 1e9:.2f} GFLOP executed; {added}. "
        f"The {found.instrument} instrument costs {found.overhead}, "
        f"nothing taken off; {found.runs} runs{quiet}."
    )


def _memory(found: Profile) -> str:
    """The plot of activations, and what is alive at the peak."""
    measured = (
        f"the first run made the process grow by {found.measured_bytes / 1e6:.2f} MB at the most "
        "(activations, outputs, kernels' own workspaces); "
        if found.measured_bytes is not None
        else ""
    )
    words = (
        f"Planned: {found.planned_bytes / 1e6:.2f} MB of blocks; {measured}weights, code and all together "
        f"{found.resident_bytes / 1e6:.0f} MB."
    )
    if found.memory is None or found.memory.peak < 0:
        return f"<p>{words}</p>"
    peak = found.memory
    step = found.flow.steps[peak.peak]
    rows = [(escape(t.name), "x".join(map(str, t.shape)), t.dtype, f"{t.bytes / 1e6:.3f}") for t in found.peak_tensors]
    where = ", ".join(found.flow.nodes[n].name if n in found.flow.nodes else n for n in step.nodes)
    return (
        f"<p>{words} Bars: bytes alive in each step, no order of these kernels needs less; line: blocks "
        f"in use and outputs. Weights and inputs are not counted.</p>{memory_svg(found.flow, peak)}"
        f"<p>The peak, {peak.peak_bytes / 1e6:.3f} MB, is in step {peak.peak}, {escape(step.kernel)} "
        f"({escape(where)}). Alive then:</p>{html_table(('tensor', 'shape', 'dtype', 'MB'), rows)}"
    )


def _nodes(nodes: tuple[str, ...]) -> str:
    text = escape(", ".join(nodes[:3]))
    if len(nodes) <= 3:
        return text
    return f'<span title="{escape(", ".join(nodes), quote=True)}">{text}, ... {len(nodes)} in all</span>'
