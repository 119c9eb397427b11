"""The types of operators of ai.onnx.ml, of which ONNX infers few: rows that are open stay so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tvmopt.dims import Size
from tvmopt.importer.protos import attributes, make_type
from tvmopt.importer.walk import Walk

DOMAIN = "ai.onnx.ml"
CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
REGRESSORS = {"LinearRegressor": "targets", "SVMRegressor": "", "TreeEnsembleRegressor": "n_targets"}
SAME_SHAPE = {"Binarizer", "Imputer", "LabelEncoder", "Normalizer", "Scaler"}
OF_FLOATS = {"Normalizer", "Scaler"}
TABLES = ("nodes_", "class_", "target_", "leaf_")
"""How attributes begin that have an entry for each node of trees, of which there are millions."""


def classic_types(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The types of a node's results, where they are known."""
    shape, attrs = walk.open_shape(node.input[0]) if node.input else None, attributes(node, without=TABLES)
    if not shape or any(key.endswith("strings") for key in attrs):  # which are refused by name later
        return {}
    elem = walk.types[node.input[0]].tensor_type.elem_type
    row: Size = shape[0] if len(shape) > 1 else 1

    def known(index: int, kind: int, sizes: Sequence[Size]) -> dict[str, onnx.TypeProto]:
        return {node.output[index]: make_type(kind, walk.settled(tuple(sizes)))} if len(node.output) > index else {}

    if node.op_type in CLASSIFIERS:
        labels = attrs.get(CLASSIFIERS[node.op_type], ())
        return known(0, TensorProto.INT64, [row]) | (known(1, TensorProto.FLOAT, [row, len(labels)]) if labels else {})
    if node.op_type in REGRESSORS:
        return known(0, TensorProto.FLOAT, [row, int(attrs.get(REGRESSORS[node.op_type], 1))])
    if node.op_type == "TreeEnsemble":
        return known(0, elem, [row, int(attrs.get("n_targets", 1))])
    if node.op_type in SAME_SHAPE:
        return known(0, TensorProto.FLOAT if node.op_type in OF_FLOATS else _values(attrs) or elem, shape)
    if node.op_type == "OneHotEncoder":
        return known(0, TensorProto.FLOAT, [*shape, len(attrs.get("cats_int64s", ()))])
    if node.op_type == "FeatureVectorizer":
        return known(0, TensorProto.FLOAT, [row, sum(attrs.get("inputdimensions", ()))])
    index = walk.open_shape(node.input[1]) if node.op_type == "ArrayFeatureExtractor" else None
    if index is None:
        return {}
    count: Size = 1
    for more in index:
        count = count * more
    return known(0, elem, [*(shape[:-1] or (1,)), count])


def _values(attrs: dict[str, Any]) -> int:
    """The type of a LabelEncoder's values; 0 where it has none."""
    if "values_int64s" in attrs or "values_floats" in attrs:
        return int(TensorProto.INT64 if "values_int64s" in attrs else TensorProto.FLOAT)
    found = attrs.get("values_tensor")
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(found).dtype)) if found is not None else 0
