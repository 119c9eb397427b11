"""One kernel on a board behind TVM's RPC tracker - inside a worker process, in place of `kernel.Bench`.

A board is asked for when something is to be run, and given back after it: any number of workers share any number of
boards, and one that disappears takes the running measurement with it, nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tvm import rpc, tirx

from tvmopt.targets import Machine
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.kernel import Bench, Sample, sampled, taken_in_turn
from tvmopt.tuning.record import Candidate


class BoardLost(ConnectionError):
    """The board went away while it worked; the candidate may be innocent."""


@dataclass
class RemoteBench(Bench):
    """Builds here, runs there. `built` holds the paths of exported libraries."""

    timeout: float = 60.0
    built: dict[str, Any] = field(default_factory=dict)
    _session: Any = None
    _loaded: dict[str, Any] = field(default_factory=dict)

    def _compiled(self, func: tirx.PrimFunc) -> Any:
        folder = Path(tempfile.mkdtemp(dir=Path(self.kernel.folder).parent))
        path = folder / f"{folder.name}.tar"  # objects: the board links them
        self._module_of(func).export_library(str(path))
        return str(path)

    def _run_once(self, func: tirx.PrimFunc, inputs: Sequence[Any]) -> list[Any]:
        path = self._compiled(func)
        with self._board():
            outputs = [self._tensor(a) for a in self._poisoned()]
            self._module(path)["main"](*map(self._tensor, inputs), *outputs)
            return [_Fetched(t.numpy()) for t in outputs]

    def check(self, ident: str) -> tuple[bool, str, str]:
        with self._board():
            return self._checked(ident)

    def _checked(self, ident: str) -> tuple[bool, str, str]:
        self._load()
        outputs = self._empty_outputs()
        self._module(self.built[ident])["main"](*self._inputs, *outputs)
        return self._judged(outputs)

    def checked_and_measured(self, ident: str, effort: Effort) -> tuple[bool, str, str, list[float], float]:
        """One visit to a board for both."""
        base = Candidate(self.kernel.analytic)
        if base.id not in self.built:
            self.build(base)
        with self._board():
            right, digest, problem = self._checked(ident)
            if not right:
                return right, digest, problem, [], 0.0
            samples, baseline = sampled(self._timed(ident, effort.flush), self._timed(base.id, effort.flush), effort)
            return right, digest, problem, samples, baseline

    def compare(self, first: str, second: str, rounds: int, flush: str) -> list[tuple[float, float]]:
        with self._board():
            self._load()
            return taken_in_turn(self._timed(first, flush), self._timed(second, flush), rounds)

    def _timed(self, ident: str, flush: str) -> Sample:
        arguments = (*self._inputs, *self._empty_outputs())
        return timed_there(self._module(self.built[ident]), self.device, self.kernel.machine, flush, arguments)

    @property
    def device(self) -> Any:
        return self._session.cpu(0)

    @property
    def host(self) -> str:
        assert self.kernel.rpc is not None
        return f"a board {self.kernel.rpc[2]!r}"

    def _module(self, path: str) -> Any:
        if path not in self._loaded:
            self._session.upload(path)
            self._loaded[path] = self._session.load_module(Path(path).name)
        return self._loaded[path]

    @contextmanager
    def _board(self) -> Iterator[None]:
        """Ask the tracker for a board; whatever fails while it is gone is `BoardLost`."""
        assert self.kernel.rpc is not None
        host, port, key = self.kernel.rpc
        try:
            self._session = rpc.connect_tracker(host, port).request(key, session_timeout=self.timeout)
        except Exception as error:
            raise BoardLost(f"no board {key!r} from the tracker at {host}:{port}: {error}") from error
        try:
            yield
        except Exception as error:
            if self._answers():
                raise
            raise BoardLost(str(error)) from error
        finally:
            self._ready, self._inputs, self._loaded = False, [], {}  # what keeps the session open
            self._session = None

    def _answers(self) -> bool:
        try:
            return bool(self._session.get_function("runtime.GetFFIString") or True)
        except AttributeError:
            return True
        except Exception:
            return False


def timed_there(module: Any, device: Any, machine: Machine, flush: str, arguments: Sequence[Any]) -> Sample:
    """Samples by TVM's time evaluator, for what this process cannot time: a board, a GPU. Each is one call after a
    flush of the caches, or three without one. The board's own scheduler is out of sight: no sample is disturbed."""
    cold, cpu = flush != "no", machine.kind == "llvm"
    timer = module.time_evaluator(
        "main", device, number=1 if cold else 3, repeat=1,
        f_preproc="cache_flush_cpu_non_first_arg" if cpu and cold else "",
        cache_flush_bytes=2 * machine.l2 if cold and not cpu else 0,
    )  # fmt: skip
    return lambda: (float(timer(*arguments).mean), True)


@dataclass
class _Fetched:
    """An output brought home before the board was given back."""

    array: np.ndarray[Any, Any]

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array
