"""What TVM's Python does again at each call and we need not, left out - for `load_compiler`.

Every result stays as it is. On a compile of ResNet-50 what arrays and schedules no longer do is a quarter of the time
between importer and code generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def quicken() -> None:
    """Iterate over TVM's arrays without a bounds check an element; call the moves of a schedule without the check of
    their arguments' Python types in front of the one in C++. TVM is imported."""
    _arrays()
    _schedules()


@contextmanager
def names_read_once() -> Iterator[None]:
    """TVM's global functions are listed again only when there are more of them: each of the fifty modules that `import
    tvm` fills asks for the names of all two thousand, which is a quarter of its time."""
    from tvm_ffi import registry

    listed, known = registry.list_global_func_names, list[str]()

    def names() -> list[str]:
        count = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1)
        if count != len(known):
            known[:] = listed()
        return list(known)

    registry.list_global_func_names = names
    try:
        yield
    finally:
        registry.list_global_func_names = listed


def _arrays() -> None:
    """An array cannot change while it is iterated over: TVM copies it when it is written to."""
    from tvm_ffi import _ffi_api
    from tvm_ffi.container import Array

    item, count = _ffi_api.ArrayGetItem, _ffi_api.ArraySize
    Array.__iter__ = lambda self: iter([item(self, i) for i in range(count(self))])


def _schedules() -> None:
    """TVM's decorator `type_checked` binds and compares every argument, which takes longer than most moves."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import _type_checker

    checked = _type_checker.type_checked(lambda: None).__code__
    for name, method in list(vars(Schedule).items()):
        if inspect.isfunction(method) and method.__code__ is checked:
            setattr(Schedule, name, inspect.unwrap(method))
