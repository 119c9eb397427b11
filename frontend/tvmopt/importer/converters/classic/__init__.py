"""ai.onnx.ml: classic models, as scikit-learn's converters write them, in float32.

scaling    what stands in front: scaling, norms, thresholds, missing values, columns
codes      numbers for numbers: one-hot columns, labels
linear     linear models
trees      ensembles of trees
vectors    support vectors
scores     what classifiers make of their sums: labels and probabilities

Strings are refused by name: a label or a category that is a text has no number.
"""

from __future__ import annotations

from tvmopt.importer.converters.classic import codes, linear, scaling, trees, vectors
from tvmopt.importer.converters.context import Converter

CONVERTERS: dict[tuple[str, str], Converter] = {
    key: converter for group in (scaling, codes, linear, trees, vectors) for key, converter in group.CONVERTERS.items()
}
