"""A compiled model examined on one set of inputs: its outputs and its kernels against the oracle - for verify, compare
and surgeon, which therefore never contradict each other.

    ordinary inputs     outputs and every kernel against the oracle
    unusual inputs      outputs against onnxruntime's; against the oracle where they differ by more than four times what
                        they do on ordinary inputs, and by more than nudged inputs move onnxruntime's; kernels
                        only where the oracle contradicts an output
    rounded caches      outputs against the oracle, always: onnxruntime rounds none
    both                where the outputs differ more than rounding explains, but each kernel, given what the kernels
                        before it wrote, is right: the model amplifies errors, and the result stands
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis import kept
from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.deviation import PEAK, limits_of, misplaced
from tvmopt.analysis.doubles import DOUBLE, SINGLE
from tvmopt.analysis.judge import Judge, Tolerance, Truth
from tvmopt.analysis.kernels import Found, Written, check_kernels
from tvmopt.analysis.observe import Seen, observe
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.values import Unsupported, is_real, limit
from tvmopt.analysis.rounds import mark, rounded_by
from tvmopt.analysis.samples import nudged
from tvmopt.errors import TvmoptError
from tvmopt.operators.stored import FLOAT
from tvmopt.runtime.roles import Roles
from tvmopt.toolchain.emulation import EmulatedModel

AMPLIFIED = 16.0
"""How many times what rounding explains an output may differ where every kernel is right."""
SPREAD = 4.0
"""How many times as far apart ours and onnxruntime's may be as on the inputs that were examined fully. A detector whose
outputs are 16 times apart what one rounding explains on some random inputs is 41 times on others."""
FAR = 100.0
"""How many times what rounding explains ours and onnxruntime's must differ for the file itself to be evaluated."""
NUDGES = 2
"""How many times onnxruntime runs on nudged inputs at the most, where its outputs and ours are far apart."""
INSTEAD = 1e3
"""In place of NaN or an infinity, to see whether an output depends on it at all."""
LARGE = 1e100
"""In place of an infinity, to see what an output tends to: a product of three such numbers is a float64."""

Rerun = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""onnxruntime's outputs of other inputs; raises :class:`TvmoptError` where it refuses them."""


@dataclass(frozen=True)
class Examined:
    """What one examination found.

    Attributes:
        comparison: of the outputs; a kernel that is wrong makes it fail, too.
        kernel: the first wrong kernel, with its nodes. compared: how many of its tensors were compared.
        reference: "float64" or, where nothing differed from it, "onnxruntime".
        notes: what was not evaluated in double precision.
        kernels: what each kernel wrote, as far as that is a tensor of the model.
    """

    comparison: Comparison
    kernel: str = ""
    compared: int = 0
    reference: str = "float64"
    notes: tuple[str, ...] = ()
    kernels: tuple[Written, ...] = ()

    @property
    def ok(self) -> bool:
        return self.comparison.ok


@dataclass(frozen=True)
class Run:
    """One run of the compiled model.

    Attributes:
        feeds: its inputs. peer: onnxruntime's outputs of them, where it runs the model.
        outputs: ours. seen: what each kernel wrote; nothing on a GPU.
    """

    feeds: Mapping[str, Array]
    peer: Mapping[str, Array] | None
    outputs: Mapping[str, Array]
    seen: Sequence[Seen] = ()


class Examiner:
    """Examines runs of one compiled model.

    Args:
        model: the loaded artifact.
        path: its ONNX file, or the model in it.
        prepared: the same as the importer prepares it, whose nodes the kernels name.
        rtol, atol: the user's, in place of what follows from rounding.
        judge: one of `prepared` with these tolerances, where there is one.
        rerun: asks onnxruntime again.
        brief: only whether kernels and outputs are right is asked, not how much they may differ: then kernels come
            before runs that only round, which need not be made where all kernels are right.

    The nodes of `prepared` whose rows the artifact rounds to 8 bits are marked (:mod:`tvmopt.analysis.rounds`), and
    those that make caches which it rounds (:mod:`tvmopt.analysis.kept`).

    Raises:
        Unsupported: it rounds caches that the oracle cannot round.
    """

    def __init__(
        self, model: Any, path: Any, prepared: Any, rtol: Tolerance = None, atol: Tolerance = None,
        judge: Judge | None = None, rerun: Rerun | None = None, brief: bool = False,
    ) -> None:  # fmt: skip
        self.rerun, self.brief = rerun, brief
        self.model, self.path, self.prepared = model, path, prepared
        self.precision = model.manifest.precision
        self.rounded = rounded_by(model.manifest.report)
        self.roles: Roles = model.manifest.decoder
        self.keeps = self.roles.kept != FLOAT
        marked = [mark(prepared, self.rounded), kept.mark(prepared, self.roles, self.roles.kept)]
        if any(marked):
            judge = None  # it may have seen other marks
        self.judge = judge or Judge(prepared, self.precision, rtol, atol)
        # kernels of open sizes may name nodes of another graph than the prepared one, which is static; where rows are
        # rounded to 8 bits, though, outputs alone say little: a bit that rounds otherwise changes all behind it
        self.observed = model.manifest.kind == "llvm" and (not model.symbols or bool(self.rounded))
        self._elsewhere = False  # whether ours and onnxruntime's numbers stand in different places there
        self._apart = 1.0  # ours and onnxruntime's on ordinary inputs, in units of what is allowed without a question

    def thoroughly(self, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None) -> Examined:
        """Outputs and kernels against the oracle.

        Args:
            peer: onnxruntime's outputs, where it runs the model.

        Raises:
            Unsupported: the oracle cannot evaluate the model.
        """
        return self._against_oracle(self._run(feeds, peer), always=True)

    def fully(
        self, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None, meanwhile: Callable[[], None] | None = None
    ) -> Examined:
        """Thoroughly or, where the oracle cannot evaluate the model, against onnxruntime's outputs only.

        Args:
            meanwhile: is called when everything is known that :meth:`quickly` and :meth:`hostile` ask for, if other
                threads may examine other inputs from then on.

        Raises:
            Unsupported: neither can run the model.
        """
        run = self._run(feeds, peer)
        if peer is not None and not self.judge.overruled:
            beside = self._beside(self._unrounded(feeds) if self.keeps else run.outputs, peer)
            excesses = [o.excess for o in beside]
            self._elsewhere = any(map(misplaced, beside))
            self._apart = max(filter(np.isfinite, excesses), default=1.0)
        if meanwhile is not None and not self.keeps:  # caches that are rounded are marked in the model itself
            meanwhile()
        return self._as_in_the_file(self._or_peer(run, always=True), run)

    def quickly(self, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None) -> Examined:
        """Outputs against onnxruntime's and, where they differ by more than on the inputs that were examined fully,
        and by more than its own do on inputs that are a few roundings apart, against the oracle.
        """
        if peer is not None and not self.judge.overruled and not self.keeps:
            outputs, slack = self.model.run(feeds), max(1.0, SPREAD * self._apart)
            alike = self._nudged(feeds, peer, outputs, slack)
            if len(alike) == len(self.model.outputs) and all(o.ok for o in alike):
                return Examined(Comparison(tuple(alike)), reference="onnxruntime")
        return self._or_peer(self._run(feeds, peer), always=False)

    def _nudged(
        self, feeds: Mapping[str, Array], peer: Mapping[str, Array], outputs: Mapping[str, Array], slack: float
    ) -> list[OutputComparison]:
        """Outputs against onnxruntime's and, as long as some differ, further ones that it has of nudged inputs."""
        runs: list[Mapping[str, Array]] = []
        alike = self._beside(outputs, peer, slack)
        while self.rerun is not None and len(runs) < NUDGES and any(not o.ok for o in alike):
            if any(o.problem not in ("", "differs") for o in alike):
                break
            try:
                runs.append(self.rerun(nudged(feeds, len(runs))))
            except TvmoptError:
                break
            alike = self._beside(outputs, peer, slack, runs)
        return alike

    def _against_oracle(self, run: Run, always: bool) -> Examined:
        """Outputs against the oracle, and kernels: `always`, or where an output differs."""
        truth = self.judge.truth(run.feeds, run.outputs)
        # where values decide sizes, the judge says which outputs kernels are compared with
        kernels_first = self.brief and always and bool(run.seen) and not (self.judge.overruled or self.judge.selections)
        judged = self.judge.plainly if kernels_first else self.judge
        compared = judged(truth, run.outputs, run.peer)
        found = self._kernels(run, compared) if run.seen and (always or not compared.ok) else Found()
        if kernels_first and not ruled(compared, found).ok:
            compared = self.judge(truth, run.outputs, run.peer)
        if not self.judge.overruled:
            compared = ruled(compared, found)
        return Examined(compared, found.kernel, found.compared, notes=tuple(truth.notes), kernels=found.kernels)

    def _kernels(self, run: Run, compared: Comparison) -> Found:
        outputs = self._settled(run, compared)
        return check_kernels(self.prepared, run.feeds, outputs, run.seen, self.precision, self.brief)

    def _settled(self, run: Run, compared: Comparison) -> dict[str, Array]:
        """Outputs that kernels are compared with: those of a size that values decide only where the judge refuses them,
        as it alone knows which elements may be chosen or not."""
        right = {o.name for o in compared.outputs if o.ok}
        sized = {name for s in self.judge.selections for name in s.outputs}
        return {n: a for n, a in run.outputs.items() if n not in right & sized}

    def _or_peer(self, run: Run, always: bool) -> Examined:
        try:
            return self._against_oracle(run, always)
        except Unsupported:
            if not run.peer or self.keeps:
                raise
            compared = self.judge.without_oracle(run.outputs, run.peer)
            return Examined(compared, reference="onnxruntime", notes=("the oracle cannot evaluate the model",))

    def _as_in_the_file(self, examined: Examined, run: Run) -> Examined:
        """The oracle on the file itself, where what fits the prepared model is far from onnxruntime's, or that does not
        run the model: the importer may have folded a wrong constant, which the prepared model has, too."""
        beside = run.peer is not None and self._apart <= FAR and not self._elsewhere
        if not examined.ok or not self.path or beside:
            return examined
        judge = Judge(self.path, self.precision, self.judge.rtol, self.judge.atol)
        mark(judge.model, self.rounded)
        try:
            kept.mark(judge.model, self.roles, self.roles.kept)
            compared = judge(judge.truth(run.feeds, run.outputs), run.outputs, run.peer)
        except Unsupported:
            return examined
        wrong = any(o.problem and (o.excess > AMPLIFIED or misplaced(o)) for o in compared.outputs)
        return replace(examined, comparison=compared) if wrong else examined

    def _unrounded(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The prepared model's outputs as if no cache were rounded, in the types of the compiled model: what may be
        compared with onnxruntime's."""
        kept.mark(self.prepared, self.roles, FLOAT)
        try:
            exact = Oracle(self.prepared).run(feeds)
        except Unsupported:
            return {}
        finally:
            kept.mark(self.prepared, self.roles, self.roles.kept)
        return {o.name: exact[o.name].astype(o.numpy_dtype) for o in self.model.outputs if o.name in exact}

    def _beside(
        self, outputs: Mapping[str, Array], peer: Mapping[str, Array], slack: float = 1.0,
        runs: Sequence[Mapping[str, Array]] = (),
    ) -> list[OutputComparison]:  # fmt: skip
        """Outputs against onnxruntime's, within `slack` times the usual limits, or as far apart as those of its other
        `runs`, which only round otherwise."""
        peer, *others = (self.judge.in_order(outputs, one) for one in (peer, *runs))
        return [
            self.judge.alike(n, peer[n], a, slack, [other[n] for other in others])
            for n, a in outputs.items()
            if n in peer
        ]

    def hostile(self, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None) -> Examined:
        """Inputs with one value that is no number: none may be lost on its way.

        Where the oracle and onnxruntime have no number, ours must not have one, unless it is right whatever number
        stands in the input: behind a mask nobody sees it. Where an infinity stands there, ours may also be what a
        number of its sign that is larger than all others makes: two products of an infinity that are added may be
        infinities of opposite signs, and no number, where the product with the sum of the factors is one of them, and
        its Relu 0. More than theirs are allowed: a kernel may compute whole tiles (Winograd), or multiply by a weight
        of zero what another leaves out.
        """
        found = self.model.run(feeds)
        peer = None if self.keeps else peer
        if peer is not None and all(n in peer and _same_places(peer[n], a) for n, a in found.items()):
            return Examined(Comparison(tuple(map(_placed, found, found.values()))), reference="onnxruntime")
        truth = self.judge.truth(feeds)
        exact = truth.exact
        results: list[OutputComparison] = []
        hidden: list[Truth] = []
        limits: list[Mapping[str, Array]] = []
        for name, ours in found.items():
            if not is_real(ours.dtype) or ours.shape != exact[name].shape:
                continue
            theirs = peer.get(name, exact[name]) if peer is not None else exact[name]
            theirs = theirs if theirs.shape == ours.shape else exact[name]  # onnxruntime has shapes of its own for some
            lost = ~np.isfinite(exact[name]) & ~np.isfinite(theirs) & np.isfinite(ours)
            if lost.any():
                hidden = hidden or self._hidden(feeds)
                lost &= ~self._near(ours, *(one.exact[name] for one in hidden))
                lost &= ~np.isnan(hidden[0].undecided()[name])
                # the range of a type alone makes it none: a fused multiply-add stores no product
                lost &= ~np.isfinite(limit(truth.unlimited()[name], ours.dtype))
            if lost.any() and (limits := limits or self._at_infinity(feeds)):
                lost &= ~self._like(ours, exact[name], limits[0][name], limits[1][name])
            results.append(_placed(name, exact[name], _lost(lost)))
        return Examined(Comparison(tuple(results)))

    def _hidden(self, feeds: Mapping[str, Array]) -> list[Truth]:
        """What the oracle says with a large number, and with its negative, in place of what is no number."""

        def plain(number: float, array: Array) -> Array:
            return np.where(np.isfinite(array), array, array.dtype.type(number))

        return [self._truth(feeds, partial(plain, number)) for number in (INSTEAD, -INSTEAD)]

    def _at_infinity(self, feeds: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """What the oracle says with the largest number of an input's type, and with an eighth of it, in place of each
        infinity, as if intermediate results had no largest number; nothing where a NaN is among the inputs."""

        def within(part: float, array: Array) -> Array:
            end = part * min(float(ml_dtypes.finfo(array.dtype).max), LARGE)
            return np.clip(array, -end, end).astype(array.dtype)

        if any(is_real(a.dtype) and np.isnan(a).any() for a in feeds.values()):
            return []
        return [self._truth(feeds, partial(within, part)).unlimited() for part in (1.0, 0.125)]

    def _truth(self, feeds: Mapping[str, Array], change: Callable[[Array], Array]) -> Truth:
        """What the oracle says with the floats of an input changed."""
        return self.judge.truth({n: change(a) if is_real(a.dtype) else a for n, a in feeds.items()})

    def _near(self, ours: Array, one: Array, other: Array) -> Array:
        """Which elements are right whatever stands in the input."""
        same = (one == other) & np.isfinite(one)
        return np.asarray(same & self._like(ours, np.where(same, one, np.nan), one))

    def _like(self, ours: Array, beside: Array, *expected: Array) -> Array:
        """Which elements are all of what is `expected` but for rounding.

        Args:
            beside: numbers of the same tensor, which tell the size of its rounding.
        """
        limits = limits_of(self.precision, SINGLE if ours.dtype == DOUBLE else ours.dtype)
        plain = beside[np.isfinite(beside)]
        scale = float(np.sqrt(np.mean(np.square(plain)))) if plain.size else 0.0
        like = np.isfinite(ours)
        with np.errstate(all="ignore"):
            for one in expected:
                apart = np.abs(ours.astype(one.dtype) - one)
                like &= apart <= PEAK * limits.rms * scale + limits.element * np.abs(one)
        return np.asarray(like)

    def _run(self, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None) -> Run:
        if not self.observed:
            return Run(feeds, peer, self.model.run(feeds))
        emulated = isinstance(self.model, EmulatedModel)
        outputs, seen = self.model.observe(feeds) if emulated else observe(self.model, feeds)
        names = [o.name for o in self.model.outputs]
        return Run(feeds, peer, dict(zip(names, map(np.asarray, outputs), strict=True)), seen)


def ruled(compared: Comparison, found: Found) -> Comparison:
    """Outputs and kernels together."""
    local = {o.name: o for o in found.wrong}
    results = []
    for one in compared.outputs:
        if one.name in local and one.ok:
            one = local[one.name]
        elif one.problem == "differs" and found.compared and not local and one.excess <= AMPLIFIED:
            one = replace(one, problem="", tolerance=AMPLIFIED * one.tolerance)
        results.append(one)
    names = {o.name for o in compared.outputs}
    results += [o for o in found.wrong if o.name not in names]
    return Comparison(tuple(results))


def _same_places(theirs: Array, ours: Array) -> bool:
    """Whether the same elements are numbers."""
    if not is_real(ours.dtype) or theirs.shape != ours.shape:
        return not is_real(ours.dtype)
    return bool(np.array_equal(np.isfinite(theirs), np.isfinite(ours)))


def _placed(name: str, expected: Array, problem: str = "") -> OutputComparison:
    """An output of which only the places of what is no number were compared."""
    numbers = not expected.size or not is_real(expected.dtype) or bool(np.isfinite(expected).any())
    return OutputComparison(name, problem, numbers=numbers)


def _lost(where: Array) -> str:
    if not where.any():
        return ""
    at = [int(i) for i in np.argwhere(where)[0]]
    return f"{int(where.sum())} elements are numbers where the oracle and onnxruntime have none, the first at {at}"
