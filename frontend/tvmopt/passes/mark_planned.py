"""Say which arguments of a kernel do not come from the memory plan - for `lowering/drop_argument_checks.py`.

    Before                                After
    main: h = conv(x, w0); y = add(h, w1)
    def conv(...):                        conv has the attribute `tvmopt.outside = [0]`: a caller has made the input x
    def add(...):                         add has the attribute `tvmopt.outside = []`

Applies when   all arguments are tensors.
Declines when  1. a size is handed over beside the tensors
Gain           see `lowering/drop_argument_checks.py`.

Like RelaxAlignment it runs before memory is planned, where a view of an input is still a reshape.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvmopt.lowering.drop_argument_checks import OUTSIDE
from tvmopt.passes.relax_alignment import places_of_inputs


def mark_planned(module: tvm.IRModule) -> tvm.IRModule:
    """See the module's text."""
    outside = places_of_inputs(module)
    functions = {
        gvar: func.with_attr(OUTSIDE, sorted(outside.get(gvar.name_hint, ())))
        if isinstance(func, tirx.PrimFunc) and _of_tensors(func)
        else func
        for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _of_tensors(func: tirx.PrimFunc) -> bool:
    """Whether all parameters are tensors."""
    return all(hasattr(param.ty, "shape") for param in func.params)
