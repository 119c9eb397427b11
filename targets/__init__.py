"""The machines tvmopt knows, as data: one TOML file a machine, and the loader - for schedules, which ask
`machine.vector_bits` and never `machine.name`.

A :class:`Machine` is frozen and checks itself. `Machine.load("cpu")` is the host, detected from what the
processor says of itself (TVM's own guess is not used: LLVM calls some Sapphire Rapids machines "rocketlake").
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from tvmopt.errors import TargetError, reason
from tvmopt.targets import devices
from tvmopt.targets.detect import IMPLIED, generated, host_arch, read_host
from tvmopt.targets.systems import check_target

GATHERS_BREAK = frozenset({"znver4", "znver5"})
"""CPUs whose code LLVM 22 gets wrong where it vectorises conditional loads as 512-bit gathers.

Seen on a rotary embedding in one kernel: half of the result was wrong; it is right with 256 bits, without
gathers, and for Intel's CPUs. Gathers are slow there anyway.
"""


@dataclass(frozen=True)
class Machine:
    """One machine, as a schedule sees it.

    Attributes:
        name: the TOML file's stem.
        kind: TVM's target kind: ``"llvm"`` or ``"cuda"``.
        mcpu: LLVM's CPU name (``llvm``), or the architecture such as ``sm_90`` (``cuda``).
        arch: instruction set of an ``llvm`` machine, by uname's name: ``x86_64`` or ``aarch64``.
        cores: physical cores used; for CUDA, streaming multiprocessors.
        vector_bits: width of the widest fp32 vector register used.
        vector_registers: architectural vector registers.
        fma_ports: vector FMAs started a cycle and core.
        fma_latency: cycles from an FMA's operands to its result.
        load_ports: vector loads a cycle and core.
        narrow: what a register tile of one vector takes, over what its multiply-adds and loads do; at least 1.
        l1d, l2, l3: bytes of data cache; L1 and L2 a core, L3 shared.
        line: bytes of a cache line.
        l1_ways: associativity of L1d; strides that are multiples of ``l1d / l1_ways`` collide.
        l2_rate: bytes a cycle that a stream from L2 sustains.
        l3_rate: bytes a cycle and core that a stream from L3 sustains.
        ghz: sustained clock under vector load.
        bandwidth: bytes a second from memory, all cores.
        core_bandwidth: bytes a second that one core reads and writes while it copies, data in its caches.
        exp_cycles: cycles of our exp of one vector; other transcendental functions take about as long.
        thread_ns: nanoseconds until a sleeping thread of TVM's pool runs a task.
        barrier_ns: nanoseconds in which all cores meet in a parallel loop.
        tile_rows: rows of a register tile, where the model finds several heights equally fast.
        prefetched_loads: load instructions of one loop whose streams the prefetcher into L1 still follows.
        bf16_rate: operations by the bf16 dot product for one by an fp32 FMA, both in vectors.
        stream_ahead: bytes that one row prefetches ahead in packed weights from memory; 0: the processor's own
            prefetchers do better alone.
        unhidden: share of a stream from memory that prefetching does not hide behind arithmetic, from 0 to 1.
        sm_threads, sm_blocks, sm_shared: what one streaming multiprocessor holds: threads, blocks, and
        bytes of shared memory (``cuda``).
        sm_lanes: fp32 FMAs that one streaming multiprocessor starts a cycle (``cuda``).
        tile_macs: bf16 multiply-adds a cycle and core by AMX tiles, fp32 sums; 0: no tiles.
        features: ISA features: ``avx2 fma avx512f avx512bf16 avx512vnni amx-bf16 amx-int8 ...``.
        tvm: further attributes of TVM's target, passed on as they are.
        sources: where each number comes from.

    The defaults of `l3_rate` and of `core_bandwidth` to `unhidden` are Zen 5's; `znver5.toml` has their sources. Nobody
    has measured them elsewhere yet.
    """

    name: str
    kind: str
    mcpu: str
    arch: str = "x86_64"
    cores: int = 1
    vector_bits: int = 128
    vector_registers: int = 16
    fma_ports: int = 1
    fma_latency: int = 4
    load_ports: int = 2
    narrow: float = 1.0
    l1d: int = 32768
    l2: int = 262144
    l3: int = 4194304
    line: int = 64
    l1_ways: int = 8
    l2_rate: int = 32
    l3_rate: int = 16
    ghz: float = 2.0
    bandwidth: float = 10e9
    core_bandwidth: float = 48e9
    exp_cycles: float = 13.0
    thread_ns: float = 5000.0
    barrier_ns: float = 2500.0
    tile_rows: int = 8
    prefetched_loads: int = 28
    bf16_rate: float = 1.86
    unhidden: float = 0.35
    stream_ahead: int = 0
    sm_threads: int = 2048
    sm_blocks: int = 32
    sm_shared: int = 0
    sm_lanes: int = 128
    tile_macs: int = 0
    features: tuple[str, ...] = ()
    tvm: dict[str, Any] = field(default_factory=dict, hash=False)
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in ("llvm", "cuda"):
            problems.append(f"kind is {self.kind!r}, must be 'llvm' or 'cuda'")
        for key in ("cores", "fma_ports", "fma_latency", "load_ports", "l1d", "line", "vector_registers", "sm_lanes",
                    "narrow", "l2_rate", "l3_rate", "tile_rows", "prefetched_loads"):  # fmt: skip
            if getattr(self, key) < 1:
                problems.append(f"{key} is {getattr(self, key)}, must be at least 1")
        if self.kind == "llvm":
            if self.arch not in ("x86_64", "aarch64"):
                problems.append(f"arch is {self.arch!r}, must be 'x86_64' or 'aarch64'")
            if self.vector_bits not in (64, 128, 256, 512):  # 64: half of 128, see `of_doubles`
                problems.append(f"vector_bits is {self.vector_bits}, must be 128, 256 or 512")
            if not self.l1d <= self.l2 <= max(self.l3, self.l2):
                problems.append(f"caches must grow: l1d={self.l1d}, l2={self.l2}, l3={self.l3}")
            if self.vector_bits == 512 and "avx512f" not in self.features:
                problems.append("vector_bits is 512 but the features lack avx512f")
            if self.has("amx-bf16") and (self.tile_macs < 1 or not self.has("amx-tile")):
                problems.append("amx-bf16 needs amx-tile in the features, and tile_macs")
        if problems:
            raise TargetError("; ".join(problems), where=f"target {self.name!r}", fix="mend the TOML file")

    # -- what schedules ask ------------------------------------------------------------------------------

    def lanes(self, dtype: str = "float32") -> int:
        """Elements of `dtype` in one vector register.

        >>> Machine("m", "llvm", "x86-64-v3", vector_bits=256).lanes("float32")
        8
        """
        bits = {
            "float64": 64,
            "int64": 64,
            "uint64": 64,
            "float16": 16,
            "bfloat16": 16,
            "int8": 8,
            "uint8": 8,
        }
        return self.vector_bits // bits.get(dtype, 32)

    @cached_property
    def of_doubles(self) -> Machine:
        """The machine as products of float64 see it, counted in the bytes of float32: a vector has half the lanes, and
        a cache holds half the numbers.

        >>> Machine("m", "llvm", "x86-64-v3", vector_bits=256).of_doubles.lanes()
        4
        """
        sizes = {key: getattr(self, key) // 2 for key in ("vector_bits", "l1d", "l2", "l3")}
        return replace(self, **sizes)

    def comes_from_memory(self, weights: int) -> bool:
        """Whether the weights of a product of one row, so many bytes, are read from memory at every call: beside what
        the rest of a model reads, L2 keeps half of its size at the most.

        >>> Machine.load("sapphirerapids").comes_from_memory(1_228_800)  # of 2 MB: 1280 x 1280 in 4 bits with scales
        True
        """
        return weights > self.l2 // 2

    def has(self, feature: str) -> bool:
        """Whether the machine has an ISA feature."""
        return feature in self.features

    @property
    def instructions(self) -> tuple[str, ...]:
        """What code for it may have: its features, and what LLVM takes by itself for its `mcpu` and is not forbidden.

        >>> Machine.load("x86-64-v3").instructions
        ('avx2', 'bmi', 'bmi2', 'f16c', 'fma', 'lzcnt', 'movbe')
        """
        forbidden = {word[1:] for word in self.tvm.get("mattr", ()) if word.startswith("-")}
        return tuple(sorted({*self.features, *(IMPLIED.get(self.mcpu, ()))} - forbidden))

    @property
    def has_tiles(self) -> bool:
        """Whether it multiplies tiles of bf16 (AMX)."""
        return self.has("amx-tile") and self.has("amx-bf16")

    @property
    def foreign(self) -> bool:
        """Whether its code has other instructions than this host's: it can be made here, but not run."""
        return self.kind == "llvm" and self.arch != host_arch()

    @property
    def peak_flops(self) -> float:
        """fp32 peak, all cores, no tensor cores: cores * GHz * FMAs a cycle and core * 2 (an FMA is two operations).

        The FMAs a cycle are ports * lanes of a CPU's core, ``sm_lanes`` of a streaming multiprocessor.

        >>> Machine("m", "cuda", "sm_90", cores=132, ghz=1.98).peak_flops / 1e12  # H100's datasheet: 67
        66.9...
        """
        if self.kind == "cuda":
            return self.cores * self.ghz * 1e9 * self.sm_lanes * 2
        return self.cores * self.ghz * 1e9 * self.fma_ports * self.lanes() * 2

    @property
    def peak_tiles(self) -> float:
        """bf16 peak of AMX tiles, all cores: cores * GHz * tile_macs * 2; 0 where there are none.

        >>> Machine.load("sapphirerapids").with_cores(1).peak_tiles / 1e12
        3.37...
        """
        return self.cores * self.ghz * 1e9 * self.tile_macs * 2 if self.has_tiles else 0.0

    def tvm_target(self) -> Any:
        """The `tvm.target.Target`; `num-cores` is always in it, for TVM's own passes."""
        import tvm

        if self.kind == "cuda":
            devices.load()
            host = {"kind": "llvm", **({"mcpu": "x86-64-v2"} if host_arch() == "x86_64" else {})}
            return tvm.target.Target({"kind": "cuda", "arch": self.mcpu, **self.tvm}, host=host)
        attributes: dict[str, Any] = {"mcpu": self.mcpu, "num-cores": self.cores}
        if self.foreign:
            attributes["mtriple"] = f"{self.arch}-linux-gnu"
        if self.mcpu in GATHERS_BREAK:
            attributes["mattr"] = ["+prefer-no-gather"]
        return tvm.target.Target({"kind": "llvm", **attributes, **self.tvm})

    def with_cores(self, cores: int) -> Machine:
        """The same machine with another number of threads."""
        return replace(self, cores=cores)

    def without_tiles(self) -> Machine:
        """The same machine without its tile unit: the code of one that has AVX-512 and no AMX."""
        return replace(self, features=tuple(f for f in self.features if not f.startswith("amx-")), tile_macs=0)

    def with_threads(self, threads: int | None) -> Machine:
        """The machine as so many threads of the host see it: a CPU with so many cores; a GPU, and anything for None, as
        it is."""
        return self.with_cores(threads) if threads and self.kind == "llvm" else self

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """The machine that :meth:`as_dict` wrote, also where it was kept as JSON."""
        return cls(**{**data, "features": tuple(data["features"])})

    # -- loading -----------------------------------------------------------------------------------------

    @classmethod
    def load(cls, spec: str | Path | Machine) -> Machine:
        """A machine from a name, a TOML file, ``"cpu"``/``"host"``/``"llvm"`` (this machine) or ``"cuda"``.

        Raises:
            TargetError: unknown name (with the nearest ones), unreadable file, contradictory fields.
        """
        if isinstance(spec, Machine):
            return spec
        text = str(spec)
        if text in ("cpu", "host", "llvm", "native"):
            return detect_host()
        if text.endswith(".toml"):
            return cls._read(Path(text).stem, _read_text(Path(text)), where=text)
        alias = _ALIASES.get(text, text)
        if alias in names():
            shipped = resources.files(__package__) / f"{alias}.toml"
            return cls._read(alias, shipped.read_text(), where=f"{alias}.toml")
        if re.fullmatch(r"sm_\d{2,3}[af]?", text):  # an architecture without a file: the nearest GPU's figures
            number = int(re.sub(r"\D", "", text))
            nearest = cls.load(
                "nvidia-b200" if number in (100, 103) else "nvidia-h100" if number >= 90 else "nvidia-a100"
            )
            return replace(nearest, name=text, mcpu=text)
        check_target(text)
        if "+" in text:
            fix = "name one target; `tvmopt compile` takes several"
            raise TargetError(f"{text!r} is several targets, and only a compile takes those.", fix=fix)
        known = [*names(), "cpu", *_ALIASES]
        near = [name for name in known if len(text) > 2 and text.lower() in name.lower()]
        near = (near + [n for n in difflib.get_close_matches(text, known, n=3, cutoff=0.5) if n not in near])[:3]
        raise TargetError(
            f"unknown target {text!r}" + (f", did you mean {' or '.join(map(repr, near))}?" if near else ""),
            fix=f"one of {', '.join(known)}, or a TOML file; `tvmopt targets list` shows them",
        )

    @classmethod
    def _read(cls, name: str, text: str, where: str) -> Machine:
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TargetError(f"not a TOML file: {error}", where=where) from error
        data.setdefault("name", name)
        if isinstance(data.get("features"), list):
            data["features"] = tuple(data["features"])
        unknown = sorted(set(data) - set(cls.__dataclass_fields__))
        missing = sorted({"kind", "mcpu"} - set(data))
        if unknown or missing:
            what = [f"unknown field {k!r}" for k in unknown] + [f"missing field {k!r}" for k in missing]
            raise TargetError("; ".join(what), where=where, fix=f"fields: {', '.join(cls.__dataclass_fields__)}")
        wrong = [
            f"{key} is {value!r}, must be {_KINDS[kind]}"
            for key, value in data.items()
            if (kind := cls.__dataclass_fields__[key].type) in _KINDS and not _fits(value, kind)
        ]
        if wrong:
            raise TargetError("; ".join(wrong), where=where, fix="mend the TOML file")
        check_target(str(data.get("tvm", {}).get("mtriple", "")), where)
        return cls(**data)


@cache
def detect_host() -> Machine:
    """This machine: its TOML file where the model is known, else the description of its ISA level.

    Caches, cores and features are read from the machine, whatever the file says.
    """
    host = read_host()
    found = (Machine.load(name) for name in host.descriptions)
    machine = next(m for m in found if m.name == host.descriptions[-1] or not host.hides & set(m.features))
    hidden = [f"-{f}" for f in machine.features if f not in host.features]  # by a hypervisor: LLVM must not use it
    hidden += [f"-{f}" for f in IMPLIED.get(machine.mcpu, ()) if f not in generated()]
    more = [f"+{f}" for f in host.features if f not in machine.features]  # families use it: LLVM must know it
    return replace(
        machine,
        cores=host.cores,
        features=host.features,
        tvm={**machine.tvm, "mattr": [*machine.tvm.get("mattr", ()), *hidden, *more]} if hidden + more else machine.tvm,
        l1d=host.l1d or machine.l1d,
        l2=host.l2 or machine.l2,
        l3=host.l3 or machine.l3,
    )


_ALIASES = {"sapphire-rapids": "sapphirerapids", "cuda": "nvidia-h100",
            "nvidia/nvidia-h100": "nvidia-h100", "nvidia/nvidia-h200": "nvidia-h200",
            "nvidia/nvidia-a100": "nvidia-a100", "nvidia/nvidia-b200": "nvidia-b200",
            "sm_80": "nvidia-a100", "sm_90": "nvidia-h100", "sm_100": "nvidia-b200"}  # fmt: skip

_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "tuple[str, ...]": "a list of strings",
    "dict[str, Any]": "a table",
    "dict[str, str]": "a table",
}


def _fits(value: Any, kind: str) -> bool:
    if kind == "tuple[str, ...]":
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    types: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
    return isinstance(value, types.get(kind, (dict,))) and not isinstance(value, bool)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        told = f"cannot read the target file: {reason(error)}"
        raise TargetError(told, where=str(path), fix="check the path") from error


def names() -> list[str]:
    """The names of the machines that ship, sorted."""
    files = (p.name for p in resources.files(__package__).iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
