"""Elementwise operators of every type: one operand, two that broadcast, several; comparisons, masks, choices, casts."""

from __future__ import annotations

from fuzz.build import ALL, BOOL, FLOATS, INTEGERS, SIGNED, UNSIGNED, Builder, Reject

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu",
    "Celu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
    "Gelu", "Shrink",
)  # fmt: skip
COMMON = ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Neg", "Abs", "Gelu", "LeakyRelu", "HardSwish", "Softplus")
ATTRIBUTES = {
    "Elu": {"alpha": (0.2, 2.0)}, "LeakyRelu": {"alpha": (-0.5, 1.5)}, "ThresholdedRelu": {"alpha": (-1.0, 2.0)},
    "Celu": {"alpha": (0.3, 2.0)}, "HardSigmoid": {"alpha": (0.1, 0.5), "beta": (0.0, 1.0)},
    "Selu": {"alpha": (0.5, 2.0), "gamma": (0.5, 2.0)}, "Shrink": {"bias": (-1.0, 1.0), "lambd": (0.0, 1.0)},
}  # fmt: skip


def unary(b: Builder) -> None:
    op = b.choice(COMMON if b.chance(0.4) else UNARY)
    bounds = ATTRIBUTES.get(op, {})
    attrs = {k: b.number(*v) for k, v in bounds.items() if b.chance(0.7)}
    if op == "Gelu" and b.chance(0.5):
        attrs["approximate"] = "tanh"
    b.node(op, [b.pick()], **attrs)


def unary_integer(b: Builder) -> None:
    op = b.choice(["Abs", "Neg", "Sign", "BitwiseNot", "Relu", "Identity"])
    types = {"Neg": SIGNED, "Relu": SIGNED, "BitwiseNot": INTEGERS}.get(op, INTEGERS)
    b.node(op, [b.pick(types)])


def binary(b: Builder) -> None:
    op = b.choice(["Add", "Sub", "Mul", "Div", "Add", "Mul", "Sub", "Pow", "Max", "Min", "PRelu", "Mod"])
    a = b.pick()
    if op == "PRelu":
        b.node(op, [a, b.like(a, exact=True)])
        return
    other = b.like(a)
    operands = [other, a] if b.chance(0.4) else [a, other]
    if op == "Pow":
        operands[1] = b.constant(b.choice([2.0, 0.5, 3.0, -1.0, 0.0, 1.0]), a.dtype) if b.chance(0.7) else operands[1]
    b.node(op, operands, **({"fmod": 1} if op == "Mod" else {}))


def binary_integer(b: Builder) -> None:
    op = b.choice(
        [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Mod",
            "Max",
            "Min",
            "Pow",
            "BitShift",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
        ]
    )
    a = b.pick(UNSIGNED if op == "BitShift" else INTEGERS, fresh=0.35)
    attrs = {}
    if op == "BitShift":
        attrs["direction"] = b.choice(["LEFT", "RIGHT"])
    if op == "Mod" and b.chance(0.3):
        attrs["fmod"] = 1
    other = b.like(a)
    if op == "BitShift":
        other = b.constant(b.rng.integers(0, 8, other.shape), a.dtype)
    if op in ("Div", "Mod") and (b.chance(0.7) or other.data is not None):  # zeros are refused where they are known
        low = -4 if a.dtype in SIGNED else 1
        data = b.rng.integers(low, 8, other.shape)
        data[data == 0] = 3
        other = b.constant(data, a.dtype) if b.chance(0.5) else b.input(a.dtype, other.shape, "positive")
    b.node(op, [a, other], **attrs)


def variadic(b: Builder) -> None:
    op = b.choice(["Sum", "Mean", "Max", "Min"])
    a = b.pick(INTEGERS if op in ("Max", "Min") and b.chance(0.3) else ())
    operands = [a] + [b.like(a) for _ in range(b.integer(0, 3))]
    b.node(op, [operands[i] for i in b.rng.permutation(len(operands))])


def clip(b: Builder) -> None:
    a = b.pick(INTEGERS if b.chance(0.2) else ())
    low, high = b.integer(-3, 1), b.integer(1, 6)
    if a.dtype in UNSIGNED:
        low = max(0, low)
    if b.chance(0.05):
        low, high = high, low
    bounds = [b.constant(v, a.dtype) if b.chance(0.75) else None for v in (low, high)]
    b.node("Clip", [a, *bounds])


def compare(b: Builder) -> None:
    op = b.choice(["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"])
    a = b.pick(ALL if op == "Equal" and b.chance(0.3) else INTEGERS if b.chance(0.3) else ())
    other = b.like(a) if b.chance(0.6) or a.dtype == BOOL else b.constant(b.integer(0, 2), a.dtype)
    b.node(op, [a, other])


def logic(b: Builder) -> None:
    op = b.choice(["And", "Or", "Xor", "Not", "IsNaN", "IsInf"])
    if op in ("IsNaN", "IsInf"):
        attrs = (
            {f"detect_{k}": b.integer(0, 1) for k in ("negative", "positive")}
            if op == "IsInf" and b.chance(0.5)
            else {}
        )
        b.node(op, [b.pick()], **attrs)
        return
    a = b.pick((BOOL,))
    b.node(op, [a] if op == "Not" else [a, b.like(a)])


def where(b: Builder) -> None:
    a = b.pick(ALL if b.chance(0.2) else ())
    other = b.like(a) if b.chance(0.6) else b.constant(b.choice([0, 1, 100]), a.dtype)
    mask = b.like(a, dtype=BOOL)
    operands = [a, other] if b.chance(0.5) else [other, a]
    b.node("Where", [mask, *operands])


def mask_fill(b: Builder) -> None:
    """A mask's fill: the lowest number, or minus infinity, as exporters write it."""
    a = b.pick()
    fill = {1: -3.4028235e38, 10: -65504.0, 11: -1e300, 16: -3.3e38}[a.dtype]
    filler = b.constant(b.choice([fill, fill, -1e9 if a.dtype != 10 else -1e4, float("-inf")]), a.dtype)
    b.node("Where", [b.like(a, exact=True, dtype=BOOL), a, filler])


def cast(b: Builder) -> None:
    a = b.pick(ALL)
    to = b.choice([t for t in ALL if t != a.dtype])
    if a.dtype in FLOATS and to in INTEGERS:  # out of range is undefined: bring the values into it first
        a = b.node("Clip", [a, b.constant(-100 if to in SIGNED else 0, a.dtype), b.constant(100, a.dtype)])
        if b.chance(0.5):
            a = b.node("Round", [a])
    b.node("Cast", [a], to=to)


def repeat(b: Builder) -> None:
    """The same operator many times in a row."""
    op = b.choice(["Tanh", "Relu", "Neg", "Sin", "Abs", "Sigmoid"])
    value = b.pick()
    if value.dtype not in FLOATS:
        raise Reject("integers")
    for _ in range(b.integer(2, 6)):
        value = b.node(op, [value])


RULES = [
    (9, unary), (1.5, unary_integer), (9, binary), (3, binary_integer), (2, variadic), (2, clip), (2.5, compare),
    (2, logic), (2.5, where), (1, mask_fill), (2.5, cast), (0.3, repeat),
]  # fmt: skip
