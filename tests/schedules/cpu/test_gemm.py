"""The GEMM families: recognised, correct at the edges on every ISA level, with epilogues."""

import re

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.schedules.harness import MACHINES, close, machines, module_of, run
from tvmopt.pipeline import lower
from tvmopt.schedules.cpu.gemm.schedule import GemmProblem, knobs
from tvmopt.schedules.cpu.rows.columns import pays
from tvmopt.scheduling.cost_model import choose_tile, fits
from tvmopt.targets import Machine


def linear(weight, bias):
    def build(bb, x, *rest):
        weights, more = (relax.const(array, str(array.dtype)) for array in (weight, bias))
        y = bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, weights)), more))
        if rest:
            y = bb.emit(relax.op.add(y, rest[0]))
        return relax.op.nn.relu(y)

    return build


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize(
    "rows, k, n",
    [((196,), 64, 96), ((197,), 33, 31), ((1,), 129, 100), ((2, 7, 7), 17, 40), ((3, 5), 7, 33), ((1,), 1, 1)]
    + [((m,), 9, n) for m, n in ((7, 8), (8, 9), (9, 15), (15, 16), (16, 17), (31, 32), (32, 33), (33, 7))]
    + [((50,), 9, 24), ((49,), 9, 47)]
    + [((1,), 512, 33), ((1,), 514, 31), ((1,), 576, 100), ((1,), 4096, 7)],  # sums in runs; 514 = 2 * 257 in one
)
def test_packed_gemm_with_bias_residual_relu(machine, rows, k, n):
    rng = np.random.default_rng(k * n)
    x, w = rng.standard_normal((*rows, k)).astype("float32"), rng.standard_normal((k, n)).astype("float32")
    b, r = rng.standard_normal(n).astype("float32"), rng.standard_normal((*rows, n)).astype("float32")
    (y,), how = run(linear(w, b), [x, r], machine)
    close(y, np.maximum(x.astype("float64") @ w + b + r, 0), k)
    assert [(s.family, s.note) for s in how.values()] == [("gemm", "")]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("m, k, n", [(1, 129, 100), (7, 9, 7), (8, 8, 8), (9, 31, 15), (16, 17, 33), (100, 320, 161)])
def test_products_of_float64(machine, m, k, n):
    """Half as many lanes and the same tiles, as accurate as NumPy's; a spectrum is such a product."""
    rng = np.random.default_rng(m)
    x, w, b, r = (rng.standard_normal(shape) for shape in ((m, k), (k, n), n, (m, n)))
    x[0, 0], w[0, -1] = 1e200, 1e100
    (y,), how = run(linear(w, b), [x, r], machine)
    np.testing.assert_allclose(y, np.maximum(x @ w + b + r, 0), 1e-12, 1e-10)
    assert [(s.family, s.note) for s in how.values()] == [("gemm", "")]


def test_one_row_adds_up_long_sums_in_runs():
    """2048 terms: 13.5 units in the last place off in the mean square when each is added to all before."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((1, 2048), (2048, 96)))
    (y,), how = run(lambda bb, x: relax.op.matmul(x, relax.const(w)), [x], machines()[0])
    right = x.astype("float64") @ w
    assert np.sqrt(np.mean((y - right) ** 2) / np.mean(right**2)) < 7 * 2**-24
    assert [s.family for s in how.values()] == ["gemm"]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize(
    "a, b",
    [((12, 33, 8), (12, 8, 64)), ((2, 3, 7, 9), (2, 3, 9, 17)), ((4, 1, 3), (4, 3, 1)), ((16, 31), (31, 32)),
     ((3, 1, 8, 16), (1, 2, 16, 33)), ((5, 31, 3), (5, 3, 3)), ((4, 1801, 3), (4, 3, 300))],
)  # fmt: skip
def test_batched_gemm_of_two_activations(machine, a, b):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(a).astype("float32"), rng.standard_normal(b).astype("float32")

    def build(bb, x, w):
        return relax.op.multiply(bb.emit(relax.op.matmul(x, w)), relax.const(0.125, "float32"))

    (y,), how = run(build, [x, w], machine)
    close(y, (x.astype("float64") @ w) * 0.125, a[-1])
    assert [s.family for s in how.values()] == ["batch_gemm"]


@pytest.mark.parametrize("a, b", [((1, 4, 1, 64), (1, 4, 64, 65)), ((1, 1, 7), (9, 7, 33)), ((1, 300), (300, 301))])
def test_single_rows_read_narrow_matrices_as_they_lie(a, b):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(a).astype("float32"), rng.standard_normal(b).astype("float32")
    (y,), how = run(lambda bb, x, w: relax.op.nn.relu(bb.emit(relax.op.matmul(x, w))), [x, w], machines()[0])
    close(y, np.maximum(x.astype("float64") @ w, 0), a[-1])
    assert [s.family for s in how.values()] == ["reduce"]


@pytest.mark.parametrize("columns", [3, 5, 7, 9, 10, 15, 17, 33, 34, 50])
@pytest.mark.parametrize("rows", [1, 7, 577, 600])
def test_few_columns(rows, columns):
    """One panel: whole vectors and what is left of a row; tiles of rows to threads, and the last, lower one."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((rows, 160)).astype("float32"), rng.standard_normal((160, columns)).astype("float32")
    b, r = rng.standard_normal(columns).astype("float32"), rng.standard_normal((rows, columns)).astype("float32")
    (y,), how = run(linear(w, b), [x, r], machines()[0])
    close(y, np.maximum(x.astype("float64") @ w + b + r, 0), 160)
    assert [s.family for s in how.values()] == ["rows" if pays(160, columns, Machine.load("x86-64-v4")) else "gemm"]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("a, b", [((65, 64), (64, 128)), ((33, 90), (90, 97)), ((2, 64, 65), (2, 65, 72))])
def test_a_small_batch_shares_its_columns_among_the_cores(machine, a, b):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(a).astype("float32"), rng.standard_normal(b).astype("float32")

    def build(bb, x, w):
        return relax.op.nn.relu(bb.emit(relax.op.matmul(x, w)))

    (y,), how = run(build, [x, w], machine, 8)
    close(y, np.maximum(x.astype("float64") @ w, 0), a[-1])
    assert [(s.family, s.note) for s in how.values()] == [("batch_gemm", "")]
    target = Machine.load(MACHINES[machine]).with_cores(8)
    lowered = lower(module_of(build, [x, w]), target)
    (kernel,) = (f for f in lowered.module.functions.values() if isinstance(f, tirx.PrimFunc))
    tasks = re.search(r"in T.parallel\((\d+)\)", kernel.script())
    assert tasks and int(tasks[1]) > (a[0] if len(a) > 2 else 1)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("cores", [2, 3, 8])
@pytest.mark.parametrize("batch", [(), (1,), (2,), (3,), (5,)])
@pytest.mark.parametrize("m, k, n", [(577, 17, 197), (1100, 9, 33), (300, 64, 49), (129, 80, 50)])
def test_cores_pack_columns_together_and_share_rows(machine, cores, batch, m, k, n):
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((*batch, *shape)).astype("float32") for shape in ((m, k), (k, n)))

    def build(bb, x, w):
        return relax.op.nn.relu(bb.emit(relax.op.matmul(x, w)))

    (y,), how = run(build, [x, w], machine, cores)
    close(y, np.maximum(x.astype("float64") @ w, 0), k)
    assert [(s.family, s.note) for s in how.values()] == [("batch_gemm", "")]


@pytest.mark.parametrize("m", [1000, 1003])
def test_shared_rows_are_tiles_in_registers(m):
    """Each task had a piece of the rows: the tiles of several pieces were no unrolled code, and their last rows had a
    condition each. 1000x80 by 80x197 took 195 us on two cores of a Zen 4, with tiles of 14 rows 416; now 155 or 159."""
    x, w = np.zeros((1, m, 80), "float32"), np.zeros((1, 80, 197), "float32")
    build = lambda bb, x, w: relax.op.matmul(x, w)  # noqa: E731
    machine = Machine.load("znver4").with_cores(2)
    lowered = lower(module_of(build, [x, w]), machine)
    (kernel,) = (f for f in lowered.module.functions.values() if isinstance(f, tirx.PrimFunc))
    height = lowered.kernels[0].knobs["mr"]
    script = kernel.script()
    assert script.count(f"T.unroll({height})") == 3  # zeros, products, results
    assert f"T.parallel({-(-m // height)}" in script


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("m, k, n", [(5000, 10, 700), (577, 64, 577), (64, 64, 197)])
def test_columns_are_packed_once(cores, m, k, n):
    """Where a tile of rows passes all columns, they were packed anew for each tile: 5000x10 by 10x700 took 1,560 us on
    one core of a Zen 4, now 870."""
    x, w = np.zeros((m, k), "float32"), np.zeros((k, n), "float32")
    module = lower(module_of(lambda bb, x, w: relax.op.matmul(x, w), [x, w]), Machine.load("znver4").with_cores(cores))
    (kernel,) = (f for f in module.module.functions.values() if isinstance(f, tirx.PrimFunc))
    sch = tvm.s_tir.Schedule(kernel)
    pack = sch.get_sblock("pack")
    steps = np.prod([int(sch.get(loop).extent) for loop in sch.get_loops(pack)])
    assert steps == np.prod([int(size) for size in sch.get(pack).writes[0].source.shape])


def test_long_rows_of_a_result_are_written_one_after_the_other():
    """In panels each row of the result was on another page: 941 us, 300 since each tile of rows is written whole."""
    machine = Machine.load("znver5").with_cores(1)
    long, short = GemmProblem(1000, 3072, 10, 32, 16, 1, False), GemmProblem(1000, 1000, 10, 32, 16, 1, False)
    assert knobs(long, machine).analytic["m_chunks"] == 1000 // knobs(long, machine).analytic["mr"]
    assert knobs(short, machine).analytic["m_chunks"] == 1


@pytest.mark.parametrize("rows", [400, 1000])
def test_tiles_of_long_rows(rows):
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((rows, 10)).astype("float32"), rng.standard_normal((10, 3001)).astype("float32")
    b = rng.standard_normal(3001).astype("float32")
    for cores in (1, 2):
        (y,), how = run(linear(w, b), [x], machines()[0], cores)
        close(y, np.maximum(x.astype("float64") @ w + b, 0), 10)
        assert [s.family for s in how.values()] == ["gemm"]


@pytest.mark.parametrize("machine", ["znver5", "sapphirerapids", "x86-64-v3", "x86-64-v2"])
def test_every_tile_fits_the_registers(machine):
    target = Machine.load(machine)
    for m in (1, 2, 7, 49, 128, 197, 3136):
        for n in (1, 16, 24, 40, 64, 1000):
            tile = choose_tile(m, n, target)
            assert fits(tile.mr, tile.nv, target) or (tile.mr, tile.nv) == (1, 1)
            assert tile.nr == tile.nv * target.lanes()


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("cores", [2, 3, 8])
@pytest.mark.parametrize("rows, n", [(27, 16), (169, 48), (729, 16), (81, 33), (3025, 8)])
def test_pieces_of_rows_that_differ_by_a_tile(machine, cores, rows, n):
    """A panel or a few for all cores: odd numbers of tiles, and pieces that are empty."""
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 64)).astype("float32"), rng.standard_normal((64, n)).astype("float32")
    b = rng.standard_normal(n).astype("float32")
    (y,), how = run(linear(w, b), [x], machine, cores)
    close(y, np.maximum(x.astype("float64") @ w + b, 0), 64)
    assert [(s.family, s.note) for s in how.values()] == [("gemm", "")]


def test_epilogue_that_broadcasts_to_more_dimensions_stays_right():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((4, 8)).astype("float32"), rng.standard_normal((8, 16)).astype("float32")
    r = rng.standard_normal((3, 4, 16)).astype("float32")

    def build(bb, x, r):
        return relax.op.add(bb.emit(relax.op.matmul(x, relax.const(w))), r)

    (y,), _ = run(build, [x, r])
    close(y, x.astype("float64") @ w + r, 8)
