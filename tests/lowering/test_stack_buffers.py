"""Small buffers of kernels are on the stack, large ones are the runtime's."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvmopt import pipeline
from tvmopt.compiler.kernels import loops, named
from tvmopt.lowering.stack_buffers import MOST, ON_STACK, StackBuffers
from tvmopt.targets import Machine

RUNTIME = "TVMBackendAllocWorkspace"


def gelu_of_product(rows: int) -> tvm.IRModule:
    w = np.random.default_rng(0).standard_normal((64, 256)).astype("float32")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.gelu(bb.emit(relax.op.matmul(x, relax.const(w)))))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize("without, asks", [((), False), (("StackBuffers",), True)])
def test_a_register_tile_and_its_values_do_not_ask_the_runtime(without: tuple[str, ...], asks: bool) -> None:
    machine = Machine.load("sapphirerapids").with_cores(2)
    module = pipeline.lower(gelu_of_product(8), machine).module
    kernels = tvm.IRModule({g: f for g, f in module.functions_items() if isinstance(f, tirx.PrimFunc)})
    texts = [loops(func, name, kernels, machine, without).script() for name, func in named(kernels)]
    assert any(RUNTIME in text for text in texts) is asks


@pytest.mark.parametrize("numbers, stays", [(0, True), (16, False), (MOST // 4, False), (MOST // 4 + 1, True)])
def test_only_small_buffers(numbers: int, stays: bool) -> None:
    buffer = tirx.decl_buffer((numbers,), "float32", "b", scope="local")
    body = tirx.SeqStmt([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, tirx.const(1.0, "float32"), [0])])
    module = StackBuffers(tvm.IRModule({"f": tirx.PrimFunc([], body)}))
    assert (ON_STACK not in module.script()) is stays
