"""ONNX operators of our own domain, each with its meaning as a function of ONNX's operators.

pixels    ResampleRows, ResampleColumns: pictures of bytes in another size
pictures  ScalePicture...: pictures of any size in a known one, by one of several filters
boxes     SelectBoxes, SelectBoxesOfAnyClass: of a detector's boxes those that no better one overlaps

A model with one of them carries the function, so every runtime evaluates it, onnxruntime among them; the importer takes
the node as it is where the function is exactly this one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from onnx import helper

from tvmopt.importer import boxes, pictures, pixels
from tvmopt.importer.protos import copy_model, normal_domain, opset_versions

DOMAIN, VERSION = "tvmopt", 1
INPUTS = {**pixels.INPUTS, **pictures.INPUTS, **boxes.INPUTS}
"""The inputs of each operator, by name."""


def function(name: str, opset: int) -> onnx.FunctionProto:
    """The definition of an operator, for a model of this opset."""
    if name in boxes.INPUTS:
        nodes = boxes.body(name, opset)
    else:
        nodes = pixels.body(name) if name in pixels.INPUTS else pictures.body(name)
    return helper.make_function(DOMAIN, name, list(INPUTS[name]), ["y"], nodes, [helper.make_opsetid("", opset)])


def define(model: onnx.ModelProto, name: str) -> None:
    """Have a model define one of our operators, once."""
    opsets = opset_versions(model)
    if DOMAIN not in opsets:
        model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    if not any((f.domain, f.name) == (DOMAIN, name) for f in model.functions):
        model.functions.append(function(name, opsets.get("", 1)))


def is_own(definition: onnx.FunctionProto) -> bool:
    """Whether a model's function is one of these: its operator is then converted as it stands."""
    if normal_domain(definition.domain) != DOMAIN or definition.name not in INPUTS:
        return False
    opset = next((o.version for o in definition.opset_import if not normal_domain(o.domain)), 0)
    return bool(_meaning(function(definition.name, opset)) == _meaning(definition))


def expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model in which the calls of its functions are their nodes, but for our own operators."""
    from onnx.inliner import inline_local_functions

    kept = others(model.functions)
    copy = copy_model(model)
    del copy.functions[:]
    copy.functions.extend(kept)
    return inline_local_functions(copy) if kept else copy


def _meaning(definition: onnx.FunctionProto) -> Any:
    """What a function computes, as a value that can be compared."""
    nodes = [
        (
            normal_domain(n.domain),
            n.op_type,
            list(n.input),
            list(n.output),
            [a.SerializeToString() for a in n.attribute],
        )
        for n in definition.node
    ]
    return nodes, list(definition.input), list(definition.output)


def others(definitions: Collection[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """The functions of a model that are not these."""
    return [f for f in definitions if not is_own(f)]
