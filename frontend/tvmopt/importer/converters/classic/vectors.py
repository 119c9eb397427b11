"""Support vectors of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from tvmopt.importer.converters.classic.scores import class_labels
from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def kernels(b: Build, ctx: Context, x: Any, attrs: dict[str, Any], supports: int) -> Any:
    """The kernel of each row with each support vector [n, supports]."""
    name = attrs.get("kernel_type", "LINEAR")
    gamma, offset, degree = (float(v) for v in attrs.get("kernel_params") or (0.0, 0.0, 0.0))
    vectors = np.asarray(attrs["support_vectors"], np.float32).reshape(supports, -1)
    if vectors.shape[1] != shape_of(x)[-1]:
        raise ctx.unsupported(
            f"its vectors have {vectors.shape[1]} features, its input {shape_of(x)[-1]}", "check --shape"
        )
    if name == "RBF":
        return b.emit(relax.op.exp(b.mul(b.te(_distances, x, const(vectors, "float32")), -gamma)))
    products = b.matmul(x, const(np.ascontiguousarray(vectors.T), "float32"))
    if name == "LINEAR":
        return products
    inner = b.add(b.mul(products, gamma), offset)
    if name == "SIGMOID":
        return b.emit(relax.op.tanh(inner))
    if name == "POLY":
        return b.emit(relax.op.power(inner, const(degree, "float32")))
    raise ctx.unsupported(f"there is no kernel {name!r}", "LINEAR, POLY, RBF or SIGMOID")


def _distances(x: te.Tensor, vectors: te.Tensor) -> te.Tensor:
    """The square of each distance; not of products, in which near ones would cancel."""
    k = te.reduce_axis((0, vectors.shape[1]), "k")

    def one(i: Any, j: Any) -> Any:
        away = x(i, k) - vectors(j, k)
        return te.sum(away * away, k)

    return te.compute((x.shape[0], vectors.shape[0]), one, name="distances")


def _rows(b: Build, x: Any) -> Any:
    """The input as float32 [n, features]; a vector is one row."""
    x = b.cast(x, "float32")
    return b.reshape(x, (1, *shape_of(x))) if len(shape_of(x)) == 1 else x


def regressor(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SVMRegressor: the weighted kernels and rho; of one class whether that is above 0."""
    b, supports = Build(bb, ctx.name), int(attrs.get("n_supports", 0))
    x = _rows(b, inputs[0])
    if attrs.get("post_transform", "NONE") != "NONE":
        raise ctx.unsupported(f"post_transform is {attrs['post_transform']!r}", "NONE")
    weights = np.asarray(attrs["coefficients"], np.float32).reshape(-1, 1)
    of_each = kernels(b, ctx, x, attrs, supports) if supports else x
    y = b.add(b.matmul(of_each, const(weights, "float32")), float(np.ravel(attrs.get("rho", (0.0,)))[0]))
    return b.where(b.greater(y, 0.0), 1.0, const(-1.0, "float32")) if attrs.get("one_class", 0) else y


def classifier(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SVMClassifier: each pair of classes decides, and the class with the most decisions wins (libsvm)."""
    b = Build(bb, ctx.name)
    labels = class_labels(ctx, attrs, "classlabels_ints")
    of_each = np.asarray(attrs.get("vectors_per_class", ()), int)
    if attrs.get("prob_a") or attrs.get("post_transform", "NONE") != "NONE" or not len(of_each):
        raise ctx.unsupported("it gives probabilities, or is linear", "SVC(probability=False), or LinearSVC")
    total, classes = int(of_each.sum()), len(labels)
    rho = np.asarray(attrs.get("rho", ()), np.float32)
    if len(of_each) != classes or (of_each < 0).any() or len(rho) != classes * (classes - 1) // 2:
        told = f"it has {classes} labels, {[int(n) for n in of_each]} vectors a class and {len(rho)} numbers in rho"
        raise ctx.unsupported(told, "a label and a number of vectors a class, and a rho a pair of classes")
    first = np.concatenate([[0], np.cumsum(of_each)])
    coefficients = np.asarray(attrs["coefficients"], np.float32).reshape(classes - 1, total)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = np.zeros((total, len(pairs)), np.float32)
    votes = np.zeros((len(pairs), 2, classes), np.float32)
    for p, (i, j) in enumerate(pairs):
        mine, other = slice(first[i], first[i + 1]), slice(first[j], first[j + 1])
        weights[mine, p], weights[other, p] = coefficients[j - 1, mine], coefficients[i, other]
        votes[p, 0, i] = votes[p, 1, j] = 1
    x = _rows(b, inputs[0])
    decided = b.matmul(kernels(b, ctx, x, attrs, total), const(weights, "float32"))
    decided = b.add(decided, const(rho, "float32"))
    above = b.cast(b.greater(decided, 0.0), "float32")
    counted = b.matmul(above, const(votes[:, 0] - votes[:, 1], "float32"))
    counted = b.add(counted, const(votes[:, 1].sum(0), "float32"))
    place = b.emit(relax.op.argmax(counted, 1))
    label = place if labels == list(range(classes)) else b.take(const(np.asarray(labels), "int64"), place, 0)
    if classes == 2:
        return label, b.concat([b.emit(relax.op.negative(decided)), decided], 1)
    return label, decided


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "SVMClassifier"): classifier,
    ("ai.onnx.ml", "SVMRegressor"): regressor,
}
