"""Inline PTX of generated CUDA as C++ - for the emulator.

An `asm` statement becomes a block: its operands are read into 64-bit registers, each instruction is a call of
`tensor.h`, and the outputs are written back::

    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(d) : "r"(address));
    {
      uint64_t r_[2] = {0, emu_in(address)};
      emu_matrices("ldmatrix", 1, false, r_[1], &r_[0]);
      emu_out(d, r_[0]);
    }
"""

from __future__ import annotations

import re
from collections.abc import Callable


class UnknownInstruction(NotImplementedError):
    """PTX that the emulator does not know."""


def translate(source: str) -> str:
    """`source` with every asm statement replaced by C++."""
    out, at = [], 0
    for found in re.finditer(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(", source):
        if found.start() < at or source.rfind("\n", 0, found.start()) < source.rfind("//", 0, found.start()):
            continue
        if source[source.rfind("\n", 0, found.start()) + 1 : found.start()].lstrip().startswith("#"):
            continue  # a #define
        end = _closing(source, found.end())
        out.append(source[at : found.start()])
        out.append(_statement(source[found.end() : end]))
        at = end + 1
    return "".join([*out, source[at:]])


def _closing(text: str, at: int) -> int:
    """The position of the parenthesis that closes the one before `at`."""
    depth = 1
    while depth:
        if text[at] == '"':
            at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _split(text: str, separator: str) -> list[str]:
    """Split outside of strings and brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0 and "::" not in (text[at : at + 2], text[at - 1 : at + 1]):
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _statement(text: str) -> str:
    text = re.sub(r"//[^\n]*", "", text)
    sections = _split(re.sub(r'"\s*::', '" : :', text), ":")
    template = "".join(
        part.encode().decode("unicode_escape") for part in re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0])
    )
    operands = [o for section in sections[1:3] for o in _split(section, ",")]
    matches = [re.match(r'\s*"([^"]*)"\s*\((.*)\)\s*$', o, re.S) for o in operands]
    pairs = [(m[1], m[2]) for m in matches if m]
    start = [f"emu_in({expr})" if "=" not in kind else "0" for kind, expr in pairs]
    instructions = re.findall(r"[{}]|[^;{}]*(?:\{[^}]*\}[^;{}]*)*;", _scopes(template))
    body = "".join(_instruction(i) for i in instructions)
    stores = "".join(f"emu_out({expr}, r_[{k}]); " for k, (kind, expr) in enumerate(pairs) if kind[0] in "=+")
    array = f"uint64_t r_[{max(1, len(pairs))}] = {{{', '.join(start) or '0'}}}; (void)r_; "
    return "{ " + array + body + stores + "}"


def _scopes(template: str) -> str:
    """The template without the braces that open and close a scope, comments and labels' newlines."""
    template = re.sub(r"/\*.*?\*/", "", template, flags=re.S)
    text = re.sub(r"\s+", " ", template).strip()
    text = re.sub(r"^\{|(?<=;)\s*\}\s*$", " ", text) if text.startswith("{") else text
    return text if text.rstrip().endswith(";") or not text else text + ";"


def _instruction(text: str) -> str:
    text = text.strip().rstrip(";").strip()
    if not text or text in "{}":
        return ""
    guard = re.match(r"@(!?)(\w+)\s+(.*)", text, re.S)
    if guard:
        return f"if ({guard[1]}{guard[2]}) {{ {_instruction(guard[3])} }} "
    op, _, rest = text.partition(" ")
    operands = [_operand(o.strip()) for o in _split(rest, ",")] if rest.strip() else []
    for pattern, emit in _TABLE:
        found = re.fullmatch(pattern, op)
        if found:
            return emit(found, operands) + "; "
    raise UnknownInstruction(f"the emulator does not know {op!r}: {text}")


def _operand(text: str) -> str:
    if text.startswith("{"):
        return ",".join(_operand(o.strip()) for o in text.strip("{} ").split(","))
    text = text.strip("[] ")
    text = re.sub(r"%(\d+)", r"r_[\1]", text)
    return re.sub(r"\b0[fF]([0-9a-fA-F]{8})\b", r"0x\1", text)


_TYPES = {"f16": "EMU_F16", "bf16": "EMU_BF16", "tf32": "EMU_TF32", "s8": "EMU_S8", "u8": "EMU_U8",
          "f32": "EMU_F32", "s32": "EMU_S32"}  # fmt: skip


def _matrices(found: re.Match[str], o: list[str]) -> str:
    store = found[1] == "st"
    registers, address = (o[1], o[0]) if store else (o[0], o[1])
    outs = ", ".join(f"&{r}" for r in registers.split(","))
    trans = "true" if found[3] else "false"
    return f'emu_matrices("{found[1]}matrix", {found[2]}, {trans}, {address}, {outs})'


def _mma(found: re.Match[str], o: list[str]) -> str:
    k, acc, a, b = found[1], found[2], found[3], found[4]
    names = ["d_", "a_", "b_", "c_"]
    arrays = "".join(f"uint64_t {n}[] = {{{v}}}; " for n, v in zip(names, o, strict=True))
    back = "".join(f"{r} = d_[{i}]; " for i, r in enumerate(o[0].split(",")))
    types = ", ".join(_TYPES[t] for t in (a, b, acc))
    return f"{{ {arrays}emu_mma({k}, {types}, d_, a_, b_, c_); {back}}}"


def _copy(found: re.Match[str], o: list[str]) -> str:
    if "cache_hint" in found[0]:
        o = o[:-1]
    return f"emu::cp_async({', '.join(o)})"


def _load(found: re.Match[str], o: list[str]) -> str:
    size = int(found[3]) // 8
    at = f"reinterpret_cast<char*>({o[1]})" if found[1] != "shared" else f"emu::shared({o[1]}, {size})"
    reads = "".join(f"{r} = 0; memcpy(&{r}, p_ + {i * size}, {size}); " for i, r in enumerate(o[0].split(",")))
    return f"{{ char* p_ = {at}; {reads}}}"


def _store(found: re.Match[str], o: list[str]) -> str:
    size = int(found[3]) // 8
    at = f"reinterpret_cast<char*>({o[0]})" if found[1] != "shared" else f"emu::shared({o[0]}, {size})"
    writes = "".join(
        f"{{ uint64_t v_ = {r}; memcpy(p_ + {i * size}, &v_, {size}); }} " for i, r in enumerate(o[1].split(","))
    )
    return f"{{ char* p_ = {at}; {writes}}}"


def _dot_of_bytes(found: re.Match[str], o: list[str]) -> str:
    types = ", ".join({"s": "int8_t", "u": "uint8_t"}[kind] for kind in (found[1], found[2]))
    return f"{o[0]} = emu_dp4a<{types}>({', '.join(o[1:])})"


def _barrier(found: re.Match[str], o: list[str]) -> str:
    if o != ["0"]:
        raise UnknownInstruction(f"the emulator does not know {found[0]!r} with a number or a count")
    return "__syncthreads()"


Emit = Callable[["re.Match[str]", list[str]], str]
_CTA = r"(?:::cta)?"
_TABLE: list[tuple[str, Emit]] = [
    (r"\.reg", lambda f, o: "uint64_t " + ", ".join(re.sub(r"^\.\w+\s+", "", name) for name in o)),
    (r"cvta\.to\.shared\.u(?:32|64)", lambda f, o: f"{o[0]} = emu::shared_address((const void*)({o[1]}))"),
    (r"cvta\.to\.global\.u64", lambda f, o: f"{o[0]} = {o[1]}"),
    (r"(?:cvt\.u32\.u64|cvt\.u64\.u32|mov\.[bu]32)", lambda f, o: f"{o[0]} = uint32_t({o[1]})"),
    (r"mov\.[a-z]+\d+", lambda f, o: f"{o[0]} = {o[1]}"),
    (r"setp\.ne\.[bsu]32", lambda f, o: f"{o[0]} = uint32_t({o[1]}) != uint32_t({o[2]})"),
    (r"setp\.eq\.[bsu]32", lambda f, o: f"{o[0]} = uint32_t({o[1]}) == uint32_t({o[2]})"),
    (r"selp\.[bsu]32", lambda f, o: f"{o[0]} = {o[3]} ? {o[1]} : {o[2]}"),
    (rf"cp\.async\.c[ag]\.shared{_CTA}\.global(\..*)?", _copy),
    (r"cp\.async\.commit_group", lambda f, o: "emu::cp_async_commit()"),
    (r"cp\.async\.wait_group", lambda f, o: f"emu::cp_async_wait({o[0]})"),
    (r"cp\.async\.wait_all", lambda f, o: "emu::cp_async_wait_all()"),
    (rf"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared{_CTA}\.b16", _matrices),
    (
        r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col(?:\.satfinite)?\.(f32|f16|s32)"
        r"\.(f16|bf16|tf32|[su]8)\.(f16|bf16|tf32|[su]8)\.(?:f32|f16|s32)",
        _mma,
    ),
    (rf"ld\.(global|shared){_CTA}((?:\.\w+(?:::\w+)*)*?)\.[bfus](\d+)", _load),
    (rf"st\.(global|shared){_CTA}((?:\.\w+(?:::\w+)*)*?)\.[bfus](\d+)", _store),
    (r"(?:bar|barrier)\.sync(?:\.aligned)?", _barrier),
    (r"bar\.warp\.sync", lambda f, o: "__syncwarp()"),
    (r"(?:fence|membar|prefetch)\S*", lambda f, o: "(void)0"),
    (r"cvt\.rna\.tf32\.f32", lambda f, o: f"{o[0]} = emu_rna_tf32({o[1]})"),
    (r"cvt\.rn\.f16x2\.f32", lambda f, o: f"{o[0]} = emu_f16x2({o[1]}, {o[2]})"),
    (r"cvt\.rn\.bf16x2\.f32", lambda f, o: f"{o[0]} = emu_bf16x2({o[1]}, {o[2]})"),
    (r"ex2\.approx(?:\.ftz)?\.f32", lambda f, o: f"{o[0]} = emu_u(exp2f(emu_f({o[1]})))"),
    (r"lg2\.approx(?:\.ftz)?\.f32", lambda f, o: f"{o[0]} = emu_u(log2f(emu_f({o[1]})))"),
    (r"rcp\.approx(?:\.ftz)?\.f32", lambda f, o: f"{o[0]} = emu_u(1 / emu_f({o[1]}))"),
    (r"rsqrt\.approx(?:\.ftz)?\.f32", lambda f, o: f"{o[0]} = emu_u(1 / sqrtf(emu_f({o[1]})))"),
    (r"dp4a\.([us])32\.([us])32", _dot_of_bytes),
    (r"tanh\.approx\.f32", lambda f, o: f"{o[0]} = emu_u(tanhf(emu_f({o[1]})))"),
]  # fmt: skip
