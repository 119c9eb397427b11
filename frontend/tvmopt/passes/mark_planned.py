"""Mark the kernels whose tensors all come from the memory plan - for `lowering/drop_argument_checks.py`.

    Before                                After
    main: h = conv(x, w0); y = add(h, w1)
    def conv(...):                        the same: x is an input, which a caller has made
    def add(...):                         add has the attribute `tvmopt.planned`

Applies when   no argument of a kernel is an input of the model, or a view of one, and all are tensors.
Declines when  1. an argument may be an input: the checks at the kernel's entry are the only ones of strides and offsets
               2. a size is handed over beside the tensors
Gain           see `lowering/drop_argument_checks.py`.

Like RelaxAlignment it runs before memory is planned, where a view of an input is still a reshape.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvmopt.lowering.drop_argument_checks import PLANNED
from tvmopt.passes.relax_alignment import places_of_inputs


def mark_planned(module: tvm.IRModule) -> tvm.IRModule:
    """See the module's text."""
    outside = places_of_inputs(module)
    functions = {
        gvar: func.with_attr(PLANNED, True)
        if isinstance(func, tirx.PrimFunc) and gvar.name_hint not in outside and _of_tensors(func)
        else func
        for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _of_tensors(func: tirx.PrimFunc) -> bool:
    """Whether all parameters are tensors."""
    return all(hasattr(param.ty, "shape") for param in func.params)
