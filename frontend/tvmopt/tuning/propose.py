"""Which candidates to measure next: evolution over a family's knobs, guided by an XGBoost model of the score.

first       the analytic point
then        a few points drawn evenly, then those the model likes best among a population: the fittest measured points,
            their mutations (one knob) and crossovers, and strangers; a share is always drawn blindly
the model   log(score) from the logarithms of knobs and shape; one model a family for all its tasks, because a tile that
            suits one convolution suits the next; fitted anew from the records, so a resumed run continues it
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log, log2
from typing import Any

from tvmopt.scheduling.family import Space
from tvmopt.tuning.record import Candidate, Record

WARM_UP = 6
"""Measured points of a family before the model is asked."""
BLIND = 0.15
"""Share of proposals that ignore the model."""
POPULATION = 256
ENUMERATE = 4096
"""Spaces up to this size are walked through, larger ones drawn from."""
WORST = log(8.0)
"""What a point that failed, crashed or was wrong counts as."""


def fitness(record: Record) -> float:
    """log(score), failures included: what the model learns."""
    return min(WORST, log(max(record.score, 1e-3))) if record.score < float("inf") else WORST


class Model:
    """The cost model of one family. `fit` is cheap: some hundred rows, a tenth of a second."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._booster: Any = None

    def fit(self, rows: Sequence[Mapping[str, float]], targets: Sequence[float]) -> None:
        """Train from scratch; with too few rows there is no model."""
        self._booster = None
        if len(rows) < WARM_UP:
            return
        import xgboost

        self._names = sorted({name for row in rows for name in row})
        settings = {"max_depth": 5, "eta": 0.2, "min_child_weight": 0, "seed": self._seed, "nthread": 1}
        data = xgboost.DMatrix(self._matrix(rows), label=list(targets))
        self._booster = xgboost.train(settings, data, num_boost_round=60)

    def predict(self, rows: Sequence[Mapping[str, float]]) -> list[float] | None:
        """Predicted log(score), lower is better; None while there is no model."""
        if self._booster is None:
            return None
        import xgboost

        return [float(v) for v in self._booster.predict(xgboost.DMatrix(self._matrix(rows)))]

    def _matrix(self, rows: Sequence[Mapping[str, float]]) -> Any:
        import numpy as np

        return np.array([[row.get(name, np.nan) for name in self._names] for row in rows], dtype=np.float32)


def features(knobs: Mapping[str, int], shape: Mapping[str, float]) -> dict[str, float]:
    """What the model sees: logarithms, and how evenly each knob divides each extent (the tail it leaves)."""
    row = {f"k.{n}": log2(1 + v) if v >= 0 else -1.0 for n, v in knobs.items()}
    row |= {f"s.{n}": log2(1 + v) if v >= 0 else -1.0 for n, v in shape.items()}
    for n, v in knobs.items():
        if v > 1:
            for m, extent in shape.items():
                if 1 < extent <= 65536 and extent == int(extent):
                    row[f"t.{n}.{m}"] = (-extent % v) / extent
    return row


@dataclass
class KnobSpace:
    """The family space of one task, and what of it is known."""

    space: Space
    shape: Mapping[str, float]
    records: dict[str, Record] = field(default_factory=dict)

    def note(self, record: Record) -> None:
        if record.candidate.space == "family":
            self.records[record.candidate.id] = record

    @property
    def left(self) -> int:
        """Points not measured."""
        return self.space.size - len(self.records)

    def rows(self) -> tuple[list[dict[str, float]], list[float]]:
        """Training data of this task."""
        known = list(self.records.values())
        return [features(r.candidate.knobs, self.shape) for r in known], [fitness(r) for r in known]

    def propose(self, count: int, model: Model, draw: random.Random) -> list[Candidate]:
        """Up to `count` points not measured yet, the most promising first."""
        analytic = Candidate(self.space.analytic)
        chosen = [] if analytic.id in self.records else [analytic]
        population = self._population(draw)
        population = [c for c in population if c.id != analytic.id]
        rows = [features(c.knobs, self.shape) for c in population]
        scores = model.predict(rows) if rows and len(self.records) >= WARM_UP else None
        if scores is None:
            draw.shuffle(population)
        else:
            ranked = [c for _, _, c in sorted(zip(scores, range(len(scores)), population, strict=True))]
            blind = draw.sample(ranked, k=min(len(ranked), sum(draw.random() < BLIND for _ in range(count))))
            population = ranked[: max(0, count - len(blind))]
            population += [c for c in blind if c not in population]
        return (chosen + population)[:count]

    def _population(self, draw: random.Random) -> list[Candidate]:
        if self.space.size <= ENUMERATE:
            return [c for c in self._all() if c.id not in self.records]
        fittest = sorted(self.records.values(), key=fitness)[:16]
        found: dict[str, Candidate] = {}
        for _ in range(POPULATION * 4):
            if len(found) >= POPULATION:
                break
            c = self._offspring(fittest, draw) if fittest and draw.random() < 0.75 else self._stranger(draw)
            if c.id not in self.records:
                found[c.id] = c
        return list(found.values())

    def _all(self) -> Iterator[Candidate]:
        names = list(self.space.choices)
        for values in product(*self.space.choices.values()):
            yield Candidate(dict(zip(names, values, strict=True)))

    def _stranger(self, draw: random.Random) -> Candidate:
        return Candidate({name: draw.choice(values) for name, values in self.space.choices.items()})

    def _offspring(self, parents: Sequence[Record], draw: random.Random) -> Candidate:
        first, second = draw.choice(parents).candidate.knobs, draw.choice(parents).candidate.knobs
        knobs = {n: draw.choice((first, second)).get(n, values[0]) for n, values in self.space.choices.items()}
        name = draw.choice(list(self.space.choices))
        return Candidate({**knobs, name: draw.choice(self.space.choices[name])})
