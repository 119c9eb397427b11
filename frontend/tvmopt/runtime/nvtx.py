"""Ranges with ONNX names around every kernel, for NVIDIA Nsight Systems:

    nsys profile -t cuda,nvtx tvmopt run model.tvmopt --nvtx --print-time

A range is opened on the CPU thread before a kernel is launched and closed after; Nsight shows the kernel under
it. Nothing waits for the GPU. Without a profiler attached a range costs some hundred nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tvmopt.errors import MissingDependency
from tvmopt.runtime.model import Model

DOMAIN = "tvmopt"


def load_nvtx() -> Any:
    """The `nvtx` package.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import nvtx
    except ImportError as error:
        raise MissingDependency("NVTX ranges need the package nvtx.", where="--nvtx", fix="pip install nvtx") from error
    return nvtx


class Labels:
    """What to call the n-th call of each kernel of a run: its ONNX nodes, then its symbol."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.sites = {k["name"]: [tuple(site) for site in k["nodes"]] for k in report.get("kernels", ())}
        nodes = report.get("flow", {}).get("nodes", {})
        self.names = {key: node["name"] for key, node in nodes.items()}
        self.seen: dict[str, int] = {}

    def next(self, symbol: str) -> str:
        """The label of the next call of a kernel; after the last call site comes the next run's first."""
        sites = self.sites.get(symbol)
        if not sites:
            return symbol
        index = self.seen.get(symbol, 0)
        self.seen[symbol] = index + 1
        nodes = sites[index % len(sites)]
        return f"{' + '.join(self.names.get(n, n) for n in nodes)} [{symbol}]"


def instrument(labels: Labels, nvtx: Any) -> Callable[..., int]:
    """What TVM's virtual machine calls around each kernel."""

    def around(function: Any, symbol: str, before: bool, result: Any, *arguments: Any) -> int:
        if before:
            nvtx.push_range(labels.next(symbol), domain=DOMAIN)
        else:
            nvtx.pop_range(domain=DOMAIN)
        return 0

    return around


@contextmanager
def ranges(model: Model) -> Iterator[None]:
    """Every kernel that this thread's calls of the model launch is inside a range.

    Raises:
        MissingDependency: the package nvtx is not installed.
    """
    nvtx = load_nvtx()
    session = model.session()
    session.set_instrument(instrument(Labels(model.manifest.report), nvtx))
    nvtx.push_range(model.manifest.model, domain=DOMAIN)
    try:
        yield
    finally:
        nvtx.pop_range(domain=DOMAIN)
        session.set_instrument(None)
