"""Hashes of every kernel's machine code, to show that a refactoring changed nothing - or which kernels it changed.

    python benchmarks/same_code.py --write              # before: hash every kernel of the suite into build/same-code
    python benchmarks/same_code.py                      # after: compile again, compare, name every kernel that differs
    python benchmarks/same_code.py resnet50 --precision bf16
    python benchmarks/same_code.py --against FOLDER     # hashes that another checkout wrote

The exit code is 1 where a kernel differs, appeared or is gone. A change that alters none needs no timing; one that
alters some names them in its commit message.

What is compiled does not depend on this machine: a named target with two cores and no tuning records. Hashed is the
assembly of a kernel with that of the functions it calls, without labels' numbers, debug information and texts; for a
GPU the CUDA C++, of which PTX is a function. Kernels go by name, and one that was only renamed is told as such.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import models

RECORDED = Path("build/same-code")
TARGETS = {"fp32": "znver5", "bf16": "znver5", "fp16": "nvidia-h100"}
CORES = 2


def hashes(model: Path, precision: str) -> dict[str, str]:
    """Hash of each kernel of a model, compiled for the target of that precision (:data:`TARGETS`)."""
    from tvmopt import pipeline
    from tvmopt.compiler.kernels import compiled, named
    from tvmopt.importer import import_model
    from tvmopt.passes.lift_constants import lift_constants
    from tvmopt.report import DecisionLog
    from tvmopt.targets import Machine

    machine = Machine.load(TARGETS[precision])
    if machine.kind == "llvm":
        machine = machine.with_cores(CORES)
    lowered = pipeline.lower(import_model(model, {}).module, machine, DecisionLog(), precision=precision)
    lowered.module, _ = lift_constants(lowered.module)
    if machine.kind == "cuda":
        return cuda_hashes(pipeline.build(lowered, machine))
    run, _ = pipeline.plan_memory(lowered, machine)
    code = (compiled(func, name, run.module, machine) for name, func in named(run.module))
    return {name: digest for module in code for name, digest in assembly_hashes(module.inspect_source("asm")).items()}


_FUNCTION = re.compile(
    r"^(?P<name>[\w.$]+):\s*(#.*)?\n\.Lfunc_begin(?P<index>\d+):\n(?P<body>.*?)^\.Lfunc_end", re.M | re.S
)
_CONSTANT = re.compile(r"^\.LCPI(?P<label>\d+_\d+):\n(?P<body>(?:\t\.(?!section|text).*\n)+)", re.M)
_DROPPED = re.compile(r"^(\t\.(loc|file|cfi_\w+|p2align)\b.*|\.L(tmp|func_begin)\d+:.*)\n", re.M)
_PREFIX = "__tvm_ffi_"


def assembly_hashes(text: str) -> dict[str, str]:
    r"""Hash of each kernel in LLVM's assembly of a TVM module.

    Numbers of labels, which depend on what stands before a function, do not count:

    >>> one = "__tvm_ffi_k:\n.Lfunc_begin0:\n\tjmp\t.LBB0_1\n.LBB0_1:\n\tretq\n.Lfunc_end0:\n"
    >>> two = one.replace("LBB0", "LBB7").replace("func_begin0", "func_begin7")
    >>> assembly_hashes(one) == assembly_hashes(two)
    True
    >>> assembly_hashes(one) == assembly_hashes(one.replace("retq", "ud2"))
    False

    What a function calls does. Where a kernel's loops are a function of their own, the checks of its arguments in front
    of them do not: their error texts are shared within a module.

    >>> callee = "k_compute_:\n.Lfunc_begin1:\n\tnop\n\tretq\n.Lfunc_end1:\n"
    >>> caller = one.replace("retq", "callq\tk_compute_") + callee
    >>> assembly_hashes(caller) == assembly_hashes(caller.replace("nop", "ud2"))
    False
    >>> assembly_hashes(caller) == assembly_hashes(caller.replace("\tjmp", "\tnop\n\tjmp"))
    True
    """
    constants = {hit["label"]: hit["body"] for hit in _CONSTANT.finditer(text)}
    functions = {}
    for hit in _FUNCTION.finditer(text):
        functions[hit["name"]] = _plain(hit["body"], constants)
    names = [name.removeprefix(_PREFIX) for name in functions if name.startswith(_PREFIX)]
    loops = {name: f"{name}_compute_" if f"{name}_compute_" in functions else _PREFIX + name for name in names}
    return {name: _hash(_with_callees(start, functions, ())) for name, start in loops.items()}


def _plain(body: str, constants: Mapping[str, str]) -> str:
    """A function's body with what its constants hold, and without what depends on its place in the module."""
    body = _DROPPED.sub("", body)
    body = re.sub(r"\.LCPI(\d+_\d+)", lambda hit: "<" + " ".join(constants.get(hit[1], "").split()) + ">", body)
    body = re.sub(r"\.L(BB|JTI)\d+_(\d+)", r".L\1_\2", body)
    return re.sub(r"\.L(\.str|__unnamed_|switch\.table)[\w.]*", r".L\1", body)


def _with_callees(name: str, functions: Mapping[str, str], above: tuple[str, ...]) -> str:
    """A function, then the functions that it names, in the order of first mention: loops, and their parallel bodies."""
    body = functions[name]
    named = dict.fromkeys(re.findall(r"[A-Za-z_.][\w.$]+", body))
    text = body
    for number, callee in enumerate(c for c in named if c in functions and c not in (name, *above)):
        text = re.sub(rf"(?<![\w.$]){re.escape(callee)}(?![\w.$])", f".Lcallee{number}", text)
        text += _with_callees(callee, functions, (*above, name))
    return text


def cuda_hashes(executable: Any) -> dict[str, str]:
    """Hash of each kernel's CUDA C++, with everything that stands before the first kernel."""
    texts = [m.inspect_source() for m in _modules(executable.mod) if m.kind == "cuda"]
    found = {}
    for text in texts:
        head, *kernels = re.split(r"(?=^extern \"C\" __global__)", text, flags=re.M)
        for kernel in kernels:
            name = re.search(r"(\w+)\(", kernel.split("__launch_bounds__", 1)[-1].split(")", 1)[-1])
            found[name[1] if name else f"kernel{len(found)}"] = _hash(kernel)
        found["(what all kernels share)"] = _hash(head)
    return found


def _modules(module: Any) -> Iterable[Any]:
    yield module
    for one in module.imports:
        yield from _modules(one)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """One line a kernel that is not the same.

    >>> differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "d": "2", "c": "4"})
    ['c: other code', 'b is called d now']
    """
    lines = [f"{name}: other code" for name in old if name in new and old[name] != new[name]]
    fresh = {digest: name for name, digest in new.items() if name not in old}
    for name, digest in old.items():
        if name not in new:
            lines.append(f"{name} is called {fresh.pop(digest)} now" if digest in fresh else f"{name}: gone")
    return lines + [f"{name}: new" for name in fresh.values()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the machine code of the suite's kernels with recorded hashes."
    )
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which models (default: all 17)")
    parser.add_argument("--precision", action="append", choices=sorted(TARGETS), help="default: fp32 and bf16")
    parser.add_argument("--models", type=Path, default=models.FOLDER, help="where the models are, or are written")
    parser.add_argument("--against", type=Path, default=RECORDED, help="the folder of recorded hashes")
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    args = parser.parse_args()
    failed = False
    for precision in args.precision or ("fp32", "bf16"):
        path = args.against / f"{precision}.json"
        recorded: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.is_file() else {}
        for name in args.names or list(models.BY_NAME):
            found = hashes(models.write(name, args.models, batch=1), precision)
            if args.write:
                recorded[name] = found
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
                print(f"{precision} {name}: {len(found)} kernels recorded", flush=True)
                continue
            if name not in recorded:
                print(f"{precision} {name}: nothing is recorded", flush=True)
                failed = True
                continue
            lines = differences(recorded[name], found)
            failed = failed or bool(lines)
            print(f"{precision} {name}: {len(found)} kernels, {'; '.join(lines) or 'the same'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
