"""MatMul with any broadcasting, Gemm, Einsum, and chains of them."""

from __future__ import annotations

from fuzz.build import Builder, Reject

WIDTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64)


def matmul(b: Builder) -> None:
    a = b.pick(ranks=(1, 2, 2, 3, 3, 4))
    k = a.shape[-1]
    n = b.choice(WIDTHS)
    if b.chance(0.6):
        shape = [k, n]
    else:
        batch = [d if b.chance(0.6) else b.choice([1, d]) for d in a.shape[:-2]]
        shape = [*batch[b.integer(0, len(batch)) if b.chance(0.3) else 0 :], k, n]
    if b.chance(0.08):
        shape = [k]
    if not k:
        raise Reject("empty")
    value = b.node("MatMul", [a, b.weight(a.dtype, shape, k, 0.6)])
    if b.chance(0.4) and value.rank:
        value = b.node("Add", [value, b.weight(a.dtype, value.shape[-1:])])
    if b.chance(0.3):
        b.node(b.choice(["Relu", "Tanh", "Sigmoid", "Erf", "Cosh", "Softplus", "Exp"]), [value])


def other_order(b: Builder) -> None:
    """A product whose weights stand first."""
    a = b.pick(ranks=(2, 3, 4))
    m, k = b.choice(WIDTHS), a.shape[-2]
    b.node("MatMul", [b.weight(a.dtype, [m, k], k, 0.7), a])


def gemm(b: Builder) -> None:
    a = b.pick(ranks=(2,))
    across, turned = b.integer(0, 1), b.integer(0, 1)
    k, m = (a.shape[0], a.shape[1]) if across else (a.shape[1], a.shape[0])
    n = b.choice(WIDTHS)
    operands = [a, b.weight(a.dtype, [n, k] if turned else [k, n], k, 0.7)]
    if b.chance(0.7):
        operands.append(b.weight(a.dtype, b.choice([[n], [1, n], [m, n], [m, 1], [1], []])))
    attrs = {name: b.number(-1.5, 1.5) for name in ("alpha", "beta") if b.chance(0.3)}
    b.node("Gemm", operands, transA=across, transB=turned, **attrs)


def pair(b: Builder) -> None:
    """A product of two activations, one of them transposed."""
    a = b.pick(ranks=(2, 3, 4))
    turned = b.node("Transpose", [a], perm=[*range(a.rank - 2), a.rank - 1, a.rank - 2])
    b.node("MatMul", [a, turned] if b.chance(0.5) else [turned, a])


def branches(b: Builder) -> None:
    """Several products of one value, as the projections of attention; joined again, or not."""
    a = b.pick(ranks=(2, 3))
    k = a.shape[-1]
    widths = (
        [b.choice((4, 8, 15, 16, 17, 32))] * 3
        if b.chance(0.6)
        else [b.choice((4, 8, 15, 16, 17, 32)) for _ in range(3)]
    )
    parts = [b.node("MatMul", [a, b.weight(a.dtype, [k, n], k, 0.95)]) for n in widths[: b.integer(2, 3)]]
    if b.chance(0.5):
        parts = [b.node("Add", [p, b.weight(a.dtype, [p.shape[-1]])]) for p in parts]
    if b.chance(0.3):
        b.node("Concat", parts, axis=-1)


def einsum(b: Builder) -> None:
    a = b.pick(ranks=(2, 3))
    if a.rank == 2:
        equation, shape = b.choice(
            [
                ("ij,jk->ik", [a.shape[1], 5]),
                ("ij,kj->ki", [9, a.shape[1]]),
                ("ij,ij->i", a.shape),
                ("ij,j->i", [a.shape[1]]),
            ]
        )
    else:
        equation, shape = b.choice(
            [
                ("bij,bjk->bik", [a.shape[0], a.shape[2], 7]),
                ("bij,kj->bki", [8, a.shape[2]]),
                ("bij,bkj->bik", [a.shape[0], 6, a.shape[2]]),
            ]
        )
    b.node("Einsum", [a, b.weight(a.dtype, list(shape), int(a.shape[-1]))], equation=equation)


def triple(b: Builder) -> None:
    """Two products in a row with something between."""
    a = b.pick(ranks=(2, 3))
    k, n, m = a.shape[-1], b.choice((8, 16, 17, 32, 33)), b.choice((4, 7, 8, 16, 24))
    hidden = b.node("MatMul", [a, b.weight(a.dtype, [k, n], k, 0.95)])
    hidden = b.node(b.choice(["Relu", "Gelu", "Sigmoid", "Tanh"]) if b.opset >= 20 else "Relu", [hidden])
    b.node("MatMul", [hidden, b.weight(a.dtype, [n, m], n, 0.95)])


RULES = [(6, matmul), (1.2, other_order), (3, gemm), (1.5, pair), (1.5, branches), (0.8, einsum), (1, triple)]
