"""Rows by weights of 4 or 8 bits beside onnxruntime and OpenVINO: single products of MatMulNBits, and the share of the
memory's bandwidth that one row reads.

    python benchmarks/packed_products.py                                   # 1, 4, 16, 128 rows, groups of 32 and 128
    python benchmarks/packed_products.py --rows 1 --bits 8 --group 32 --threads 1,2
    python benchmarks/packed_products.py --rows 1 --folder /tmp/p --make   # only write, compile and check
    python benchmarks/packed_products.py --rows 1 --folder /tmp/p          # only time what is there

A model is a chain of products of `--size` by `--size`, each with random weights of its own. Up to 4 rows they are
`--megabytes`, by default more than the caches hold, of more rows an eighth of that. Every engine gets the same file,
each in a process of its own and in turn; before, its output is compared with that in float64. `accuracy_level` 4 (the
default) allows activations of 8 bits. A ratio is tvmopt's time over the engine's, with its 95 % interval. The share is
that of the bytes of codes and scales over what as many threads read from memory before or after, whichever is more.
Everything goes into ``benchmarks/results/MACHINE/packed-products.json``, where other cases stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import models
import numpy as np
from onnx import TensorProto, helper, save

import tvmopt
from tvmopt.analysis.peaks import read_bandwidth
from tvmopt.bench.engine import Engine
from tvmopt.bench.machine import describe_machine, slug
from tvmopt.bench.measure import Plan, measure
from tvmopt.bench.records import Job
from tvmopt.bench.stats import compare_rounds
from tvmopt.errors import TvmoptError
from tvmopt.files import save_arrays, write_text
from tvmopt.operators.packed_product import Packing, matrix

PEERS = ("openvino", "onnxruntime")
FEW_ROWS = 4
"""Up to so many rows, weights are read from memory."""
ALLOWED = {0: 1e-4, 4: 0.15}
"""Error of a chain, relative to its largest output: rounding to 8 bits adds some 0.5 % a product."""


@dataclass(frozen=True)
class Case:
    """Products of `rows` by `size` x `size` codes of `bits` bits."""

    rows: int
    size: int
    bits: int
    group: int
    level: int
    megabytes: int

    @property
    def packing(self) -> Packing:
        """How each matrix is packed."""
        return Packing(self.size, self.size, self.bits, self.group)

    @property
    def weight_bytes(self) -> int:
        """Codes and scales of a product."""
        return self.size * (self.size * self.bits // 8 + self.packing.groups * 4)

    @property
    def products(self) -> int:
        """Products of the chain."""
        return max(1, round(self.megabytes * 1e6 / self.weight_bytes / (1 if self.rows <= FEW_ROWS else 8)))

    @property
    def name(self) -> str:
        """Of the files."""
        return f"rows{self.rows}-{self.size}-{self.bits}bit-group{self.group}-level{self.level}"


def weights(case: Case, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(Codes, scales) of one product; they leave the size of random numbers as it is: with scales of one sign, the mean
    of the numbers would grow from product to product."""
    rng, packing = np.random.default_rng(number), case.packing
    codes = rng.integers(0, 256, (packing.n, packing.groups, case.group * case.bits // 8), dtype=np.uint8)
    spread = np.sqrt((4.0**case.bits - 1) / 12 * case.size)
    scales = rng.uniform(0.75, 1.25, (packing.n, packing.groups)) * rng.choice([-1, 1], (packing.n, packing.groups))
    return codes, (scales / spread).astype(np.float32)


def write(case: Case, path: Path) -> np.ndarray:
    """Write the model, its weights beside it; the output for :func:`rows_of`, in float64."""
    nodes, tensors = [], []
    value = rows_of(case).astype(np.float64)
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        for number in range(case.products):
            arrays = dict(zip((f"codes{number}", f"scales{number}"), weights(case, number), strict=True))
            for name, array in arrays.items():
                kind = TensorProto.UINT8 if array.dtype == np.uint8 else TensorProto.FLOAT
                tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
                for key, said in (("location", data.name), ("offset", file.tell()), ("length", array.nbytes)):
                    tensor.external_data.add(key=key, value=str(said))
                tensors.append(tensor)
                file.write(array.tobytes())
            attributes: dict[str, Any] = {"K": case.size, "N": case.size, "bits": case.bits, "block_size": case.group}
            attributes["accuracy_level"] = case.level
            names = [f"x{number}", *arrays], [f"x{number + 1}"]
            nodes.append(helper.make_node("MatMulNBits", *names, domain="com.microsoft", **attributes))
            value = value @ matrix(case.packing, *arrays.values(), None).astype(np.float64)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [case.rows, case.size])
        for name in ("x0", f"x{case.products}")
    ]
    graph = helper.make_graph(nodes, case.name, ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return value


def rows_of(case: Case) -> np.ndarray:
    """The input."""
    return np.random.default_rng(case.rows).standard_normal((case.rows, case.size)).astype(np.float32)


def jobs(case: Case, threads: int, folder: Path) -> list[Job]:
    """tvmopt's, then the peers'."""
    model = str(folder / f"{case.name}.onnx")
    ours = Job("tvmopt", model, str(folder / f"{case.name}-{threads}.tvmopt"), threads)
    return [ours, *(Job(peer, model, threads=threads) for peer in PEERS)]


def make(case: Case, threads: Sequence[int], folder: Path) -> dict[str, str]:
    """Write and compile a case, run every engine once; why an engine is left out, by its name."""
    path, faults = folder / f"{case.name}.onnx", {}
    expected = write(case, path)
    save_arrays(folder / f"{case.name}.npz", {"x0": rows_of(case)})
    for count in threads:
        for job in jobs(case, count, folder):
            try:
                if job.prepared:
                    tvmopt.compile(path, output=job.prepared, threads=count, records=False, verify=False)
                with Engine(job) as engine:
                    engine.ask("load", job)
                    engine.ask("bind", str(folder / f"{case.name}.npz"))
                    engine.ask("check", str(folder / "outputs.npz"))
                with np.load(folder / "outputs.npz") as file:
                    error = float(np.abs(file[f"x{case.products}"] - expected).max() / np.abs(expected).max())
                print(f"{case.name}, {count} threads, {job.engine}: error {error:.2g} of the largest", flush=True)
                if not error <= ALLOWED[case.level]:  # NaN, too
                    faults[job.engine] = f"an error of {error:.2g}"
            except TvmoptError as error:
                faults[job.engine] = str(error).splitlines()[0]
    write_text(folder / f"{case.name}.json", json.dumps(faults))
    return faults


def timed(case: Case, threads: int, folder: Path, rounds: int, launches: int) -> dict[str, Any]:
    """Bytes a second, the bandwidth, and the ratios of one case."""
    faults = json.loads((folder / f"{case.name}.json").read_text("utf-8"))
    found: dict[str, Any] = {**asdict(case), "threads": threads, "products": case.products, "left out": faults}
    if "tvmopt" in faults:
        return found
    right = [job for job in jobs(case, threads, folder) if job.engine not in faults]

    def start() -> list[Engine]:
        engines = []
        for job in right:
            engines.append(Engine(job))
            engines[-1].ask("load", job)
            engines[-1].ask("bind", str(folder / f"{case.name}.npz"))
        return engines

    bandwidth = read_bandwidth(threads)
    plan = Plan(rounds, launches, turn=0.2, warmup=1.0, patience=1.5)
    series, _ = measure(start, len(right), plan)
    bandwidth = max(bandwidth, read_bandwidth(threads))
    for job, one in zip(right, series, strict=True):
        seconds = median(one.samples or one.noisy) / case.products
        found[f"{job.engine} us"] = seconds * 1e6
        if case.rows == 1:
            found[f"{job.engine} share"] = case.weight_bytes / seconds / bandwidth
    for job, one in list(zip(right, series, strict=True))[1:]:
        ratio = compare_rounds(series[0].launches, one.launches)
        if not ratio.rounds:
            ratio = compare_rounds(series[0].every, one.every)  # every round was disturbed
        found[job.engine] = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict}
    found["disturbed"] = [series[0].disturbed, series[0].clean]
    found["bandwidth"] = bandwidth
    return found


def told(found: dict[str, Any]) -> str:
    """A line about a case."""
    words = [f"{found['tvmopt us']:.1f} us a product"] if "tvmopt us" in found else []
    if "tvmopt share" in found:
        words.append(f"{found['tvmopt share']:.2f} of {found['bandwidth'] / 1e9:.1f} GB/s")
    peers = {peer: found[peer] for peer in PEERS if peer in found}
    words += [f"{peer} {r['ratio']:.3f} ({r['low']:.3f} to {r['high']:.3f})" for peer, r in peers.items()]
    words += [f"{engine}: {why}" for engine, why in found["left out"].items()]
    return f"{case_of(found).name}, {found['threads']} threads: {', '.join(words)}"


def case_of(found: dict[str, Any]) -> Case:
    """The case that a result is of."""
    return Case(*(found[field.name] for field in fields(Case)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", "1,4,16,128"), ("bits", "4"), ("group", "32,128"), ("level", "4"), ("threads", "1")):
        parser.add_argument(f"--{name}", default=default, metavar="N,N", help=f"default: {default}")
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weights (default: 4096)")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keeps models and artifacts; what it has is not made again")
    parser.add_argument("--make", action="store_true", help="time nothing")
    parser.add_argument("--megabytes", type=int, default=640, help="of weights (default: 640)")
    args = parser.parse_args(arguments)
    rows, bits, group, level, threads = (
        [int(n) for n in getattr(args, name).split(",")] for name in ("rows", "bits", "group", "level", "threads")
    )
    result = models.FOLDER.parent / "results" / slug() / "packed-products.json"
    cases = [Case(m, args.size, b, g, i, args.megabytes) for m, b, g, i in itertools.product(rows, bits, group, level)]
    with tempfile.TemporaryDirectory() as temporary:
        for case in cases:
            folder = args.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / f"{case.name}.json").exists():
                make(case, threads, folder)
            for count in [] if args.make else threads:
                keep(result, timed(case, count, folder, args.rounds, args.launches))
            if not args.folder:
                for file in folder.iterdir():
                    file.unlink()
    return 0


def keep(result: Path, found: dict[str, Any]) -> None:
    """Print a case, and put it into the results in place of the one before."""
    print(told(found), flush=True)
    known = json.loads(result.read_text("utf-8")) if result.exists() else {"machine": describe_machine(), "cases": []}

    def place(one: dict[str, Any]) -> tuple[Any, ...]:
        return (*asdict(case_of(one)).values(), one["threads"])

    others = [one for one in known["cases"] if place(one) != place(found)]
    known["cases"] = sorted([*others, found], key=place)
    result.parent.mkdir(parents=True, exist_ok=True)
    write_text(result, json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
