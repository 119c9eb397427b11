"""Records for tests of the store and of logs: one key, and measurements of it."""

from __future__ import annotations

from dataclasses import replace

from tvmopt.tuning.record import Candidate, Key, Record, Verdict

KEY = Key("00ff", "llvm znver5 2c avx2", "0.27", "gemm", 1)
WON = Verdict(0.8, 0.78, 0.82, 1e-6, 30, True)


def record(mr: int = 14, key: Key = KEY, verdict: Verdict | None = None, **fields: object) -> Record:
    made = Record(key, Candidate({"mr": mr}), "ok", (1e-3, 2e-3, 1.5e-3), "abc:1e-7", shape="m=1", verdict=verdict)
    return replace(made, **fields) if fields else made
