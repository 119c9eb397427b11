"""Schedules are not made for two cores: the model divides the suite's products and convolutions over 1 to 128 cores."""

from __future__ import annotations

import pytest

from tvmopt.schedules.cpu.conv2d.schedule import Conv2dProblem
from tvmopt.schedules.cpu.conv2d.schedule import knobs as conv2d_knobs
from tvmopt.schedules.cpu.gemm.schedule import GemmProblem
from tvmopt.schedules.cpu.gemm.schedule import knobs as gemm_knobs
from tvmopt.scheduling.cost_model import choose_tile, fits
from tvmopt.targets import Machine

ZEN5 = Machine.load("znver5")
CORES = (1, 2, 8, 16, 64, 128)
UNEVEN = 1.25
"""How much more than the mean the busiest core may compute."""
PRODUCTS = {  # rows, columns, terms
    "BERT qkv": (128, 2304, 768), "BERT ffn": (128, 3072, 768), "BERT out": (128, 768, 3072),
    "ResNet 56": (3136, 64, 256), "ResNet 28": (784, 512, 128), "ResNet 14": (196, 1024, 256),
    "ResNet 7": (49, 2048, 512), "ResNet fc": (1, 1000, 2048), "MobileNet 112": (12544, 16, 32),
    "MobileNet 56": (3136, 24, 96), "MobileNet 7": (49, 320, 960), "EfficientNet 7": (49, 1280, 320),
    "ConvNeXt 56": (3136, 384, 96), "ConvNeXt 28": (784, 768, 192),
}  # fmt: skip
PRIME = (197, 768, 768)  # ViT's tokens
CONVOLUTIONS = {  # rows and columns of the output, channels, window by input channels
    "ResNet stem": (112, 112, 64, (7, 7, 3)), "ResNet 56": (56, 56, 64, (3, 3, 64)),
    "ResNet 28": (28, 28, 128, (3, 3, 128)), "ResNet 14": (14, 14, 256, (3, 3, 256)),
    "ResNet 7": (7, 7, 512, (3, 3, 512)), "ResNet down": (14, 14, 1024, (1, 1, 512)),
    "MobileNet stem": (112, 112, 32, (3, 3, 3)), "VGG 14": (14, 14, 512, (3, 3, 512)),
    "AlexNet": (27, 27, 256, (5, 5, 96)), "Inception": (28, 28, 192, (3, 3, 128)),
    "ConvNeXt stem": (56, 56, 96, (4, 4, 3)),
}  # fmt: skip


def busiest(tasks: list[int], cores: int) -> float:
    """The largest share of a core, in means: TVM's pool gives every core a run of equally many tasks."""
    run = -(-len(tasks) // cores)
    return max(sum(tasks[at : at + run]) for at in range(0, len(tasks), run)) / (sum(tasks) / cores)


def product_tasks(m: int, n: int, k: int, machine: Machine) -> list[int]:
    """Row tiles of each task of a GEMM."""
    nr = choose_tile(m, n, machine).nr
    problem = GemmProblem(m, n, k, nr, machine.lanes(), machine.cores, True)
    chosen = gemm_knobs(problem, machine).analytic
    assert fits(chosen["mr"], nr // machine.lanes(), machine)
    tiles, pieces = -(-m // chosen["mr"]), chosen["m_chunks"]
    each = -(-tiles // pieces)
    sizes = [min(each, tiles - at * each) for at in range(pieces)]
    return [size for size in sizes for _ in range(problem.panels) if size > 0]


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_divided(name: str, cores: int) -> None:
    tasks = product_tasks(*PRODUCTS[name], ZEN5.with_cores(cores))
    assert sum(tasks) < cores or busiest(tasks, cores) <= UNEVEN


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_divided(name: str, cores: int) -> None:
    oh, ow, o, k = CONVOLUTIONS[name]
    m = ZEN5.with_cores(cores)
    nr = choose_tile(oh * ow, o, m, rows=ow).nr
    panels, row_bytes = -(-o // nr), 4 * (ow + k[1] - 1) * k[2]
    problem = Conv2dProblem(
        1, oh, ow, panels, nr, o, 1, k, True, row_bytes, m.lanes(), cores, m.l2, m.l3_rate, m.fma_ports, True
    )  # fmt: skip
    chosen = conv2d_knobs(problem, m).analytic
    size = chosen["row_chunk"] * chosen["panel_chunk"]
    tasks = [size] * (oh * panels // size)
    assert sum(tasks) == oh * panels
    # 48 tasks of AlexNet's leave 16 cores idle; more of them would read 2.4 MB of weights from L3 more often
    assert sum(tasks) < cores or busiest(tasks, cores) <= (4 / 3 if (name, cores) == ("AlexNet", 64) else UNEVEN)


def test_rows_that_no_height_divides_share_panels_only() -> None:
    """A known limit: a partitioned tail needs all rows in one task, so 48 panels are all that 64 cores get."""
    shares = {cores: busiest(product_tasks(*PRIME, ZEN5.with_cores(cores)), cores) for cores in CORES}
    assert all(shares[cores] <= UNEVEN for cores in (1, 2, 8, 16))
    assert shares[64] == pytest.approx(64 / 48) and shares[128] == pytest.approx(128 / 48)


def test_tiles_move_with_the_cores() -> None:
    """More cores get narrower panels or lower tiles; one core gets the tile that is fastest by itself."""
    assert choose_tile(49, 2048, ZEN5.with_cores(1)).nr > choose_tile(49, 2048, ZEN5.with_cores(128)).nr
    assert len(product_tasks(49, 2048, 512, ZEN5.with_cores(128))) == 128
    assert len(product_tasks(12544, 16, 32, ZEN5.with_cores(64))) == 64


def test_a_planted_uneven_division_is_seen() -> None:
    assert busiest([1] * 48, 64) > UNEVEN and busiest([2, 1, 1], 2) > UNEVEN
    assert busiest([1] * 112, 64) <= UNEVEN


@pytest.mark.parametrize(("cores", "pieces"), [(1, 4), (2, 1)])
def test_rows_beyond_l2_pass_all_panels_in_pieces(cores: int, pieces: int) -> None:
    """3136 rows of 256 floats are 3.2 MB; with two cores each of the two panels has one of its own."""
    machine = Machine.load("sapphirerapids").with_cores(cores)
    problem = GemmProblem(3136, 128, 256, 64, machine.lanes(), cores, True)
    chosen = gemm_knobs(problem, machine).analytic
    assert 3136 % chosen["mr"] == 0 and chosen["m_chunks"] == pieces
