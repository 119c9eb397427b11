"""Is a result right? The comparator answers; where it says no, rounding may still explain the difference - for
verification and benchmarks, which have to judge alike.

    a model that amplifies errors    `sensitivity`: the reference's own change where operands are rounded (bf16, fp16)
    an index chosen differently      `ties`: a score within the tolerance of the reference's choice (any precision)
    other integers and booleans      at most twice as many elements differ as where operands are rounded (bf16, fp16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvmopt.analysis.comparator import Array, Comparison, OutputComparison, allowance, compare
from tvmopt.analysis.sensitivity import TYPES, flips, sensitivity
from tvmopt.analysis.ties import Choice, choices, settle
from tvmopt.analysis.variants import write_rounded, write_with_outputs

Run = Callable[[Path, bool], Mapping[str, Array]]
"""Runs the reference on an ONNX file with the inputs at hand, rounded to 16 bits if so told; {} where it cannot."""


@dataclass(frozen=True)
class Judge:
    """Compares outputs of one model with the reference's.

    Attributes:
        model: the ONNX file. folder: for variants of it, made once each.
        precision: the arithmetic asked for: "fp32", "bf16", "fp16", "tf32"; None: what the dtypes show.
        reduction, depth: see :func:`tvmopt.analysis.comparator.compare`.
        rtol: in place of the derived tolerance.
    """

    model: str | Path
    folder: Path
    precision: str | None
    reduction: int
    depth: int
    rtol: float | None = None

    def __call__(
        self,
        reference: Mapping[str, Array],
        actual: Mapping[str, Array],
        run: Run,
        progress: Callable[[str], None] | None = None,
    ) -> Comparison:
        """Compare; `run` is called only where something differs."""
        comparison = self._compare(reference, actual, {})
        if comparison.ok:
            return comparison
        import onnx

        rounds = self.rtol is None and self.precision in TYPES
        chosen = choices(onnx.load(str(self.model), load_external_data=False))
        chosen = {name: choice for name, choice in chosen.items() if name in reference and name in actual}
        if progress:
            progress("measuring the model's sensitivity to rounding" if rounds else "looking for ties")
        source, scores = Path(self.model), dict[str, Array]()
        if any(not o.ok and o.name in chosen for o in comparison.outputs):
            source = self._scored(chosen)
            scores = dict(run(source, False))
        moved = run(self._rounded(source), True) if rounds else {}
        slack = sensitivity({**scores, **reference}, moved)
        changes = flips(reference, moved)
        outputs = []
        for one in self._compare(reference, actual, slack).outputs:
            if not one.ok and one.name in chosen:
                choice = chosen[one.name]
                one = self._settled(one, choice, reference[one.name], actual[one.name], scores, slack)
            elif not one.ok and one.name in changes and one.name in actual:
                one = _counted(one, reference[one.name], actual[one.name], changes[one.name])
            outputs.append(one)
        return Comparison(tuple(outputs))

    def _compare(
        self, reference: Mapping[str, Array], actual: Mapping[str, Array], slack: Mapping[str, float]
    ) -> Comparison:
        return compare(
            reference, actual,
            reduction=self.reduction, depth=self.depth, precision=self.precision, rtol=self.rtol, at_least=slack,
        )  # fmt: skip

    def _settled(
        self, one: OutputComparison, choice: Choice, expected: Array, found: Array, scores: Mapping[str, Array],
        slack: Mapping[str, float],
    ) -> OutputComparison:  # fmt: skip
        values = scores.get(choice.scores)
        if values is None:
            return one
        tolerance = self.rtol
        if tolerance is None:
            derived = allowance(str(values.dtype), self.precision, self.reduction, self.depth)
            tolerance = max(derived, slack.get(choice.scores, 0.0))
        return settle(one, choice, expected, found, values, tolerance)

    def _scored(self, chosen: Mapping[str, Choice]) -> Path:
        path = self.folder / "scores.onnx"
        if not path.is_file():
            write_with_outputs(self.model, path, [c.scores for c in chosen.values()])
        return path

    def _rounded(self, source: Path) -> Path:
        path = self.folder / f"{source.stem}.rounded.onnx"
        if not path.is_file():
            write_rounded(source, path, self.precision or "")
        return path


def _counted(one: OutputComparison, expected: Array, found: Array, allowed: float) -> OutputComparison:
    """By the share of elements that differ, where that is allowed; else the comparison of their values."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return one
    share = float(np.mean(expected != found))
    if share > allowed:
        return one
    return OutputComparison(one.name, "", share, share, share, 1.0, allowed, share, spread=one.spread)
