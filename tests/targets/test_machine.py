"""The machines: every shipped file loads, contradictions are refused, the host is taken for what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm

from tvmopt.errors import InputError, TargetError
from tvmopt.runtime import choice
from tvmopt.targets import Machine, detect, detect_host, names
from tvmopt.targets.detect import host_arch
from tvmopt.targets.precision import check as check_precision


@pytest.mark.parametrize("name", names())
def test_every_shipped_machine(name: str) -> None:
    machine = Machine.load(name)
    assert machine.name == name
    assert machine.sources or name.startswith("x86-64")
    if machine.kind == "llvm":
        assert machine.lanes("float32") * 32 == machine.vector_bits
        assert machine.lanes("int8") == 4 * machine.lanes() == 8 * machine.lanes("float64")
    assert machine.cores > 1  # code for one thread has hardly any parallel loops, wherever it runs
    target = machine.tvm_target()
    assert target.kind.name == machine.kind


@pytest.mark.parametrize(
    ("text", "arch"),
    [("cuda", "sm_90"), ("nvidia/nvidia-h100", "sm_90"), ("nvidia/nvidia-h200", "sm_90"),
     ("nvidia/nvidia-a100", "sm_80"),
     ("sm_90", "sm_90"), ("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_90a", "sm_90a"), ("sm_100", "sm_100")],
)  # fmt: skip
def test_cuda_names(text: str, arch: str) -> None:
    machine = Machine.load(text)
    assert (machine.kind, machine.mcpu) == ("cuda", arch)


@pytest.mark.parametrize(("name", "tflops"), [("nvidia-a100", 19.5), ("nvidia-h100", 67), ("nvidia-h200", 67)])
def test_peaks_are_the_datasheets(name: str, tflops: float) -> None:
    assert Machine.load(name).peak_flops / 1e12 == pytest.approx(tflops, rel=0.01)


def test_a_processor_whose_tiles_are_masked_promises_none() -> None:
    machine = Machine.load("sapphirerapids")
    hidden = replace(machine, features=tuple(f for f in machine.features if not f.startswith("amx")))
    assert machine.peak_tiles > 0 and hidden.peak_tiles == 0


def test_unknown_names_get_the_nearest() -> None:
    for text, near in (
        ("znver6", "znver5"),
        ("sapphire-lapids", "sapphire-rapids"),
        ("nvidia-h10", "nvidia-h100"),
    ):
        with pytest.raises(TargetError, match=f"did you mean .*'{near}'"):
            Machine.load(text)
    with pytest.raises(TargetError, match="one of"):
        Machine.load("")
    with pytest.raises(TargetError) as error:  # it has a few letters of many
        Machine.load("nope")
    assert "did you mean" not in error.value.what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind = 'llvm'", "missing field 'mcpu'"),
        ("kind = 'llvm'\nmcpu = 'x'\nlanes = 3", "unknown field 'lanes'"),
        ("kind = 'gpu'\nmcpu = 'x'", "must be 'llvm' or 'cuda'"),
        ("kind = 'llvm'\nmcpu = 'x'\nvector_bits = 512", "features lack avx512f"),
        ("kind = 'llvm'\nmcpu = 'x'\nvector_bits = 100", "must be 128, 256 or 512"),
        ("kind = 'llvm'\nmcpu = 'x'\nl1d = 1000000", "caches must grow"),
        ("kind = 'llvm'\nmcpu = 'x'\ncores = 0", "cores is 0"),
        ("kind = 'llvm'\nmcpu = 'x'\ncores = 'many'", "cores is 'many', must be a whole number"),
        ("kind = 'llvm'\nmcpu = 'x'\nfeatures = 'avx2'", "must be a list of strings"),
        ("kind = 'llvm'\nmcpu = 3", "mcpu is 3, must be a string"),
        ("kind = 'llvm'\nmcpu = 'x'\nfeatures = ['amx-bf16', 'amx-tile']", "needs amx-tile .* and tile_macs"),
        ("kind = ", "not a TOML file"),
    ],
)
def test_files_that_contradict_themselves(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(TargetError, match=words) as told:
        Machine.load(path)
    assert "mine" in str(told.value)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("kind = 'llvm'\nmcpu = 'x86-64-v3'\nvector_bits = 256\ncores = 7\nfeatures = ['avx2', 'fma']")
    machine = Machine.load(str(path))
    assert (machine.name, machine.cores, machine.has("fma"), machine.lanes()) == ("mine", 7, True, 8)
    with pytest.raises(TargetError, match="cannot read"):
        Machine.load(tmp_path / "missing.toml")


V3 = "fma avx2 f16c bmi1 bmi2 abm movbe"
V4 = f"{V3} avx512f avx512dq avx512bw avx512vl avx512cd"
ICE = f"{V4} avx512ifma avx512_vbmi2 avx512_bitalg avx512_vpopcntdq gfni"
ZEN4 = ("+avx512vnni", "+avx512vbmi", "+avx512bf16", "+prefer-no-gather", "+prefer-no-scatter")
SAPPHIRE = f"{ICE} avx512vbmi avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "name", "bits", "differs"),
    [
        ("GenuineIntel", 6, 143, SAPPHIRE, "sapphirerapids", 512, ()),  # LLVM calls some of these rocketlake
        ("GenuineIntel", 6, 143, SAPPHIRE.replace(" amx_tile amx_bf16 amx_int8", ""), "sapphirerapids", 512,
         ("-amx-tile", "-amx-bf16", "-amx-int8")),
        ("GenuineIntel", 6, 143, SAPPHIRE.replace(" amx_bf16", ""), "sapphirerapids", 512,
         ("-amx-tile", "-amx-bf16", "-amx-int8")),  # a part of AMX is no AMX
        ("GenuineIntel", 6, 999, SAPPHIRE, "sapphirerapids", 512, ()),  # a later one with tiles
        ("GenuineIntel", 6, 143, V3, "x86-64-v3", 256, ()),  # a hypervisor that hides AVX-512
        ("AuthenticAMD", 26, 2, ICE + " avx512vbmi avx512_vnni avx512_bf16 avx_vnni sse4a", "znver5", 512, ()),
        ("AuthenticAMD", 26, 2, ICE.replace("gfni", "") + " avx512vbmi avx512_vnni avx512_bf16 avx_vnni", "znver5", 512,
         ("-gfni", "-sse4a")),  # hidden, and no schedule asks for them
        ("GenuineIntel", 6, 85, V4, "x86-64-v4", 512, ()),
        ("AuthenticAMD", 25, 17, V4 + " avx512_vnni avx512_bf16 avx512vbmi", "znver4", 512, ZEN4),
        ("AuthenticAMD", 25, 97, V4 + " avx512_vnni avx512_bf16", "znver4", 512, (*ZEN4, "-avx512vbmi")),
        ("AuthenticAMD", 25, 17, V3, "x86-64-v3", 256, ()),  # a hypervisor that hides AVX-512
        ("AuthenticAMD", 25, 33, V3, "x86-64-v3", 256, ()),  # Zen 3
        ("GenuineIntel", 6, 106, V4 + " avx512_vnni avx512_bf16", "x86-64-v4", 512, ("+avx512vnni", "+avx512bf16")),
        ("GenuineIntel", 6, 106, V4 + " avx512vbmi avx512_vbmi2", "x86-64-v4", 512, ("+avx512vbmi",)),
        ("AuthenticAMD", 23, 1, V3, "x86-64-v3", 256, ()),
        ("AuthenticAMD", 23, 1, V3.replace("bmi2 ", ""), "x86-64-v3", 256, ("-bmi2",)),
        ("GenuineIntel", 6, 42, "avx sse4_2", "x86-64-v2", 128, ()),
        ("", 0, 0, "", "x86-64-v2", 128, ()),
    ],
)  # fmt: skip
def test_detection(
    monkeypatch: pytest.MonkeyPatch,
    vendor: str, family: int, model: int, flags: str, name: str, bits: int, differs: tuple[str, ...],
) -> None:  # fmt: skip
    info = {"vendor_id": vendor, "cpu family": str(family), "model": str(model), "flags": flags}
    monkeypatch.setattr(detect, "_cpuinfo", lambda: info)
    monkeypatch.setattr(detect.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(detect.cpuid, "absent", frozenset)
    machine = detect_host.__wrapped__()
    assert (machine.name, machine.vector_bits) == (name, bits)
    assert set(machine.tvm.get("mattr", ())) == set(differs)
    machine.tvm_target()


@pytest.mark.parametrize(
    ("part", "words", "name", "features"),
    [
        ("", (0, 0), "aarch64", set()),
        ("0xd0c", (1 << 8 | 1 << 9 | 1 << 10 | 1 << 20, 0), "neoverse-n1", {"lse", "fullfp16", "dotprod"}),
        ("0xd40", (1 << 20 | 1 << 22, 1 << 13 | 1 << 14), "neoverse-v1", {"dotprod", "sve", "i8mm", "bf16"}),
        ("0xfff", (1 << 9 | 1 << 20, 1 << 1), "aarch64", {"dotprod", "sve2"}),  # half of fp16 is none
    ],
)
def test_detection_on_arm(
    monkeypatch: pytest.MonkeyPatch, part: str, words: tuple[int, int], name: str, features: set[str]
) -> None:
    monkeypatch.setattr(detect, "_cpuinfo", lambda: {"CPU implementer": "0x41", "CPU part": part})
    monkeypatch.setattr(detect, "_auxiliary", {16: words[0], 26: words[1]}.__getitem__)
    monkeypatch.setattr(detect.platform, "machine", lambda: "aarch64")
    machine = detect_host.__wrapped__()
    assert (machine.name, set(machine.features)) == (name, features)
    assert not {f"-{f}" for f in features} & set(machine.tvm.get("mattr", ()))


def test_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = detect.usable_cores()
    assert everything >= 1
    monkeypatch.setattr(detect, "_quota", lambda: 1)
    assert detect.usable_cores() == 1
    monkeypatch.setattr(detect, "_quota", lambda: 1 << 16)
    monkeypatch.setattr(detect.os, "sched_getaffinity", lambda pid: {0})
    assert detect.usable_cores() == 1


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({}, "0::/", 1 << 16),
        ({"cpu.max": "max 100000"}, "0::/", 1 << 16),
        ({"cpu.max": "200000 100000"}, "0::/", 2),
        ({"cpu.max": "150000 100000"}, None, 2),
        ({"cpu.max": "20000 100000"}, "0::/", 1),
        ({"a.slice/cpu.max": "300000 100000", "a.slice/b.service/cpu.max": "max 100000"}, "0::/a.slice/b.service", 3),
        ({"a.slice/cpu.max": "700000 100000", "a.slice/b/cpu.max": "400000 100000"}, "0::/a.slice/b", 4),
        ({"cpu.max": "500000 100000"}, "0::/../outside/it", 5),  # of a container, seen from outside
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "2:cpu:/\n1:name=systemd:/", 1 << 16),
        ({"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "50000"}, "4:cpu,cpuacct:/x\n0::/", 5),
        ({"cpu/cpu.cfs_quota_us": "600000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/docker/1f", 6),
        ({"cpu.max": "nonsense"}, "nonsense", 1 << 16),
        ({"cpu.max": "100000 0"}, "0::/", 1 << 16),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, files: dict[str, str], own: str | None, cores: int) -> None:
    """Both versions, and groups inside of groups: the least counts."""
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    if own is not None:
        (tmp_path / "own").write_text(own + "\n")
    assert detect._quota(tmp_path / "root", tmp_path / "own") == cores


@pytest.mark.parametrize("name", [n for n in names() if Machine.load(n).arch == "x86_64"])
def test_what_llvm_takes_by_itself(name: str) -> None:
    """LLVM's own list for the processor has these of the instructions that it generates, and no other."""
    machine = Machine.load(name)
    if machine.kind == "cuda":
        return
    listed = set(map(str, tvm.get_global_func("target.llvm_get_cpu_features")(machine.tvm_target())))
    assert set(detect.IMPLIED.get(machine.mcpu, ())) == listed & set(detect._GENERATED.values())
    assert set(machine.instructions) <= listed
    forbidden = replace(machine, tvm={"mattr": ["-gfni", "-bmi2"]})
    assert not {"gfni", "bmi2"} & set(forbidden.instructions)


def test_a_processor_without_them_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zen 5's code may have SSE4a, which no processor of Intel's has, whatever vectors both have."""
    machine = replace(Machine.load("cpu"), name="mine", mcpu="znver5")
    monkeypatch.setattr(choice, "detect_host", lambda: machine)
    monkeypatch.setattr(choice, "generated", lambda: frozenset(detect._GENERATED.values()) - {"sse4a"})
    needs = machine.instructions if host_arch() == "x86_64" else ("sse4a",)
    manifest = SimpleNamespace(features=needs, arch="", kind="llvm")
    assert choice.unfit(manifest) == "this machine lacks instructions the artifact uses: sse4a"


@pytest.mark.parametrize(
    ("precision", "told"),
    [("float32", "did you mean fp32? one of"), ("BFloat16", "did you mean bf16?"), ("int8", "`tvmopt quantize`")],
)
def test_precisions_by_other_names(precision: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        check_precision(precision, Machine.load("x86-64-v3"))
    assert told in caught.value.fix
