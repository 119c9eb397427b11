"""The largest of some products, less than itself, is 0: on a GPU, too, which rounds a product and a difference once."""

import tvm
from tvm.script import tirx as T

from tvmopt.lowering.round_products import RoundProducts
from tvmopt.targets import Machine

TARGET = Machine.load("nvidia-h100").tvm_target()


def test_a_product_is_rounded_before_what_is_subtracted() -> None:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), most: T.Buffer((1,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({"global_symbol": "main"})
        for i in range(8):
            y[i] = T.exp(x[i] * T.float32(0.01) - most[0]) + x[i] * T.float32(2)

    after = RoundProducts(tvm.IRModule({"main": main.with_attr("target", TARGET)}))["main"].script()
    assert after.count("__fmul_rn") == 1
    assert "x[i] * T.float32(2" in after


def test_other_exponentials_stay() -> None:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float16"), y: T.Buffer((8,), "float16")):
        T.func_attr({"global_symbol": "main"})
        for i in range(8):
            y[i] = T.exp(x[i] - T.float16(1)) + T.exp(x[i] * T.float16(2) - x[0])

    module = tvm.IRModule({"main": main.with_attr("target", TARGET)})
    tvm.ir.assert_structural_equal(RoundProducts(module)["main"], module["main"])
