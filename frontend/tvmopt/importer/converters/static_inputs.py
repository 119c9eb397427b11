"""Which operator inputs must be known when a model is compiled - for the importer and the ONNX backend.

ONNX passes axes, shapes, paddings and counts as tensors. A compiler that makes static code needs their *values*;
TensorRT calls such inputs build-time shape tensors. :data:`COMPILE_TIME` names them, operator by operator; nothing that
carries data is in it. :func:`compile_time_inputs` follows a graph back from those slots to the model's own inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from tvmopt.importer.boxes import ANY, SELECT
from tvmopt.importer.own import DOMAIN
from tvmopt.importer.pictures import FILTER_OF

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

COMPILE_TIME: dict[tuple[str, str], tuple[int, ...]] = {
    **{("", name): (1,) for name in REDUCTIONS},  # axes
    ("", "AffineGrid"): (1,),  # size
    ("", "BlackmanWindow"): (0,),  # length
    ("", "CenterCropPad"): (1,),  # shape
    ("", "Col2Im"): (1, 2),  # image_shape, block_shape
    ("", "ConstantOfShape"): (0,),  # shape
    ("", "CumProd"): (1,),  # axis
    ("", "CumSum"): (1,),  # axis
    ("", "DFT"): (1, 2),  # dft_length, axis
    ("", "Dropout"): (1, 2),  # ratio, training_mode
    ("", "Expand"): (1,),  # shape
    ("", "HammingWindow"): (0,),  # length
    ("", "HannWindow"): (0,),  # length
    ("", "Loop"): (0, 1),  # trip count, first condition
    ("", "MaxUnpool"): (2,),  # output_shape
    ("", "MelWeightMatrix"): (0, 1, 2, 3, 4),
    ("", "NonMaxSuppression"): (2, 3, 4),  # how many, IoU threshold, score threshold
    **dict.fromkeys(((DOMAIN, name) for name in FILTER_OF), (2, 3)),  # size, fill
    (DOMAIN, ANY): (2, 3, 4),
    (DOMAIN, SELECT): (2, 3, 4),  # how many, IoU threshold, score threshold
    ("", "OneHot"): (1,),  # depth
    ("", "Pad"): (1, 3),  # pads, axes
    ("", "Range"): (0, 1, 2),
    ("", "Reshape"): (1,),  # shape
    ("", "Resize"): (1, 2, 3),  # roi, scales, sizes
    ("", "STFT"): (1, 3),  # frame_step, frame_length
    ("", "SequenceAt"): (1,),  # position
    ("", "SequenceErase"): (1,),  # position
    ("", "SequenceInsert"): (2,),  # position
    ("", "Slice"): (1, 2, 3, 4),  # starts, ends, axes, steps
    ("", "Split"): (1,),  # sizes
    ("", "SplitToSequence"): (1,),  # sizes
    ("", "Squeeze"): (1,),  # axes
    ("", "Tile"): (1,),  # repeats
    ("", "TopK"): (1,),  # k
    ("", "Trilu"): (1,),  # k
    ("", "Unsqueeze"): (1,),  # axes
    ("", "Upsample"): (1,),  # scales
}

# Their outputs depend on the *shape* of their input only, which is known without any value.
_SHAPE_ONLY = {"Shape", "Size"}


def _subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _mark(graph: onnx.GraphProto, needed: set[str]) -> None:
    """Add to `needed` every value of `graph` that a compile-time slot is computed from (backwards, once)."""
    for node in reversed(graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        for slot in COMPILE_TIME.get((domain, node.op_type), ()):
            if slot < len(node.input):
                needed.add(node.input[slot])
        wanted = any(name in needed for name in node.output)
        if wanted and node.op_type not in _SHAPE_ONLY:
            needed.update(node.input)
        for body in _subgraphs(node):
            if wanted:
                needed.update(value.name for value in body.output)
            _mark(body, needed)
            if any(value.name in needed for value in body.input):
                needed.update(node.input)


def compile_time_inputs(model: onnx.ModelProto) -> list[str]:
    """The model's inputs that reach a compile-time slot, in order; inline its functions first."""
    needed: set[str] = set()
    _mark(model.graph, needed)
    known = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name in needed and value.name not in known]
