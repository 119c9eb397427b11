"""Run a step on untrusted input where it cannot hurt: in a forked child with a time and a memory limit.

ONNX's shape functions and version converter are C++ that trusts its input: a wrong attribute can divide by
zero, recurse without end or ask for terabytes. In a child that is a message; in the user's process it would
be the end. A fork starts in milliseconds and shares the model's memory; only the result travels back.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from tvmopt.children import die_with_parent, starved
from tvmopt.errors import ModelError, TvmoptError
from tvmopt.targets.memory import free_memory

Result = TypeVar("Result")

SECONDS = 600.0
"""Time limit of one step. Preparing the largest models that fit memory takes seconds."""


def isolated(step: Callable[[], Result], what: str, where: str = "", seconds: float = SECONDS) -> Result:
    """What `step()` returns, computed in a child process; its result must pickle.

    Args:
        what: what the step does, as a noun, for messages: ``"shape inference"``.
        where: the model it is done to.

    Raises:
        TvmoptError: whatever the step raises of ours.
        ModelError: the child died, ran out of memory or exceeded the time limit.

    Where a process cannot be forked (Windows) or must not be (macOS), the step runs in this one.
    """
    if sys.platform != "linux":
        return step()
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads exist; the child uses none of their locks
        pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(step, write)
    os.close(write)
    status = None
    try:
        data = _read_all(read, time.monotonic() + seconds)
    except TimeoutError:
        data = b""
        status = f"takes longer than {seconds:.0f} s"
    finally:
        os.close(read)
        if status or sys.exc_info()[0]:
            os.kill(pid, signal.SIGKILL)
        _, code = os.waitpid(pid, 0)
    if not data:
        died = signal.Signals(os.WTERMSIG(code)).name if os.WIFSIGNALED(code) else f"exit code {code >> 8}"
        raise ModelError(
            f"The {what} of this model {status or f'crashes ({died})'}.",
            where=where,
            fix=starved("" if status else died)
            or "the model is damaged or hostile; if it runs elsewhere, please report it",
        )
    verdict, value = pickle.loads(data)
    if verdict == "error":
        raise value
    result: Result = value
    return result


def _child(step: Callable[[], Any], write: int) -> None:
    """Run, send, and leave without the parent's clean-up handlers."""
    gc.freeze()  # what the parent left to collect is not ours: an engine's session would wait for threads of the parent
    try:
        die_with_parent()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        faulthandler.disable()
        _limit_memory()
        try:
            answer: tuple[str, Any] = ("result", step())
        except TvmoptError as error:
            answer = ("error", error)
        except MemoryError:
            answer = ("error", ModelError("The model needs more memory than is free."))
        except RecursionError:
            answer = ("error", ModelError("The model is nested too deeply."))
        except Exception as error:  # a bug of ours: it keeps its traceback, as text
            import traceback

            answer = ("error", RuntimeError(f"{error!r}\n{traceback.format_exc()}"))
        data = pickle.dumps(answer, protocol=5)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(struct.pack("<Q", len(data)))
            pipe.write(data)
        os._exit(0)
    except BaseException:
        os._exit(70)


def _limit_memory() -> None:
    """Let the child allocate what is free now, not more: the kernel would kill someone else for it."""
    import resource

    process = psutil.Process()
    limit = process.memory_info().vms + free_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    given = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]  # by `ulimit -v`; never widened
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *given]), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_all(descriptor: int, deadline: float) -> bytearray | bytes:
    """Everything the child sends; empty when it dies first."""
    header = _read_exactly(descriptor, 8, deadline)
    if len(header) < 8:
        return b""
    size = struct.unpack("<Q", header)[0]
    data = _read_exactly(descriptor, size, deadline)
    return data if len(data) == size else b""


def _read_exactly(descriptor: int, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        got = os.readv(descriptor, [view[filled : filled + (1 << 24)]])
        if not got:
            break
        filled += got
    del view
    return data[:filled] if filled < size else data
