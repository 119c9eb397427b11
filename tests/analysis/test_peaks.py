"""Peaks: plausible, cached, and there without a compiler."""

import json
import subprocess

import pytest

from tvmopt.analysis import peaks as module
from tvmopt.analysis.peaks import Peaks, measure_peaks, read_bandwidth


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    monkeypatch.setattr(module, "_declared", lambda threads: {})


FAKE = Peaks(
    "m",
    2,
    {"fp32": 100.0, "bf16": 200.0, "amx-bf16": 800.0},
    {"l2": 40.0, "l3": 20.0, "dram": 5.0},
    10,
    100,
    "x",
)


def test_the_floor_is_the_larger_of_the_two_times():
    assert FAKE.floor(1000, 5) == 10.0
    assert FAKE.floor(1, 200) == 40.0  # from memory
    assert FAKE.floor(1, 100) == 5.0  # from L3
    assert FAKE.floor(1, 8) == 0.2  # from L2


def test_the_tile_unit_is_the_roof_where_there_is_one():
    assert FAKE.compute("bf16") == 800
    assert FAKE.compute("int8") == FAKE.compute("fp32") == 100


def test_measured_once_then_read_from_the_cache(tmp_path, monkeypatch):
    found = {}

    def program(folder, threads):
        def run(kind, size):
            found[kind, size] = found.get((kind, size), 0) + 1
            return 0.0 if kind.startswith("amx") else 1e9

        return run

    monkeypatch.setattr(module, "_program", program)
    first = measure_peaks(2, cache=tmp_path)
    assert "amx-bf16" not in first.flops
    assert measure_peaks(2, cache=tmp_path) == first
    assert set(found.values()) == {1}
    measure_peaks(2, cache=tmp_path, again=True)
    assert set(found.values()) == {2}


def test_a_second_measurement_can_only_raise_a_peak(tmp_path, monkeypatch):
    """What else runs makes a peak look lower, never higher."""
    speed = {"fp32": 2e9, "read": 1e9}
    monkeypatch.setattr(module, "_program", lambda folder, threads: lambda kind, size: speed.get(kind, 1e9))
    measure_peaks(1, cache=tmp_path)
    speed |= {"fp32": 1e9, "read": 3e9}
    again = measure_peaks(1, cache=tmp_path, again=True)
    assert (again.flops["fp32"], again.bandwidth["dram"]) == (2e9, 3e9)
    assert measure_peaks(1, cache=tmp_path) == again


@pytest.mark.parametrize("damage", ["", "{", json.dumps({"machine": "old"}), "[]"])
def test_a_damaged_cache_is_measured_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(module, "_program", lambda folder, threads: lambda kind, size: 1e9)
    measure_peaks(1, cache=tmp_path)
    [path] = tmp_path.iterdir()
    path.write_text(damage)
    assert measure_peaks(1, cache=tmp_path).flops["fp32"] == 1e9


def test_memory_is_measured_where_the_program_has_no_time(tmp_path, monkeypatch):
    """On a busy machine it took longer than its limit: the bandwidth was 0, and floors were divided by it."""
    real = subprocess.run

    def run(command, **options):
        if command[1] in ("read", "triad"):
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return real(command, **options)

    monkeypatch.setattr(module, "cache_sizes", lambda: (1 << 16, 1 << 18))
    monkeypatch.setattr(module.subprocess, "run", run)
    assert min(measure_peaks(1, cache=tmp_path).bandwidth.values()) > 0
    assert read_bandwidth(1) > 0


def test_without_a_compiler_numpy_gives_lower_bounds(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setattr(module, "cache_sizes", lambda: (1 << 16, 1 << 18))
    found = measure_peaks(1, cache=tmp_path)
    assert found.source == "numpy"
    assert found.flops["fp32"] > 1e8
    assert min(found.bandwidth.values()) > 1e7


def test_the_program_measures_an_fma_peak(tmp_path):
    run = module._program(tmp_path, 1)
    if run is None:
        pytest.skip("no C compiler")
    assert 1e9 < run("fp32", 0) < 1e13
    assert 1e8 < run("read", 1 << 16) < 1e13
