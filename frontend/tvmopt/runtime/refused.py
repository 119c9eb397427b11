"""What a kernel refused: an index out of range, a divisor of zero - as the error that users of a model see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tvmopt.errors import InputError

KIND = "InputError"
"""The kind that compiled code gives its errors; the text has the three parts of a `TvmoptError`."""

APART = re.compile(r"\((\d+) vs\. (\d+)\) : ErrorContext\(match_cast, ty=R\.Shape\(\[found\d+\]\)\)")
"""How TVM says that two sizes which values decide (`tvmopt.dims.FOUND`) are not one, as the model has it."""


@contextmanager
def refusals(model: str) -> Iterator[None]:
    """Turn a compiled model's own refusals into `InputError`; other errors pass as they are."""
    try:
        yield
    except Exception as error:
        told = refusal(error, model)
        if told is None:
            raise
        raise told from None


def refusal(error: Exception, model: str) -> InputError | None:
    """The `InputError` that an exception of the runtime stands for, None for any other exception."""
    if apart := APART.search(str(error)):
        return InputError(
            f"the inputs select {apart[1]} elements and {apart[2]}, which the model takes together.",
            where=model,
            fix="pass inputs of which as many are selected",
        )
    if "storage allocation failure" in str(error):  # a window that is larger than what was selected
        return InputError(
            "the inputs select too few elements: a size that follows from how many is negative.",
            where=model,
            fix="pass inputs of which more are selected",
        )
    if str(getattr(getattr(error, "__tvm_ffi_error__", None), "kind", "")) != KIND:
        return None
    what, _, rest = str(error).partition("\n  where: ")
    where, _, fix = rest.partition("\n  fix:   ")
    return InputError(what, where=f"{model}, {where}", fix=fix)
