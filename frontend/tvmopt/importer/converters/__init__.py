"""The ONNX operators that TVM lacks or gets wrong: one table, for the importer and whoever adds an operator.

A converter turns one ONNX node into Relax::

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result

* ``inputs``: one expression an input of the node, ``None`` for an input left out; indexing past the end
  gives ``None`` as well. They are variables or constants (never ShapeExpr, never a nested call), so ``.ty``
  is known. Use :meth:`Context.array` for an input that must be known at compile time (axes, pads, shapes).
* ``attrs``: plain Python values: ``int``, ``float``, ``str``, NumPy arrays for tensors, tuples for lists,
  ``onnx.GraphProto`` for graphs. Absent attributes are absent: state the default with ``attrs.get``.
* ``ctx``: opset, node name, number and types of outputs, and TVM's own converter as :meth:`Context.stock`.
* The result: one expression, or a Python tuple of them for several outputs (``None`` for an output that is
  not computed and that nobody reads). Nested calls are fine: the importer emits and names them.
* What a converter cannot do it refuses with :meth:`Context.unsupported`; the importer adds the node's name.

The same converter serves all opsets; it looks at ``ctx.opset`` where the operator changed.
The key is ``(domain, op_type)``, the default domain being ``""``. A new group of operators is a new file with
its own ``CONVERTERS`` and one line in :data:`GROUPS`. Sizes are integers or, where they are open, `tvmopt.dims.Dim`,
with which one computes likewise; what needs a number of one that is open fails, and the importer says so.
Beware: ``relax.const(array)`` without a dtype narrows int64 to int32 and float64 to float32; give the dtype.
"""

from __future__ import annotations

from tvmopt.extensions import converters
from tvmopt.importer.converters import (
    attention,
    casts,
    classic,
    contrib,
    contrib_attention,
    control,
    convolution,
    detection,
    einsum,
    elementwise,
    grid_sample,
    hyperbolic,
    indices,
    losses,
    normalization,
    packed,
    pixels,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
    selection,
    shape,
    signal,
    sized,
    unsigned,
)
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

GROUPS = (
    attention,
    casts,
    classic,
    contrib,
    contrib_attention,
    control,
    convolution,
    detection,
    einsum,
    elementwise,
    grid_sample,
    hyperbolic,
    indices,
    losses,
    normalization,
    packed,
    pixels,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
    selection,
    shape,
    signal,
    sized,
    unsigned,
)

CONVERTERS: dict[tuple[str, str], Converter] = {}
for _group in GROUPS:
    CONVERTERS.update(_group.CONVERTERS)


def find(domain: str, op_type: str) -> Converter | None:
    """The converter of an operator: an extension's (:mod:`tvmopt.extensions`), else ours."""
    found: Converter | None = converters().get((domain, op_type)) or CONVERTERS.get((domain, op_type))
    return found


__all__ = ["CONVERTERS", "Context", "Converter", "Inputs", "Result", "find"]
