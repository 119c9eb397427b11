"""ZipMap of ai.onnx.ml: the dictionaries that scikit-learn's converters put at the end of a classifier.

    probabilities [n, classes] -> ZipMap -> a dictionary for each row, {label: probability}

A compiled model has tensors only: here the output is the tensor, under the name that the dictionaries had. The drop-in
session makes dictionaries of it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tvmopt.fields import mentions
from tvmopt.importer.opset import TARGET
from tvmopt.importer.protos import attributes, normal_domain, opset_versions

ZIP = "ZipMap"
DOMAIN = "ai.onnx.ml"


def _zips(nodes: Iterable[onnx.NodeProto], outputs: set[str]) -> dict[str, onnx.NodeProto]:
    """The nodes of numbered classes whose dictionaries are outputs, by the output."""
    own = (n for n in nodes if n.op_type == ZIP and normal_domain(n.domain) == DOMAIN and len(n.output) == 1)
    return {n.output[0]: n for n in own if n.output[0] in outputs and attributes(n).get("classlabels_int64s")}


def maps(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The labels of each output that is dictionaries."""
    found = _zips(model.graph.node, {o.name for o in model.graph.output})
    return {name: tuple(attributes(node)["classlabels_int64s"]) for name, node in found.items()}


def has_maps(source: Any) -> bool:
    """Whether a model may have dictionaries: a look at its bytes, which does not parse them."""
    if isinstance(source, onnx.ModelProto):
        return bool(maps(source))
    if isinstance(source, bytes):
        return ZIP.encode() in source
    path = Path(source)
    return path.is_file() and mentions(path, ZIP.encode())


def without_maps(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with tensors in place of dictionaries: itself, changed in place."""
    found = _zips(model.graph.node, {o.name for o in model.graph.output})
    for output in model.graph.output:
        if output.name in found:
            labels = len(attributes(found[output.name])["classlabels_int64s"])
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, [None, labels]))
    for node in found.values():
        name, source, result = node.name, node.input[0], node.output[0]
        node.CopyFrom(helper.make_node("Identity", [source], [result], name=name))
    if found and model.opset_import and "" not in opset_versions(model):  # a model of ai.onnx.ml alone
        model.opset_import.append(helper.make_opsetid("", TARGET))
    return model
