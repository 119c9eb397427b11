"""ai.onnx.ml: classic models, as scikit-learn's converters write them, in float32.

scaling    what stands in front: scaling, norms, thresholds, missing values, columns
codes      numbers for numbers: one-hot columns, labels
linear     linear models
trees      ensembles of trees: TreeEnsembleClassifier and TreeEnsembleRegressor; in tree_tables TreeEnsemble, of
           version 5; in forests what they have in common: trees as arrays, and their sums
vectors    support vectors
scores     what classifiers make of their sums: labels and probabilities

Strings are refused by name: a label or a category that is a text has no number.
"""

from __future__ import annotations

from tvmopt.importer.converters.classic import codes, linear, scaling, tree_tables, trees, vectors
from tvmopt.importer.converters.context import Converter

CONVERTERS: dict[tuple[str, str], Converter] = {
    key: converter
    for group in (scaling, codes, linear, trees, tree_tables, vectors)
    for key, converter in group.CONVERTERS.items()
}
