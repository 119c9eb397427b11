"""Results that are written past the caches: the same numbers, aligned or not, and only where it pays."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_map

from tests.schedules.cpu.reference import definition
from tests.schedules.harness import MACHINES, close, machines, module_of, rand
from tvmopt.lowering import lower_operators
from tvmopt.lowering.stream_stores import name_streams
from tvmopt.passes.stages import through
from tvmopt.pipeline import compile_kernels, fusion_stages
from tvmopt.report import DecisionLog
from tvmopt.runtime.tensors import to_ffi
from tvmopt.scheduling.apply import apply_families
from tvmopt.targets import Machine


@dataclass
class Layer:
    """A convolution of 3 to 9 channels with a Relu, in NCHW, scheduled for a machine whose L3 has `l3` bytes.

    Attributes:
        func: its kernel. operands: the picture and what it is compiled with. want: the result, in float64.
    """

    func: tirx.PrimFunc
    operands: list[np.ndarray]
    want: np.ndarray
    machine: Machine

    def compiled(self, func=None):
        func = (func or self.func).with_attr("global_symbol", "kernel")
        return compile_kernels(tvm.IRModule({"kernel": func}), self.machine)

    def code(self) -> str:
        modules = [self.compiled().mod, *self.compiled().mod.imports]
        return "\n".join(module.inspect_source("asm") for module in modules if module.kind == "llvm")

    def result(self, offset=0, func=None) -> np.ndarray:
        """Where the result begins so many numbers behind a line; nothing beside it may be written."""
        room = np.full(self.want.size + 64, np.nan, "float32")
        start = -room.ctypes.data % 64 // 4 + offset
        inside = room[start : start + self.want.size].reshape(self.want.shape)
        arrays = (*self.operands, inside)
        self.compiled(func)["kernel"](*(to_ffi(array, "float32") for array in arrays))
        assert np.isnan(room[:start]).all() and np.isnan(room[start + inside.size :]).all()
        return inside


def layer(width, height=5, machine="avx512", l3=1 << 10, cores=2, border=1, stride=1, value=None) -> Layer:
    x, w = rand(1, 3, height, width), rand(9, 3, 3, 3, seed=1)
    if value is not None:
        x[0, 1, 2, -1] = value
    target = replace(Machine.load(MACHINES[machine]).with_cores(cores), l3=l3)

    def build(bb, x):
        y = bb.emit(relax.op.nn.conv2d(x, relax.const(w), padding=border, strides=stride))
        return bb.emit(relax.op.nn.relu(y))

    with target.tvm_target():
        module = through(fusion_stages(), lower_operators(module_of(build, [x]), target))
        module, how = apply_families(module, target, DecisionLog())
    assert [scheduled.family for scheduled in how.values()] == ["planes"]
    (func,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    (call,) = (
        b.value for block in module["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)
    )
    weights = [a.value.numpy() for a in call.args[1].fields if not isinstance(a, tvm.ir.Var)]
    want = definition(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), (stride,) * 2, (border,) * 4, (1, 1), 1)
    return Layer(func, [_aligned(a) for a in (x, *weights)], np.maximum(want, 0).transpose(0, 3, 1, 2), target)


def product(rows, columns, machine="avx512", batch=2, cores=2) -> Layer:
    """Products of two activations, likewise, with 17 terms."""
    x, w = rand(batch, rows, 17), rand(batch, 17, columns, seed=1)
    target = replace(Machine.load(MACHINES[machine]).with_cores(cores), l3=1 << 10)
    with target.tvm_target():
        module = lower_operators(module_of(lambda bb, x, w: relax.op.matmul(x, w), [x, w]), target)
        module, how = apply_families(through(fusion_stages(), module), target, DecisionLog())
    assert [scheduled.family for scheduled in how.values()] == ["batch_gemm"]
    (func,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    return Layer(func, [_aligned(a) for a in (x, w)], x.astype("float64") @ w, target)


def _aligned(array):
    room = np.empty(array.size + 16, "float32")
    start = -room.ctypes.data % 64 // 4
    room[start : start + array.size] = array.reshape(-1)
    return room[start : start + array.size].reshape(array.shape)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 112])
def test_rows_of_whole_vectors_are_streamed(machine, width):
    for cores in (1, 2):
        one = layer(width, machine=machine, cores=cores)
        streamed = width % one.machine.lanes() == 0
        code = one.code()
        assert ("movntps" in code) == streamed and ("sfence" in code) == streamed
        close(one.result(), one.want, 27)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("rows, columns", [(1, 16), (7, 32), (33, 17), (100, 48), (129, 15), (200, 64), (31, 9)])
def test_products_of_whole_vectors_are_streamed(machine, rows, columns):
    for batch, cores in ((1, 1), (1, 2), (3, 2)):
        one = product(rows, columns, machine, batch, cores)
        whole = columns % one.machine.lanes() == 0 and one.want.size > 64
        assert ("movntps" in one.code()) == whole
        close(one.result(), one.want, 17)


def test_each_task_ends_with_a_fence():
    code = layer(112, height=64).code().splitlines()
    last = max(i for i, line in enumerate(code) if "movntps" in line)
    assert any("sfence" in line for line in code[last:])


@pytest.mark.parametrize("options", [{"stride": 2, "width": 64}, {"border": 0, "width": 34}, {"width": 128}])
def test_strides_and_pieces_of_rows(options):
    one = layer(height=9, **options)
    assert "movntps" in one.code()
    close(one.result(), one.want, 27)


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38])
def test_numbers_are_stored_as_they_are(value):
    np.testing.assert_array_equal(layer(32, value=value).result(), layer(32, value=value, l3=1 << 30).result())


def test_results_that_a_cache_holds_are_not():
    size = 4 * 9 * 5 * 32
    assert "movntps" in layer(32, l3=4 * size - 1).code()
    assert "movntps" not in layer(32, l3=4 * size).code()


@pytest.mark.parametrize("offset", [0, 1, 8, 15])
def test_a_result_that_begins_anywhere(offset):
    one = layer(32)
    result = one.func.params[-1]
    anywhere = tirx.decl_buffer(result.ty.shape, "float32", "anywhere", data_alignment=4)
    close(one.result(offset, _instead(one.func, result, anywhere)), one.want, 27)


def _instead(func, old, new):
    """The function with another buffer as its last argument."""
    body = structural_map(func.body, ((tvm.ir.Var, lambda node: new if node.same_as(old) else node),))
    return tirx.PrimFunc([*list(func.params)[:-1], new], body, func.ret_type, func.attrs, func.span)


def test_other_instruction_sets_and_functions_stay():
    func, usual = layer(32).func, layer(33).func
    with tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}):
        assert name_streams(func).same_as(func)
    assert name_streams(usual).same_as(usual)
