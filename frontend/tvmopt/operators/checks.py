"""A Relax operator that looks at the values of integers before they are used as indices, lengths or divisors - the
importer writes it where a value from outside would become an address.

    y = tvmopt.checked(x)        x of any shape; y = x, or, if x are indices that count from the end, x from the start

A value that is not allowed ends the call with an error on a CPU. A kernel of a GPU cannot raise: there the nearest
allowed value stands in for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.checked"
CHECKS = "tvmopt.checks"
"""An attribute of kernels that end the call where a value is not allowed."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Check:
    """What values are allowed, and what is said of others.

    Attributes:
        what, where, fix: the three parts of the error; the runtime adds the name of the model.
        lowest, highest: the bounds, both included: one for all values, or one for each component of the last axis.
            Empty: any value but zero.
        wrap: negative values count from the end; `highest` + 1 is added to them.
    """

    what: str
    where: str
    fix: str
    lowest: tuple[int, ...] = ()
    highest: tuple[int, ...] = ()
    wrap: bool = False

    @property
    def message(self) -> str:
        """The error's text, as :class:`tvmopt.errors.TvmoptError` prints one."""
        return f"{self.what}\n  where: {self.where}\n  fix:   {self.fix}"

    def allows(self, values: Array) -> bool:
        """Whether all values are allowed."""
        if not self.lowest:
            return bool((values != 0).all())
        return bool(((values >= np.array(self.lowest)) & (values <= np.array(self.highest))).all())

    def passed(self, values: Array) -> Array:
        """What the operator returns for values that are allowed."""
        if not self.wrap:
            return values
        extents = np.array([h + 1 for h in self.highest], values.dtype)
        return np.where(values < 0, values + (extents[0] if len(extents) == 1 else extents), values)


def checked(value: Any, check: Check) -> Any:
    """The call; its type is inferred when it is bound."""
    _register()
    return relax.Call(tvm.ir.Op.get(OP), [value], tvm.ir.make_node("ir.DictAttrs", check=json.dumps(asdict(check))))


def check_of(call: Any) -> Check:
    """What a call of :data:`OP` checks."""
    fields = json.loads(str(call.attrs["check"]))
    return Check(**fields | {side: tuple(int(v) for v in fields[side]) for side in ("lowest", "highest")})


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, lambda call, _bb: call.args[0].ty, __name__)


def define(form: Callable[[Any, Any], Any]) -> None:
    """Make `form(bb, call) -> Expr` what LegalizeOps puts in place of a call that no machine's own form took."""
    _register()
    legalize_by(OP, form)
