"""Products on (emulated) tensor cores: sizes at the edges, types, tiles, batches, split K, few rows."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, close, families, run


def product(m: int, n: int, k: int, dtype: str, lead: tuple[int, ...] = (), **options: object) -> list[str]:
    """relu(x @ w + bias) + y against float64; the families used."""
    x, w, bias = array((*lead, m, k), dtype), array((k, n), dtype, k**-0.5, 1), array((n,), "float32", 1, 2)
    y = array((*lead, m, n), dtype, 1, 3)

    def build(bb: relax.BlockBuilder, x0: relax.Expr, y0: relax.Expr) -> relax.Expr:
        z = bb.emit(relax.op.matmul(x0, relax.const(w, dtype), out_dtype="float32"))
        z = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(z, relax.const(bias)))))
        return relax.op.astype(bb.emit(relax.op.add(z, bb.emit(relax.op.astype(y0, "float32")))), dtype)

    out, how = run(build, [x, y], **options)
    wide = [a.astype("float64") for a in (x, w, bias, y)]
    close(out, np.maximum(wide[0] @ wide[1] + wide[2], 0) + wide[3])
    return families(how)


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (9, 1, 1, "float16"), (17, 33, 31, "float16"), (16, 16, 16, "bfloat16"), (31, 15, 34, "bfloat16"),
        (33, 64, 100, "float16"), (9, 7, 15, "float32"), (40, 24, 36, "float32"),
    ],
)  # fmt: skip
def test_edges(m: int, n: int, k: int, dtype: str) -> None:
    assert product(m, n, k, dtype) == ["gemm"]


@pytest.mark.parametrize(
    ("bm", "bn", "bk", "stages"),
    [(128, 256, 32, 3), (256, 128, 64, 2), (128, 128, 32, 4), (64, 128, 64, 3), (128, 64, 32, 2),
     (32, 128, 64, 4),      (16, 64, 32, 6), (16, 128, 64, 3), (64, 32, 64, 5)],
)  # fmt: skip
def test_every_tile(bm: int, bn: int, bk: int, stages: int) -> None:
    knobs = {"bm": bm, "bn": bn, "bk": bk, "stages": stages}
    assert product(bm + 9, bn + 8, 3 * bk + 24, "float16", knobs=knobs) == ["gemm"]


def test_rows_of_several_dimensions() -> None:
    assert product(5, 24, 40, "float16", (2, 3)) == ["gemm"]


def test_many_tiles_are_grouped() -> None:
    knobs = {"bm": 16, "bn": 64, "bk": 64, "stages": 2}
    assert product(16 * 11, 130, 32, "float16", knobs=knobs) == ["gemm"]


@pytest.mark.parametrize("k", [4608, 4600])
def test_split_k(k: int) -> None:
    assert product(49, 64, k, "float16") == ["gemm", "split_sum"]


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(1, 1, 1, "float16"), (1, 1000, 512, "float16"), (8, 33, 264, "float16"), (3, 5, 100, "bfloat16"),
     (7, 9, 15, "float32"), (2, 5000, 72, "float16")],
)  # fmt: skip
def test_few_rows(m: int, n: int, k: int, dtype: str) -> None:
    assert product(m, n, k, dtype) == ["gemv"]


@pytest.mark.parametrize(
    ("left", "right", "m", "n", "k", "dtype"),
    [(3, 3, 17, 33, 31, "float16"), (2, 2, 64, 72, 40, "bfloat16"), (1, 4, 7, 9, 15, "float16"),
     (4, 1, 33, 16, 16, "float16")],
)  # fmt: skip
def test_two_activations(left: int, right: int, m: int, n: int, k: int, dtype: str) -> None:
    x, w = array((left, m, k), dtype), array((right, k, n), dtype, k**-0.5, 1)
    out, how = run(lambda bb, a, b: relax.op.nn.relu(bb.emit(relax.op.matmul(a, b))), [x, w])
    close(out, np.maximum(x.astype("float64") @ w.astype("float64"), 0))
    assert families(how) == ["gemm"]


def test_an_epilogue_that_moves_columns_apart() -> None:
    """Heads split off behind the product: 16 bytes a store where a run stays in a head, single elements else."""
    for head in (16, 6):
        x, w = array((20, 32), "float16"), array((32, 48), "float16", 0.2, 1)

        def build(bb: relax.BlockBuilder, a: relax.Expr, w: np.ndarray = w, head: int = head) -> relax.Expr:
            z = bb.emit(relax.op.matmul(a, relax.const(w, "float16")))
            z = bb.emit(relax.op.reshape(z, (20, 48 // head, head)))
            return relax.op.nn.relu(bb.emit(relax.op.permute_dims(z, (1, 0, 2))))

        out, how = run(build, [x])
        expected = np.maximum(x.astype("float64") @ w.astype("float64"), 0)
        close(out, expected.reshape(20, 48 // head, head).transpose(1, 0, 2))
        assert "gemm" in families(how)
