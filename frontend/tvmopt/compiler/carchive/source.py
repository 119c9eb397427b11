"""The C of an archive: its header, its program, and an example that calls it - for `emit.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from string import Template

from tvmopt.compiler.carchive.program import Place, Program
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.tensors import ALIGNMENT, TensorInfo
from tvmopt.targets.cpuid import BITS
from tvmopt.targets.detect import HWCAPS

SUPPORT = Path(__file__).with_name("support.h")
"""What the program includes."""

TYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""TVM's name of a type -> C's; 16-bit floats are their bits, and so are floats of 8."""

_WORDS = (
    "alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr continue "
    "decltype default delete do double else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new not nullptr operator or private protected public register restrict return short signed "
    "sizeof static struct switch template this throw true try typedef typeid typename typeof union unsigned using "
    "virtual void volatile while xor"
)
KEYWORDS = frozenset(_WORDS.split())
"""Of C and C++."""


@dataclass(frozen=True)
class Facts:
    """What the text of an archive follows from.

    Attributes:
        name: of its files and functions, a C identifier.
        scratch: bytes that kernels need themselves, a thread.
        parallel: some kernel has parallel loops.
        linked: the weights are a part of the library.
    """

    name: str
    manifest: Manifest
    program: Program
    scratch: int
    parallel: bool
    linked: bool


def identifier(text: str) -> str:
    """A name as one of C.

    >>> identifier("gpu_0/data_0"), identifier("2nd"), identifier("default"), identifier("größe")
    ('gpu_0_data_0', '_2nd', 'default_', 'gr__e')
    """
    plain = re.sub(r"[^0-9A-Za-z_]", "_", text) or "_"
    return f"_{plain}" if plain[0].isdigit() else f"{plain}_" if plain in KEYWORDS else plain


def identifiers(texts: Iterable[str]) -> list[str]:
    """Names as different ones of C, also where they are written large, as in macros.

    >>> identifiers(["x.1", "x:1", "y", "Y"])
    ['x_1', 'x_1_2', 'y', 'Y_2']
    """
    found: list[str] = []
    for text in texts:
        name, number = identifier(text), 2
        while name.upper() in map(str.upper, found):
            name, number = f"{identifier(text)}_{number}", number + 1
        found.append(name)
    return found


def header(facts: Facts) -> str:
    """What a program includes."""
    manifest, upper = facts.manifest, facts.name.upper()
    return _filled(
        "header.h",
        name=facts.name, upper=upper, model=_comment(manifest.model), target=_comment(manifest.target),
        precision=manifest.precision, threads=manifest.threads,
        workspace=facts.program.workspace + ALIGNMENT, scratch=facts.scratch,
        inputs=_fields(manifest.inputs, "const "), outputs=_fields(manifest.outputs, ""),
        counts="".join(_counts(upper, manifest.inputs, "INPUT") + _counts(upper, manifest.outputs, "OUTPUT")),
        weights=_text(
            _LINKED if facts.linked else _APART, name=facts.name, upper=upper, weight_bytes=manifest.weight_bytes
        ),
    )  # fmt: skip


def program(facts: Facts) -> str:
    """The tables and the function that is called."""
    manifest, program = facts.manifest, facts.program
    inputs, outputs = identifiers(i.name for i in manifest.inputs), identifiers(o.name for o in manifest.outputs)
    bases = ["workspace", "(void *)weights", "(void *)numbers"]
    bases += [f"(void *)inputs->{n}" for n in inputs] + [f"outputs->{n}" for n in outputs]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(call.kernel for call in program.calls))}
    starts, arguments = [], list[Place]()
    for call in program.calls:
        starts.append(len(arguments))
        arguments += call.arguments
    features, registers = _features(manifest)
    return _filled(
        "program.c",
        name=facts.name, scratch=facts.scratch, parallel=int(facts.parallel),
        tiles=int("amx-tile" in manifest.features), registers=registers, feature_count=len(features),
        call_count=len(program.calls), copy_count=len(program.copies),
        most=max((len(call.arguments) for call in program.calls), default=1),
        kernels="".join(
            f'extern int k{i}(void *, const Any *, int32_t, Any *) __asm__("__tvm_ffi_{name}");\n'
            for name, i in numbers.items()
        ),
        features=_rows(features),
        numbers=", ".join(map(str, program.numbers)) or "0",
        places=_rows(map(_place, arguments)),
        calls=_rows(
            f"{{k{numbers[call.kernel]}, {start}, {len(call.arguments)}}}"
            for call, start in zip(program.calls, starts, strict=True)
        ),
        copies=_rows(f"{{{_place(c.source)}, {_place(c.target)}, {c.bytes}}}" for c in program.copies),
        alignments=", ".join(map(str, _alignments(facts))), bases=", ".join(bases), base_count=len(bases),
        scratch_at=program.workspace,
    )  # fmt: skip


def example(facts: Facts) -> str:
    """A program of some thirty lines: inputs from stdin, outputs to stdout."""
    manifest, upper = facts.manifest, facts.name.upper()
    inputs, outputs = identifiers(i.name for i in manifest.inputs), identifiers(o.name for o in manifest.outputs)
    where = "" if facts.linked else _text(_MAPPING, name=facts.name, upper=upper)
    return _filled(
        "example.c",
        name=facts.name, upper=upper,
        includes="" if facts.linked else "#include <fcntl.h>\n#include <sys/mman.h>\n",
        usage="[THREADS]" if facts.linked else f"{facts.name}.weights [THREADS]",
        given=1 if facts.linked else 2, mapping=where, weights=f"{facts.name}_weights" if facts.linked else "weights",
        arrays=_arrays(upper, manifest.inputs, "input", "static")
        + _arrays(upper, manifest.outputs, "output", f"static _Alignas({ALIGNMENT})"),
        reads="".join(f"  if (fread(input_{n}, sizeof input_{n}, 1, stdin) != 1) return 2;\n" for n in inputs),
        inputs=", ".join(f".{n} = input_{n}" for n in inputs) or "0",
        outputs=", ".join(f".{n} = output_{n}" for n in outputs),
        writes="".join(f"  fwrite(output_{n}, sizeof output_{n}, 1, stdout);\n" for n in outputs),
    )  # fmt: skip


def _filled(template: str, **values: object) -> str:
    """A file beside this one, its placeholders filled in."""
    return _text(SUPPORT.with_name(template).read_text(), **values)


def _text(template: str, **values: object) -> str:
    return Template(template).substitute(values)


def _type(info: TensorInfo) -> str:
    return TYPES.get(info.dtype, "uint8_t")


def _fields(infos: Sequence[TensorInfo], const: str) -> str:
    names = identifiers(info.name for info in infos)
    lines = [f"  {const}{_type(i)} *{n}; /* {_comment(str(i))} */\n" for i, n in zip(infos, names, strict=True)]
    return "".join(lines) or "  int none;\n"


def _arrays(upper: str, infos: Sequence[TensorInfo], role: str, how: str) -> str:
    names = identifiers(info.name for info in infos)
    return "".join(
        f"{how} {_type(info)} {role}_{name}[{upper}_{role.upper()}_{name.upper()}];\n"
        for info, name in zip(infos, names, strict=True)
    )


def _counts(upper: str, infos: Sequence[TensorInfo], role: str) -> list[str]:
    """The elements of each tensor as a macro; C has no arrays of none."""
    names = identifiers(info.name for info in infos)
    return [f"#define {upper}_{role}_{n.upper()} {_elements(i)}\n" for i, n in zip(infos, names, strict=True)]


def _elements(info: TensorInfo) -> int:
    return max(1, int(prod(info.shape)))


def _comment(text: str) -> str:
    """A foreign text in a comment of C.

    >>> _comment("a*/b")
    'a* /b'
    """
    return (
        "".join(c if c.isprintable() and c.isascii() else "?" for c in text).replace("*/", "* /").replace("/*", "/ *")
    )


def _place(place: Place) -> str:
    return f"{{{place.base}, {place.offset}}}"


def _rows(rows: Iterable[str]) -> str:
    return ",\n  ".join(rows) or "{0}"


def _alignments(facts: Facts) -> list[int]:
    """Of each base; 0 where nothing lies."""
    manifest = facts.manifest
    inputs = [info.numpy_dtype.itemsize if _full(info) else 0 for info in manifest.inputs]
    outputs = [ALIGNMENT if _full(info) else 0 for info in manifest.outputs]
    return [ALIGNMENT, ALIGNMENT if manifest.weight_bytes else 0, ALIGNMENT, *inputs, *outputs]


def _full(info: TensorInfo) -> bool:
    return prod(info.shape) > 0


def _features(manifest: Manifest) -> tuple[list[str], str]:
    """What the processor must have, as rows of C, and the registers that the system must save, as bits of XCR0."""
    if manifest.arch == "x86_64":
        found = [BITS[f] for f in manifest.features if f in BITS]
        avx = any(f.startswith(("avx", "fma", "f16c")) for f in manifest.features)
        wide, tiles = (any(f.startswith(word) for f in manifest.features) for word in ("avx512", "amx-"))
        registers = 0x6 * avx | 0xE6 * wide | 0x60000 * tiles
        return [f"{{{leaf:#x}, {sub}, {word}, {bit}}}" for leaf, sub, word, bit in found], hex(registers)
    known = [HWCAPS[f] for f in manifest.features if f in HWCAPS]
    return [f"{{{entry}, {bits:#x}}}" for entry, bits in known], "0"


_LINKED = """\
/* The weights, a part of the library. */
extern const unsigned char ${name}_weights[];
"""

_APART = """\
/* Bytes of the weights, the file $name.weights: map it, or read it to a multiple of 64. */
#define ${upper}_WEIGHTS $weight_bytes
"""

_MAPPING = """\
  int file = open(count > 1 ? words[1] : "$name.weights", O_RDONLY);
  const void *weights = mmap(NULL, ${upper}_WEIGHTS, PROT_READ, MAP_PRIVATE, file, 0);
  if (weights == MAP_FAILED) return 2;
"""
