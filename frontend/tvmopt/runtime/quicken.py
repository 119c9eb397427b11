"""What TVM's Python does again at each call and we need not, left out - for `load_compiler`.

Every result stays as it is, but that sizes have an order (:func:`_sizes`). On a compile of ResNet-50 what arrays and
schedules no longer do is a quarter of the time between importer and code generator.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any


@cache
def quicken() -> None:
    """Ask what an object of TVM's is without a look at virtual base classes, and iterate over its arrays without a
    bounds check an element; call the moves of a schedule without the check of their arguments' Python types in front of
    the one in C++; copy what becomes a constant once. TVM is imported."""
    _classes()
    _arrays()
    _schedules()
    _constants()
    _sizes()


@contextmanager
def names_looked_up() -> Iterator[None]:
    """A module of TVM's gets the functions of its namespace when somebody asks for them: each of the fifty modules that
    `import tvm` fills looks through the names of all two thousand, which is a fifth of its time."""
    import tvm_ffi
    from tvm_ffi import registry

    eager = registry.init_ffi_api

    def fill(namespace: str, target_module_name: str | None = None) -> None:
        module = sys.modules[target_module_name or namespace]
        if "__getattr__" in vars(module):
            eager(namespace, target_module_name)
            return
        prefix = namespace.removeprefix("tvm.")

        def find(name: str) -> Any:
            function = None if name.startswith("__") else registry.get_global_func(f"{prefix}.{name}", True)
            if function is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            function.__name__ = name
            setattr(module, name, function)
            return function

        for name in [*vars(module)]:  # what stands there for a library without the function
            with suppress(AttributeError):
                find(name)
        module.__getattr__ = find  # type: ignore[method-assign]

    for place in (registry, tvm_ffi):
        place.init_ffi_api = fill
    try:
        yield
    finally:
        for place in (registry, tvm_ffi):
            place.init_ffi_api = eager


def _classes() -> None:
    """TVM's classes are abstract base classes, whose `isinstance` takes five times that of others; none of them has a
    virtual subclass. A variable of a dataflow block is no number, and equal to itself only."""
    import tvm_ffi
    from tvm import relax

    kind: Any = type(tvm_ffi.Object)
    for method in ("__instancecheck__", "__subclasscheck__"):
        setattr(kind, method, getattr(type, method))
    relax.DataflowVar.__eq__, relax.DataflowVar.__hash__ = tvm_ffi.Object.__eq__, tvm_ffi.Object.__hash__


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


def _constants() -> None:
    """`relax.const` copies an array to give it the type that it has, again where it is not contiguous, and then into
    the constant. Each copy of a large array is new memory, which takes longer than the numbers."""
    import numpy as np
    from tvm import relax, runtime

    from tvmopt.runtime.tensors import PLAIN

    stock = relax.const

    def const(value: Any, dtype: Any = None) -> Any:
        """As TVM's."""
        if not isinstance(value, np.ndarray) or value.size < 2 or not value.dtype.isnative:
            return stock(value, dtype)
        if value.dtype.name not in PLAIN or str(dtype) != value.dtype.name:
            return stock(value, dtype)
        tensor = runtime.empty(value.shape, value.dtype.name)
        np.copyto(np.from_dlpack(tensor), value)
        return stock(tensor)

    relax.const = const


class _Ordered(dict[Any, None]):
    """A set that is iterated over in the order in which it was filled."""

    def add(self, item: Any) -> None:
        self.setdefault(item)

    def update(self, items: Any) -> None:  # type: ignore[override]
        for item in items:
            self.add(item)

    def __sub__(self, other: Any) -> list[Any]:
        return [item for item in self if item not in other]


def _sizes() -> None:
    """A kernel gets open sizes that are no dimension of its tensors as numbers. `relax.utils` lists these from a set,
    whose order is that of addresses in memory: equal kernels were merged or not, and artifacts differed, by chance."""
    from tvm.relax import utils

    utils.set = _Ordered
