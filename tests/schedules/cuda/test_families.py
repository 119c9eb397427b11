"""The GPU families without tensor cores: numbers in the emulator, every thread order; machine code from nvcc."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.cuda.emulator import emulated, run
from tests.schedules.cuda import kernels as k
from tests.schedules.cuda.harness import array, pipelined
from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine
from tvmopt.toolchain.ptxas import compile_source

ml_dtypes = pytest.importorskip("ml_dtypes")
EDGES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)
GPUS = ("nvidia-a100", "nvidia-h100", "nvidia-b200")


@pytest.fixture(scope="session")
def h100() -> Machine:
    return Machine.load("nvidia-h100")


def family(name: str) -> Any:
    return next(f for f in families("cuda") if name == f.NAME)


def recognisers(func: Any, machine: Machine) -> list[str]:
    return [f.NAME for f in families("cuda") if f.recognise(func, machine) is not None]


def scheduled(name: str, func: Any, machine: Machine, knobs: dict[str, int] | None = None) -> Any:
    chosen = family(name)
    shape = chosen.recognise(func, machine)
    assert shape is not None, f"{name} does not recognise it; {recognisers(func, machine)} do"
    sch = tvm.s_tir.Schedule(func)
    chosen.apply(sch, shape, {**chosen.knobs(shape, machine).analytic, **(knobs or {})})
    return sch.mod["main"]


def numpy_type(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def check(name: str, case: k.Case, machine: Machine, knobs: dict[str, int] | None = None) -> Any:
    """Run it in the emulator and compare with float64; returns the emulation."""
    func, inputs, (shape, dtype), answer = case
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(numpy_type(d)) for s, d in inputs]
    expected = np.asarray(answer(*[g.astype("float64") for g in given]), "float64")
    out = np.zeros(shape, numpy_type(dtype))
    emulation = run(scheduled(name, func, machine, knobs), machine, given, [out])
    narrow = {"float16": 2e-3, "bfloat16": 1.6e-2}
    tolerance = max(narrow.get(d, 2e-5) for d in (dtype, *(d for _, d in inputs)))
    np.testing.assert_allclose(
        out.astype("float64"),
        expected.reshape(shape),
        rtol=tolerance,
        atol=tolerance * (np.abs(expected).max() or 1),
    )
    return emulation


@pytest.mark.parametrize("length", [*EDGES, 768])
def test_softmax_at_the_edges(length: int, h100: Machine) -> None:
    check("rows" if length > 1 else "generic", k.softmax((3,), length), h100)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_in_16_bits(dtype: str, h100: Machine) -> None:
    check("rows", k.softmax((2, 3), 264, dtype), h100)
    check("rows", k.layer_norm((2, 5), 264, dtype, relu=True), h100)


@pytest.mark.parametrize("length", [1, 9, 32, 100, 2048])
def test_layer_norm(length: int, h100: Machine) -> None:
    check("rows" if length > 1 else "generic", k.layer_norm((2, 3), length), h100)


def test_log_softmax(h100: Machine) -> None:
    emulation = check("rows", k.softmax((50,), 64, log=True), h100)
    assert emulation.libraries[0].launches[0][1:3] == ((50, 1, 1), (32, 1, 1))


def test_rows_are_loaded_once_in_vectors(h100: Machine) -> None:
    emulation = check("rows", k.layer_norm((140,), 768, "float16"), h100)
    kernel = emulation.sources[emulation.sources.index('extern "C" __global__') :]
    assert kernel.count("(uint4*)(x_ptr") == 1 and "x_ptr[" not in kernel


@pytest.mark.parametrize("length", [1, 7, 33, 4096])
def test_row_reductions(length: int, h100: Machine) -> None:
    if length > 1:
        check("rows", k.row_max((5,), length), h100)
        check("rows", k.row_mean((2, 3), length), h100)
    check("generic", k.row_max((5,), length), h100)


@pytest.mark.parametrize("edge", EDGES)
def test_elementwise_at_the_edges(edge: int, h100: Machine) -> None:
    check("elementwise", k.add_tanh((3, edge)), h100)


@pytest.mark.parametrize(("source", "target"), [("float16", "float32"), ("float32", "bfloat16")])
def test_casts_in_whole_vectors(source: str, target: str, h100: Machine) -> None:
    func, *_ = case = k.cast((132, 1024), source, target)
    shape = family("elementwise").recognise(func, h100)
    assert shape.width == 4
    check("elementwise", case, h100, {"vector": 4, "threads": 256})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_elementwise_in_16_bits(dtype: str, h100: Machine) -> None:
    for vector in (1, 2, 4, 8):
        check("elementwise", k.add_tanh((9, 64), dtype), h100, {"vector": vector})


@pytest.mark.parametrize("edge", [15, 16, 17, 31, 32, 33, 65])
def test_transposes_go_through_shared_memory(edge: int, h100: Machine) -> None:
    emulation = check("layout", k.transpose((2, edge, 40), (0, 2, 1), scale=True), h100)
    assert ("__shared__" in emulation.sources) == (edge >= 16)


def test_other_movement(h100: Machine) -> None:
    check("layout", k.transpose((2, 3, 9, 9), (0, 2, 3, 1)), h100)
    check("elementwise", k.transpose((1, 8, 17, 64), (0, 2, 1, 3), "float16"), h100)  # heads: rows stay whole
    check("layout", k.concat((2, 9, 17), 8), h100)
    check("layout", k.shuffle(112, 4), h100)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("channels", "dtype"), [(40, "float16"), (7, "float32"), (64, "float32")])
def test_pool(kind: str, channels: int, dtype: str, h100: Machine) -> None:
    size = 81 if channels < 40 else 29
    check("pool", k.pool(kind, 1, size, channels, 3, 2, 1, dtype), h100)


@pytest.mark.parametrize("channels", [8, 9, 32])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise(channels: int, stride: int, h100: Machine) -> None:
    check("depthwise", k.depthwise(1, 17, channels, 3, stride, "float32"), h100)


def test_depthwise_in_16_bits_and_wider(h100: Machine) -> None:
    check("depthwise", k.depthwise(2, 15, 48, 5, 1, "float16"), h100, {"vector": 4})
    check("generic", k.depthwise(1, 9, 6, 3, 1, "bfloat16", multiplier=2), h100)


@pytest.mark.parametrize("channels", [1, 31, 32, 33, 96])
def test_global_pool(channels: int, h100: Machine) -> None:
    name = "reduce" if channels > 1 else "generic"
    check(name, k.global_pool(2, 7, channels), h100)


def test_sums_over_a_batch(h100: Machine) -> None:
    check("reduce", k.batch_sum((9, 130)), h100)


@pytest.mark.parametrize("case", [k.argmax(20, 9), k.two_reductions(9, 40), k.concat((2, 9), 8)])
def test_generic(case: k.Case, h100: Machine) -> None:
    check("generic", case, h100)


CASES = {
    "softmax": ("rows", k.softmax((256,), 1000, "float16")),
    "layer_norm": ("rows", k.layer_norm((4096,), 768, "float16", relu=True)),
    "layer_norm_long": ("rows", k.layer_norm((64,), 16384, "bfloat16")),
    "row_mean": ("rows", k.row_mean((512,), 2048)),
    "add_tanh": ("elementwise", k.add_tanh((1024, 3072), "float16")),
    "cast": ("elementwise", k.cast((1024, 1024), "float32", "bfloat16")),
    "transpose": ("layout", k.transpose((8, 512, 768), (0, 2, 1), "float16", scale=True)),
    "concat": ("layout", k.concat((64, 24), 40, "float16")),
    "max_pool": ("pool", k.pool("max", 8, 112, 64, 3, 2, 1, "float16")),
    "avg_pool": ("pool", k.pool("avg", 1, 56, 192, 3, 2, 1, "float32")),
    "depthwise": ("depthwise", k.depthwise(8, 56, 144, 3, 1, "float16")),
    "depthwise5": ("depthwise", k.depthwise(1, 28, 240, 5, 2, "bfloat16")),
    "global_pool": ("reduce", k.global_pool(1, 7, 2048, "float32")),
    "argmax": ("generic", k.argmax(1000, 1000)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_family_takes_it(name: str, h100: Machine) -> None:
    """Recognisers are disjoint; generic is no competitor."""
    chosen, (func, *_) = CASES[name]
    assert [n for n in recognisers(func, h100) if n != "generic" or chosen == "generic"] == [chosen]


@pytest.mark.parametrize("name", CASES)
def test_every_knob_can_be_applied(name: str, h100: Machine) -> None:
    """The number of loops does not depend on a knob: MetaSchedule replays traces with other decisions."""
    chosen, (func, *_) = CASES[name]
    shape = family(chosen).recognise(func, h100)
    space = family(chosen).knobs(shape, h100)
    loops = set()
    for knob, values in space.choices.items():
        for value in values[:3]:
            main = scheduled(chosen, func, h100, {knob: value})
            loops.add(_loops(main))
    assert len(loops) == 1


def _loops(func: Any) -> int:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(func.body, (tirx.For, found.append))
    return len(found)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("gpu", GPUS)
def test_machine_code(gpu: str) -> None:
    """nvcc accepts every family's kernel for every generation; nothing spills, no kernel needs many registers."""
    machine = Machine.load(gpu)
    functions = {
        name: scheduled(chosen, func, machine).with_attr("global_symbol", name)
        for name, (chosen, (func, *_)) in CASES.items()
    }
    with machine.tvm_target(), emulated() as emulation:
        tvm.compile(tvm.IRModule(functions), target=machine.tvm_target())
    _, used = compile_source(emulation.sources, machine.mcpu, str(shutil.which("nvcc")))
    assert {name.removesuffix("_kernel") for name in used} >= set(CASES)
    assert {n: u.spill_stores + u.stack for n, u in used.items() if u.spill_stores + u.stack} == {}
    assert {n: u.registers for n, u in used.items() if u.registers > 64} == {}


@pytest.mark.parametrize("shape", [(2, 1, 5), (1, 1, 6), (8, 1, 1)])
def test_the_mean_of_one_row(shape: tuple[int, ...]) -> None:
    """Its result has an axis of one element, which no thread may take for a column."""
    x = array(shape, "float32")
    axes = [k for k in (0, 2) if shape[k] > 1]
    out, _, _ = pipelined(lambda bb, x: relax.op.mean(x, axes), [x], "fp32")
    np.testing.assert_allclose(out, x.astype("float64").mean(tuple(axes)), atol=1e-6)
