"""Cancel casts that undo each other."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, dtype, op_name, rewrite_pass

# Every value of the key is a value of each of these types, so that a cast there loses nothing.
_INTEGERS = {
    "bool": "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64",
    "uint8": "uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64",
    "int8": "int16 int32 int64 float16 bfloat16 float32 float64",
    "uint16": "uint32 int32 uint64 int64 float32 float64",
    "int16": "int32 int64 float32 float64",
    "uint32": "uint64 int64 float64",
    "int32": "int64 float64",
    "float16": "float32 float64",
    "bfloat16": "float32 float64",
    "float32": "float64",
}
LOSSLESS = {kind: frozenset(wide.split()) for kind, wide in _INTEGERS.items()}


@rewrite_pass("tvmopt.CancelCasts")
class CancelCasts(Rewrite):
    """Make one cast of two, and none of a round trip.

        Before                               After
        a = R.astype(x, "float32")           b = x                     # x is float16
        b = R.astype(a, "float16")

    Applies when   the first cast loses nothing: the second then starts from x as well.
    Declines when  1. the first cast loses digits or range (rounding and saturation are part of the model).
    Gain           a read and a write of the tensor each.
    Order          after FoldConstant.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the second cast."""
        if op_name(value) != "astype":
            return None
        x = value.args[0]
        if dtype(x) == dtype(value):
            self.applied(var, "identity")
            return x
        first = graph.call(x, "astype")
        if first is None:
            return None
        start, middle, end = dtype(first.args[0]), dtype(x), dtype(value)
        if middle not in LOSSLESS.get(start, ()) or (end == "bool" and start != "bool"):
            self.declined(var, f"1: {start} to {middle} is part of the model")
            return None
        self.applied(var, f"{start} to {middle} to {end}")
        return first.args[0] if start == end else relax.op.astype(first.args[0], end)
