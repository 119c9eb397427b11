"""Results that no cache holds are written past the caches - for families that say so of the block that writes them.

    Before                                          After
    y[ramp(p * 112 + 16 * v, 1, 16)] = vector       stream(y, p * 112 + 16 * v, vector)
    ... end of a task                               ... sfence, end of a task

A core that stores a line which is in no cache fetches it first, though all of it will be written, and writes it to
memory later: twice the bytes of the result. Whole lines that are stored "non-temporally" are not fetched. Such stores
wait for nobody, so a task ends with a fence; and they need whole, aligned vectors: where the result does not begin at
a line, `stream` stores as usual.

Applies when   a block has the annotation :data:`STREAM`, and a vector's place is a multiple of its length.
Gain           32 to 512 channels of 112x112 in 32 groups, 26 MB of results, on a Zen 4: 0.56 of the time with one
               thread, 0.63 with two
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm.tirx.op import address_of
from tvm_ffi import structural_mutate, structural_walk

from tvmopt.lowering.loops import with_body
from tvmopt.lowering.prefetch import arch
from tvmopt.scheduling.blocks import blocks_of, with_llvm
from tvmopt.targets import Machine

STREAM = "tvmopt.stream"
"""The annotation of a block: the numbers of the vectors that it stores. As an attribute of a function: which of its
arguments they go to."""
STREAM_FUNCTION, FENCE_FUNCTION = "tvmopt_stream", "tvmopt_stream_fence"
LLVM = """
define void @STREAM(ptr %base, ptr %to, VECTOR %value) alwaysinline nounwind willreturn {
  %address = ptrtoint ptr %base to i64
  %beyond = and i64 %address, MASK
  %aligned = icmp eq i64 %beyond, 0
  br i1 %aligned, label %past, label %usual
past:
  store VECTOR %value, ptr %to, align BYTES, !nontemporal !0
  ret void
usual:
  store VECTOR %value, ptr %to, align 4
  ret void
}
define void @FENCE() alwaysinline nounwind willreturn {
  call void asm sideeffect "INSTRUCTION", "~{memory}"() nounwind
  ret void
}
!0 = !{i32 1}
"""
FENCES = {"x86_64": "sfence"}
"""The instruction that waits until what was written past the caches can be seen by other cores, where there is one."""


def streamed(numbers: int, row: int, machine: Machine) -> bool:
    """Whether a float32 result of so many numbers, in rows of `row`, is one to stream: its rows are whole vectors, and
    a quarter of L3 does not hold it. Others share L3, and a result that is still in use lies beside the next one: on
    a Zen 4 with 32 MB, 13 MB take 0.61 to 0.86 of the time, 6 MB 0.94 to 1.10.

    >>> machine = Machine.load("znver4")
    >>> [streamed(*x, machine) for x in ((1 << 21, 128), ((1 << 21) + 128, 128), (1 << 23, 100))]
    [False, True, False]
    """
    return 4 * numbers > machine.l3 // 4 and row % machine.lanes() == 0


def name_streams(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function of a block with :data:`STREAM`, with the number of the block's result among its arguments as an
    attribute of that name, and with what its stores will call. Other functions, and instruction sets, as they are."""
    found = [block for block in blocks_of(func) if STREAM in block.annotations]
    if len(found) != 1 or arch() not in FENCES:
        return func
    result = found[0].writes[0].source
    places = [i for i, param in enumerate(func.params) if param.same_as(result)]
    if not places:
        return func
    lanes = int(found[0].annotations[STREAM])
    words = {
        "STREAM": STREAM_FUNCTION, "FENCE": FENCE_FUNCTION, "INSTRUCTION": FENCES[arch()],
        "VECTOR": f"<{lanes} x float>", "BYTES": str(4 * lanes), "MASK": str(4 * lanes - 1),
    }  # fmt: skip
    text = LLVM
    for word, value in words.items():
        text = text.replace(word, value)
    return with_llvm(func, func.body, text).with_attr(STREAM, [places[0], lanes])


def stream_stores(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text: behind the vectorizer, and before common places get names."""
    if STREAM not in (func.attrs or {}):
        return func
    place, lanes = (int(number) for number in func.attrs[STREAM])
    buffers, fence = _views(func, place), tirx.Evaluate(tirx.call_extern("void", FENCE_FUNCTION))
    calls: list[Any] = []

    def store(node: Any, mutator: Any) -> Any:
        if not any(node.buffer.same_as(buffer) for buffer in buffers) or not _whole(node.indices, lanes):
            return node
        zero = tirx.const(0, str(node.indices[0].base.ty.dtype))
        first, to = (address_of(tirx.BufferLoad(node.buffer, [at])) for at in (zero, node.indices[0].base))
        calls.append(node)
        return tirx.Evaluate(tirx.call_extern("void", STREAM_FUNCTION, first, to, node.value))

    def loop(node: Any, mutator: Any) -> Any:
        before = len(calls)
        node = mutator.default_mutate(node)
        if len(calls) == before or int(node.kind) != int(tirx.ForKind.PARALLEL):
            return node
        del calls[before:]
        body = tirx.SeqStmt([node.body, fence])
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, None, node.annotations)

    body = structural_mutate(func.body, ((tirx.BufferStore, store), (tirx.For, loop)))
    return func if body.same_as(func.body) else with_body(func, tirx.SeqStmt([body, fence]) if calls else body)


StreamStores = tirx.transform.prim_func_pass(stream_stores, opt_level=0, name="tvmopt.StreamStores")


def _views(func: tirx.PrimFunc, place: int) -> list[Any]:
    """The flat buffers that one of a function's arguments is written by."""
    found: list[Any] = []

    def declared(node: Any) -> None:
        args = list(getattr(node.data, "args", []))
        if args and args[0].same_as(func.params[place]):
            found.append(node.buffer)

    structural_walk(func.body, ((tirx.DeclBuffer, declared),))
    return found


def _whole(indices: Any, lanes: int) -> bool:
    """Whether a place is a whole vector of neighbours that begins at a multiple of its length."""
    if len(indices) != 1 or not isinstance(indices[0], tirx.Ramp):
        return False
    stride, count = (int(n) if isinstance(n, int | tirx.IntImm) else 0 for n in (indices[0].stride, indices[0].lanes))
    known = Analyzer().modular_set(indices[0].base)
    return stride == 1 and count == lanes and int(known.coeff) % lanes == 0 and int(known.base) % lanes == 0
