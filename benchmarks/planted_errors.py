"""Does the judge catch a wrong kernel? Errors planted in single kernels of running models, the catches counted.

    python benchmarks/planted_errors.py MODEL.onnx [--shape x:1x3x48x320] [--precision bf16] [--count 20]
    python benchmarks/planted_errors.py MODEL.onnx --kinds row --kernels softmax      # whose name or nodes have that
    python benchmarks/planted_errors.py MODEL.onnx --kinds step --masks 4             # of a model that has no masks

The compiled module is right. After one call of one kernel an instrument changes what the kernel wrote, in place: all
that is behind it computes with the wrong numbers, as it would behind a wrong kernel:

    share    all of it is 3 % too large (5 % in bf16); of bytes, the numbers that they stand for, rounded again
    row      one row is: of a product behind a mask, of a matrix, of an image
    element  one number is 3 % of the largest too large
    step     one bit of an integer, a mask or a quantised value is wrong: the lowest

Networks seldom write masks. `--masks` adds some as outputs, bytes that say where a tensor between two layers is larger
than its mean, as a detector or a segmentation has at its end; faults of the kind `step` are planted in those alone.

Kernels are drawn at random from those that write such numbers. A fault that is not caught and changes no output (a row
before a norm that takes its scale away, a score that the bytes of a softmax do not show, bytes that fill a tile up) is
counted apart: it is without effect. So is one of floats that changes their outputs by no more than rounding does: a
factor that a LayerNorm takes away leaves the digits of another sum.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as verification has it, before NumPy is imported

import ml_dtypes
import numpy as np

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.observe import observe
from tvmopt.analysis.samples import trial_inputs
from tvmopt.analysis.verify import Reference
from tvmopt.cli.common import parse_shapes, parse_values
from tvmopt.importer import load, prepare
from tvmopt.importer.protos import node_name
from tvmopt.importer.shapes import bound_arrays
from tvmopt.runtime.artifact import read
from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import TensorInfo

Array = np.ndarray[Any, Any]
KINDS = ("share", "row", "element", "step")
ROUNDING = 1e-5
"""What rounding may change of an output, relative to its largest number."""
MASK = 1024
"""Elements of a tensor that a mask is made of, at least."""
LARGEST_MEAN = 1e30
"""Means beyond are those of the fills of masks."""


def memory(tensor: Any) -> Array:
    """A tensor's own memory as an array that can be written."""
    name = str(tensor.dtype)
    dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
    shape = tuple(map(int, tensor.shape))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_uint8 * size).from_address(int(tensor.data_ptr()))
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


def spoil(array: Array, kind: str, share: float, rng: np.random.Generator, zero: int = 0) -> bool:
    """Change an array in place; whether that changed anything.

    Args:
        zero: the byte that stands for 0.
    """
    before = array.copy()
    at = tuple(int(rng.integers(n)) for n in array.shape)
    if kind == "step":
        array[at] ^= 1
    elif kind == "element":
        array[at] = float(array[at]) + share * float(np.abs(np.nan_to_num(array.astype(np.float32))).max())
    else:
        part = array
        while kind == "row" and part.ndim > 1:
            part = part[int(rng.integers(part.shape[0]))]
        part[...] = larger(part, share, zero)
    return not np.array_equal(before, array)


def larger(array: Array, share: float, zero: int) -> Array:
    """Numbers by a share larger; bytes saturate.

    >>> larger(np.array([0, 5, 100, 255], np.uint8), 0.03, 10)
    array([  0,   5, 103, 255], dtype=uint8)
    """
    wide = (array.astype(np.float32) - zero) * (1 + share) + zero
    if array.dtype.kind not in "iu":
        return wide.astype(array.dtype)
    kind = np.iinfo(array.dtype)
    return np.clip(np.rint(wide), kind.min, kind.max).astype(array.dtype)


def masked(model: Path, count: int, shapes: dict[str, Any], values: dict[str, Any], folder: Path) -> Path:
    """A model with so many masks more, evenly along its nodes; each compares a tensor with its mean over all axes.

    A tensor that is filled with -3.4e38 where something is masked has no mean that float32 could hold, and what a
    comparison with it gives is no number that anyone could check: those tensors get no mask.
    """
    import onnx
    from onnx import TensorProto, helper

    prepared = prepare(load(str(model)), shapes, values)
    kinds = {v.name: v.type.tensor_type for v in onnx.shape_inference.infer_shapes(prepared).graph.value_info}
    large = [
        name for node in prepared.graph.node for name in node.output
        if name in kinds and kinds[name].elem_type == TensorProto.FLOAT
        and np.prod([d.dim_value for d in kinds[name].shape.dim]) >= MASK
    ]  # fmt: skip
    large = _with_means(prepared, {name: kinds[name].elem_type for name in large}, folder)
    for number, at in enumerate(np.linspace(0, len(large) - 1, count + 2).astype(int)[1:-1]):
        name, mean, bits, mask = large[at], *(f"planted_{word}_{number}" for word in ("mean", "bits", "mask"))
        prepared.graph.node.extend([
            helper.make_node("ReduceMean", [name], [mean], mean, keepdims=1),
            helper.make_node("Greater", [name, mean], [bits], bits),
            helper.make_node("Cast", [bits], [mask], mask, to=TensorProto.UINT8),
        ])  # fmt: skip
        shape = [d.dim_value for d in kinds[name].shape.dim]
        prepared.graph.output.append(helper.make_tensor_value_info(mask, TensorProto.UINT8, shape))
    path = folder / model.name
    onnx.save(prepared, path)
    return path


def _with_means(prepared: Any, names: dict[str, int], folder: Path) -> list[str]:
    """Those of a prepared model's float tensors whose mean is an ordinary number."""
    import onnx
    from onnx import helper

    probe = onnx.ModelProto()
    probe.CopyFrom(prepared)
    known = {output.name for output in probe.graph.output}
    probe.graph.output.extend(helper.make_tensor_value_info(n, k, None) for n, k in names.items() if n not in known)
    onnx.save(probe, path := folder / "probe.onnx")
    held = {tensor.name for tensor in prepared.graph.initializer}
    inputs = [
        TensorInfo(one.name, tuple(d.dim_value for d in one.type.tensor_type.shape.dim),
                   str(helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)))
        for one in prepared.graph.input if one.name not in held
    ]  # fmt: skip
    found = Reference(path).run(trial_inputs(inputs, 0, integer_bounds(prepared)))
    return [name for name in names if abs(float(found[name].mean(dtype=np.float64))) < LARGEST_MEAN]


def apart(right: Array, found: Array) -> float:
    """How far an output is from the right one, relative to its largest number; infinite for other integers."""
    if right.dtype.kind in "iub":
        return 0.0 if np.array_equal(right, found) else np.inf
    a, b = right.astype(np.float64), found.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    finite = np.isfinite(a)
    return float(np.abs(a - b)[finite].max(initial=0.0) / (np.abs(a)[finite].max(initial=0.0) or 1.0))


class Planted:
    """A session one call of which is followed by a fault, also where others observe it."""

    def __init__(self, session: Any, calls: list[str], at: int, fault: Callable[[Array], None]) -> None:
        self.session, self.calls, self.at, self.fault = session, set(calls), at, fault
        self.set_instrument(None)

    def set_instrument(self, instrument: Any) -> None:
        number = -1

        def both(function: Any, symbol: str, before: bool, result: Any, *values: Any) -> int:
            nonlocal number
            if not before and symbol in self.calls:
                number += 1
                if number == self.at:
                    self.fault(memory([v for v in values if hasattr(v, "data_ptr")][-1]))
            return int(instrument(function, symbol, before, result, *values)) if instrument else 0

        self.session.set_instrument(both)

    def main(self, *arguments: Any) -> Any:
        return self.session.main(*arguments)


class Trial:
    """One model, compiled, and what the oracle says of it."""

    def __init__(self, path: Path, shapes: dict[str, Any], values: dict[str, Any], precision: str, seed: int) -> None:
        import tvmopt

        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "model.tvmopt"
        tvmopt.compile(path, precision=precision, shape=shapes, values=values, verify=False, output=file, cache=False)
        self.artifact, self.precision = read(file), precision
        original = load(str(path))
        inputs = self.artifact.manifest.inputs
        self.prepared = prepare(original, {i.name: list(i.shape) for i in inputs}, values)
        self.feeds = trial_inputs(inputs, seed, integer_bounds(self.prepared))
        self.peer = Reference(path).run({**self.feeds, **bound_arrays(original.graph, values)})
        model = Model(self.artifact)
        self.truth = Examiner(model, path, self.prepared).judge.truth(self.feeds)
        self.right, self.seen = observe(model, self.feeds)
        self.calls = [one.symbol for one in self.seen]
        self.zeros = self._zeros()

    def _zeros(self) -> list[int | None]:
        """Of each call that writes bytes, the one that stands for 0; None of the others."""
        from onnx import numpy_helper

        constants = {t.name: t for t in self.prepared.graph.initializer}
        points = {
            node_name(n): numpy_helper.to_array(constants[n.input[2]])
            for n in self.prepared.graph.node
            if n.op_type == "QuantizeLinear" and len(n.input) > 2 and n.input[2] in constants
        }
        zeros: list[int | None] = []
        for one in self.seen:
            point = next((points[name] for name in reversed(one.nodes) if name in points), None)
            if point is None or point.size > 1 or one.array.dtype.itemsize > 1 or one.array.dtype.kind not in "iu":
                zeros.append(None)
            else:  # kernels that multiply bytes keep int8 128 higher, as uint8
                zeros.append(int(point) + np.iinfo(one.array.dtype).min - np.iinfo(point.dtype).min)
        return zeros

    def suited(self, kind: str, wanted: str) -> list[int]:
        """Calls of the kernels whose name or nodes have `wanted` and that write numbers which `kind` can spoil."""
        whole = [one.array.dtype.kind in "iub" for one in self.seen]
        named = [any(re.search(wanted, name) for name in (one.symbol, *one.nodes)) for one in self.seen]
        shares = [kind in ("share", "row") and zero is not None for zero in self.zeros]
        fits = [shares[i] or whole[i] == (kind == "step") for i in range(len(whole))]
        return [i for i, one in enumerate(self.seen) if named[i] and one.array.size and fits[i]]

    def _spoilt(self, at: int, fault: Callable[[Array], None]) -> Model:
        """The compiled model, with a fault in one call."""
        model = Model(self.artifact)
        instance = model._of_this_thread()
        instance.session = Planted(instance.session, self.calls, at, fault)  # type: ignore[assignment]
        return model

    def _has_effect(self, at: int, fault: Callable[[Array], None]) -> bool:
        """Whether an output changes, and floats by more than rounding changes them."""
        outputs, _ = observe(self._spoilt(at, fault), self.feeds)
        return any(apart(a, b) > ROUNDING for a, b in zip(self.right, outputs, strict=True))

    def plant(self, at: int, kind: str, share: float, seed: int) -> dict[str, Any]:
        """One fault; at -1 none."""

        def fault(array: Array) -> None:
            changed.append(spoil(array, kind, share, np.random.default_rng(seed), self.zeros[at] or 0))

        changed: list[bool] = []
        examiner = Examiner(self._spoilt(at, fault), "", self.prepared, brief=True)  # as a compile asks
        examiner.judge.truth = lambda feeds, found=None: self.truth  # type: ignore[method-assign]
        found = examiner.thoroughly(self.feeds, self.peer)
        wrong = [o for o in found.comparison.outputs if not o.ok]
        excess = max((o.excess for o in wrong if np.isfinite(o.excess)), default=0.0)
        outcome = "caught" if not found.ok else "nothing changed" if not any(changed) else "missed"
        if outcome == "missed" and not self._has_effect(at, fault):
            outcome = "without effect"
        return {
            "kernel": self.calls[at] if at >= 0 else "", "call": at, "kind": kind, "seed": seed, "outcome": outcome,
            "blamed": found.kernel, "excess": excess, "problems": [str(o)[:160] for o in wrong[:2]],
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant errors in single kernels; count those that the judge catches.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME:1x3x224x224")
    parser.add_argument("--value", action="append", default=[], metavar="NAME=16000")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--kernels", default="", metavar="REGEX", help="only those whose name, or a node's, has it")
    parser.add_argument("--masks", type=int, default=0, help="so many masks are added to the model (default 0)")
    parser.add_argument("--count", type=int, default=20, help="faults of each kind (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="lines of JSON, appended")
    args = parser.parse_args(arguments)
    share = 0.05 if args.precision == "bf16" else 0.03
    shapes, values = parse_shapes(args.shape), parse_values(args.value)
    with tempfile.TemporaryDirectory() as folder:
        model = masked(args.model, args.masks, shapes, values, Path(folder)) if args.masks else args.model
        trial = Trial(model, {} if args.masks else shapes, {} if args.masks else values, args.precision, args.seed)
    kernels = args.kernels or ("planted_mask" if args.masks else "")
    right = trial.plant(-1, "share", share, 0)
    print(f"{args.model.name} {args.precision}: {len(trial.calls)} calls of kernels, without a fault "
          f"{'REFUSED' if right['outcome'] == 'caught' else 'accepted'}", flush=True)  # fmt: skip
    rng = np.random.default_rng(args.seed)
    tally: Counter[tuple[str, str]] = Counter()
    for kind in args.kinds.split(","):
        suited = trial.suited(kind, kernels)
        chosen = rng.permutation(suited)[: args.count] if suited else ()
        for at in map(int, chosen):
            one = trial.plant(at, kind, share, int(rng.integers(1 << 30)))
            tally[kind, one["outcome"]] += 1
            if one["outcome"] == "missed":
                print(f"  missed: {kind} in call {at}, {one['kernel']}, seed {one['seed']}", flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(json.dumps({"model": args.model.name, "precision": args.precision, **one}) + "\n")
        told = ", ".join(f"{n} {o}" for (k, o), n in sorted(tally.items()) if k == kind)
        print(f"  {kind}: {told or 'no kernel writes such numbers'}", flush=True)
    return 1 if right["outcome"] == "caught" or any(outcome == "missed" for _, outcome in tally) else 0


if __name__ == "__main__":
    sys.exit(main())
