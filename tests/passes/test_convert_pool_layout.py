"""Poolings alone, in NHWC between two transposes."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import ConvertPoolLayout

nn = relax.op.nn


@pytest.mark.parametrize("pool", [nn.max_pool2d, nn.avg_pool2d])
@pytest.mark.parametrize(
    "attrs",
    [
        dict(pool_size=(3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
        dict(pool_size=(3, 3), strides=(2, 2), ceil_mode=True),
        dict(pool_size=(3, 4), strides=(1, 3), padding=(1, 0), dilation=(2, 1)),
    ],
)
def test_poolings(pool, attrs):
    mod = build({"x": (2, 17, 9, 8)}, lambda bb, x: pool(x, **attrs))
    name = "nn.max_pool2d" if pool is nn.max_pool2d else "nn.avg_pool2d"
    check_rewrite(ConvertPoolLayout, mod, {"permute_dims": 2, name: 1})


def test_padding_that_counts():
    mod = build({"x": (1, 16, 9, 8)}, lambda bb, x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True))
    check_rewrite(ConvertPoolLayout, mod, {"permute_dims": 2, "nn.avg_pool2d": 1})


@pytest.mark.parametrize(
    "spec, attrs",
    [
        (((1, 15, 9, 9), "float32"), dict(pool_size=(3, 3))),  # few channels
        (((1, 16, 9, 9), "float16"), dict(pool_size=(3, 3))),  # another type
        (((1, 16, 9, 9), "float32"), dict(pool_size=(2, 3))),  # six taps
        (((1, 16, 9, 40), "float32"), dict(pool_size=(3, 3))),  # long rows
        (((1, 9, 9, 16), "float32"), dict(pool_size=(3, 3), layout="NHWC")),
    ],
)
def test_others_stay(spec, attrs):
    check_rewrite(ConvertPoolLayout, build({"x": spec}, lambda bb, x: nn.max_pool2d(x, **attrs)))
