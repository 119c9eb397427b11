"""Tasks: the kernels that `compile` would build, each once, weighted by what they cost - for `tvmopt tune`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tvmopt.scheduling.cuda_tile import tensor_rate
from tvmopt.scheduling.family import Space
from tvmopt.targets import Machine
from tvmopt.tuning.effort import Kernel
from tvmopt.tuning.record import Candidate, Key, key_of, shape_words

if TYPE_CHECKING:
    from tvmopt.pipeline import Lowered


@dataclass(frozen=True)
class Task:
    """One kernel to tune.

    Attributes:
        name: of the PrimFunc; several kernels of a model with the same workload are one task: `names`.
        space: its family's knobs, the analytic point first.
        kernel: what a worker needs.
        weight: calls in one inference, all its kernels together.
        nodes: ONNX nodes, one tuple a call.
        flops, bytes: of one call.
        floor: seconds that no schedule can beat: the larger of flops / peak and bytes / L2 bandwidth.
        features: numbers of the shape, for the cost model.
    """

    name: str
    key: Key
    space: Space
    kernel: Kernel
    weight: float = 1.0
    shape: str = ""
    nodes: tuple[tuple[str, ...], ...] = ()
    flops: float = 0.0
    bytes: float = 0.0
    floor: float = 0.0
    features: dict[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @property
    def analytic(self) -> Candidate:
        return Candidate(self.space.analytic)


def extract(lowered: Lowered, machine: Machine) -> list[Task]:
    """The tasks of a lowered module, the most expensive first. Kernels with nothing to choose are left out.

    The estimate of a kernel's time, until it is measured, is its floor, and twice that where no family claims it.
    """
    from tvmopt.scheduling.discover import families
    from tvmopt.scheduling.normalize import normalize

    constants, outputs = call_sites(lowered.unscheduled)
    found: dict[Key, Task] = {}
    for kernel in lowered.kernels:
        family = next((f for f in families(machine.kind) if kernel.family == f.NAME), None)
        func = lowered.unscheduled[kernel.name]
        if family is None or func.attrs.get("tirx.is_scheduled", False):
            continue
        func = normalize(func, machine)
        shape = family.recognise(func, machine)
        space, key = family.knobs(shape, machine), key_of(func, family, machine)
        module = packed(func, constants.get(kernel.name, ()), outputs.get(kernel.name, 1))
        inner = unpacked(module, key, machine, space.analytic)
        least = floor(kernel.flops, kernel.bytes, machine, getattr(shape, "dtype", ""), kernel.precision)
        task = Task(
            kernel.name, key, space, inner, kernel.calls, shape_words(shape), kernel.nodes, kernel.flops,
            kernel.bytes, least, _numbers(shape), (kernel.name,),
        )  # fmt: skip
        found[key] = _joined(found[key], task) if key in found else task
    return sorted(found.values(), key=lambda t: -t.weight * t.floor)


def packed(func: Any, constants: tuple[int, ...], outputs: int) -> str:
    """A workload as text, TVM's JSON of a module: what a worker gets, and what the store keeps of it."""
    import tvm

    func = func.with_attrs({"global_symbol": "main", "tvmopt.constants": list(constants), "tvmopt.outputs": outputs})
    return str(tvm.ir.save_json(tvm.IRModule({"main": func})))


def unpacked(module: str, key: Key, machine: Machine, analytic: dict[str, int]) -> Kernel:
    """What a worker needs, from a workload as text."""
    import tvm

    attrs = tvm.ir.load_json(module)["main"].attrs
    constants = tuple(int(i) for i in attrs["tvmopt.constants"])
    return Kernel(key.workload, module, key.family, machine, constants, int(attrs["tvmopt.outputs"]), analytic)


def _joined(first: Task, second: Task) -> Task:
    return replace(
        first,
        weight=first.weight + second.weight,
        nodes=first.nodes + second.nodes,
        names=first.names + second.names,
    )


BYTES_A_WORD = 4
"""Bytes in the place of a float32."""


def floor(flops: float, nbytes: float, machine: Machine, dtype: str = "", precision: str = "") -> float:
    """Seconds: arithmetic at peak, or bytes at the rate of L2 on all cores, whichever is longer.

    Args:
        dtype: of a product's operands on a GPU. Its peak is taken as twice what `mma.sync` reaches: what tensor
            cores do from Hopper on, and no schedule beats.
        precision: ``"int8"`` for products of bytes, of which an instruction of a CPU does four times as many.
    """
    rate, peak = machine.cores * machine.ghz * 1e9 * machine.l2_rate, machine.peak_flops
    if machine.kind == "llvm" and precision == "int8":
        peak *= BYTES_A_WORD
    if machine.kind == "cuda" and dtype:
        peak = 2 * 2 * tensor_rate(machine, dtype) * machine.cores * machine.ghz * 1e9
    return float(max(flops / peak, nbytes / rate))


def call_sites(module: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """For each kernel: which parameters are constants at every call, and how many are outputs."""
    from tvm import relax

    constants: dict[str, set[int]] = {}
    outputs: dict[str, int] = {}

    def visit(node: Any) -> None:
        if not isinstance(node, relax.Call) or getattr(node.op, "name", "") != "relax.call_tir":
            return
        name, arguments = node.args[0].name_hint, list(node.args[1])
        indices = {i for i, a in enumerate(arguments) if _is_constant(a)}
        constants[name] = constants[name] & indices if name in constants else indices
        outputs[name] = len(module[name].params) - len(arguments)

    for _, func in module.functions_items():
        if isinstance(func, relax.Function):  # `main`, and bodies of loops
            relax.analysis.post_order_visit(func, visit)
    return {name: tuple(sorted(indices)) for name, indices in constants.items()}, outputs


def _is_constant(expr: Any) -> bool:
    return type(expr).__name__ in ("GenericConst", "Constant")


def _numbers(shape: Any) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name in getattr(shape, "__dataclass_fields__", {}):
        value = getattr(shape, name)
        if isinstance(value, bool | int | float):
            numbers[name] = float(value)
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            numbers.update({f"{name}{i}": float(v) for i, v in enumerate(value)})
    return numbers


def task_of(module: str, key: Key, machine: Machine) -> Task | None:
    """A task from a workload that the store kept; None if its family no longer recognises it."""
    import tvm

    from tvmopt.scheduling.discover import families

    func = tvm.ir.load_json(module)["main"]
    family = next((f for f in families(machine.kind) if key.family == f.NAME), None)
    shape = family.recognise(func, machine) if family else None
    if family is None or shape is None:
        return None
    space = family.knobs(shape, machine)
    kernel = unpacked(module, key, machine, space.analytic)
    return Task(key.workload, key, space, kernel, shape=shape_words(shape), features=_numbers(shape))
