"""The project's own judge on one compiled model: the question that a run of the fuzzer asks it.

It must not refuse what is right, and must not accept what is grossly wrong; `fuzz/reference.py` has the second opinion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from fuzz.inputs import Feeds


class Verdicts:
    """Asks the judge about runs of one model.

    Args:
        model: the ONNX model. compiled: what was made of it.
        sizes: the open sizes to judge at.
        valid: the model is: where the oracle fails at a node it is the oracle's defect.
    """

    def __init__(
        self, model: onnx.ModelProto, compiled: Any, sizes: Mapping[str, int] | None = None, valid: bool = True
    ) -> None:
        from tvmopt.analysis.examine import Examiner
        from tvmopt.dims import identifier
        from tvmopt.importer import prepare
        from tvmopt.importer.protos import normal_domain
        from tvmopt.importer.relax import operators
        from tvmopt.importer.structure import sort_graphs

        self.valid = valid
        known = {tuple(one) for one in operators()}
        copy = sort_graphs(onnx.ModelProto.FromString(model.SerializeToString()))
        named = {identifier(name): size for name, size in (sizes or {}).items()}
        shapes = {i.name: list(i.shape) for i in compiled.inputs_at(named)}
        prepared = prepare(copy, shapes, has_converter=lambda *key: (normal_domain(key[0]), key[1]) in known)
        self.examiner = Examiner(compiled, model, prepared)

    def problem(self, feeds: Feeds, peer: Feeds | None) -> str | None:
        """Empty where the judge accepts the outputs; else what it says; None where it cannot tell.

        Args:
            peer: onnxruntime's outputs, where it runs the model.
        """
        from tvmopt.analysis.oracle.values import Unfit, Unsupported
        from tvmopt.analysis.verify import broken

        ask = self.examiner.hostile if broken(feeds) else self.examiner.fully
        try:
            examined = ask(feeds, peer)
        except Unfit:
            if self.valid:
                raise
            return None
        except Unsupported:
            return None
        if examined.ok:
            return ""
        lines = [str(o) for o in examined.comparison.outputs if not o.ok]
        return "\n".join([*lines, *([f"the first wrong kernel is {examined.kernel}"] if examined.kernel else [])])


class Unjudged:
    """The judge of what is no compiled model."""

    def problem(self, feeds: Feeds, peer: Feeds | None) -> str | None:
        """It cannot tell."""
        return None


def verdicts_of(
    model: onnx.ModelProto, compiled: Any, sizes: Mapping[str, int] | None = None, valid: bool = True
) -> Verdicts | Unjudged:
    """The judge of a model at these sizes; `compiled` None: one that is in no :class:`tvmopt.Model`."""
    return Verdicts(model, compiled, sizes, valid) if compiled is not None else Unjudged()
