"""Call a function in a child process and get its result, its progress or its error - for work that can abort.

Generated code, foreign models and TVM's C++ passes can end a process; CUDA needs another loader path. The
child talks over a pipe of its own, so that stray prints do no harm. Arguments and results are JSON.

A terminal's Ctrl-C goes to the parent alone, which passes it on once the child can take it; the child dies with its
parent, however that ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Self

from tvmopt import errors
from tvmopt.errors import TvmoptError, last_line, limit_of
from tvmopt.garbage import RARELY

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_PIPE = "TVMOPT_CHILD_PIPE"
_PR_SET_PDEATHSIG = 1
Progress = Callable[[str], None]
"""Is told, in words, each stage of something that takes long."""


KILLED = "SIGKILL"
"""What ends a process from outside."""


expendable = False
"""Whether this process may end where others have a child do what may end it: who started it then does that."""


_LACKING = (MemoryError, ImportError, OSError, AttributeError, SystemError)
"""What exceptions a lack of memory makes: modules of TVM whose library was not loaded have no functions."""
_LACKING_TEXTS = ("bad_alloc", "can't start new thread")
"""... and what TVM's errors and Python's threads say of it."""


class Crash(TvmoptError):
    """The child ended without an answer.

    Attributes:
        stage: the last progress it reported.
        bug: the type and the last line of the exception that ended it, which is a bug; empty where none did. Its
            traceback is on stderr, which a parent may have sent elsewhere.
    """

    exit_code = 70

    def __init__(self, what: str, stage: str, *, where: str = "", fix: str = "", bug: str = "") -> None:
        super().__init__(f"{what}: {bug}" if bug else what, where=where or stage, fix=fix)
        self.stage, self.bug = stage, bug

    def of_compile(self, source: object) -> Crash:
        """The same for a user whose model, `source`, was compiled."""
        return Crash(
            f"the compiler crashed ({self.what}) while {self.stage or 'starting'}.",
            self.stage,
            where=str(source),
            fix=starved(self.what) or "this is a bug: please report it with the model",
        )


def call(
    function: str,
    arguments: Mapping[str, Any],
    *,
    progress: Progress | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call ``"module:function"`` with keyword arguments in a new Python process.

    The function gets one more argument, `progress`, a callable that reports a stage.

    Raises:
        Crash: the child died: killed by a signal, or an error that is a bug (its traceback is on stderr).
        TvmoptError: whatever error of ours the function raised.
    """
    with Child(function, arguments, environment=environment) as child:
        child.end()
        return child.result(progress)


class Child:
    """A function at work in a new Python process, as :func:`call` does it, while this process goes on.

    Leaving the context ends the process, if it still runs, and removes its temporary files.
    """

    def __init__(
        self, function: str, arguments: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
    ) -> None:
        variables = {**os.environ, **(environment or {})}
        self._folder, self._process, self._pipe = _prepared(variables) or _start(variables)
        self._heard = self._answered = False
        self.send({"function": function, "arguments": dict(arguments)})

    def send(self, message: Mapping[str, Any]) -> None:
        """What the child's :func:`receive` gives next. It should be small: the child may read it late."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: the exit code says how
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """There will be no more messages."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def result(self, progress: Progress | None = None) -> Any:
        """What the function returns.

        Args:
            progress: hears of its stages, those before this call as well.

        Raises:
            Crash, TvmoptError: see :func:`call`.
        """
        answer: dict[str, Any] = {}
        stage = ""
        for line in self._pipe:
            message, self._heard = json.loads(line), True
            if "progress" in message:
                stage = message["progress"]
                if progress:
                    progress(stage)
            elif "ready" not in message:
                answer = message
                if "result" in message or "error" in message:
                    self._answered = True
                    break
        if "error" in answer:
            raise thaw(answer["error"])
        if self._answered:
            return answer["result"]
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise Crash(how, stage, bug=answer.get("bug", ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if self._answered:  # nobody waits until the system has taken back its memory, which takes 0.1 s a gigabyte
                threading.Thread(target=self._process.wait, daemon=True).start()
            elif self._process.poll() is None:  # Ctrl-C among the reasons: the child must not outlive us
                self._process.send_signal(signal.SIGINT if self._heard else signal.SIGKILL)
                try:
                    self._process.wait(3)  # it removes what it has half written
                except subprocess.TimeoutExpired:
                    self._process.kill()  # deep in LLVM: Python's handler never ran, so nothing was being written
                    self._process.wait()
            self.end()
            self._pipe.close()
        finally:
            self._folder.cleanup()


Started = tuple["tempfile.TemporaryDirectory[str]", "subprocess.Popen[bytes]", Any]
"""A child's folder for temporary files, its process, and the pipe that it answers on."""
_ahead: list[tuple[dict[str, str], Started]] = []
"""The child that was started before its function was known, with its environment."""


def prepare(function: str, environment: Mapping[str, str] | None = None) -> None:
    """Start a child that the next :func:`call` takes: it calls ``"module:function"`` meanwhile, which imports what is
    needed for sure. This process then looks at what it is asked, and reads files, at the same time.

    Where nobody takes it, it ends with this process.

    Args:
        environment: variables of its own, which the call must ask for, too.
    """
    if not _ahead:
        variables = {**os.environ, **(environment or {})}
        _ahead.append((variables, _start(variables)))
        atexit.register(_drop, os.getpid())
        with suppress(BrokenPipeError):
            stdin = _ahead[0][1][1].stdin
            assert stdin is not None
            stdin.write(json.dumps({"prepare": function}).encode() + b"\n")
            stdin.flush()


def _prepared(variables: dict[str, str]) -> Started | None:
    """The child that was started ahead, which nobody else takes then; one with another environment is ended."""
    if not _ahead:
        return None
    own, started = _ahead[0]
    if own != variables or started[1].poll() is not None:
        dismiss()
        return None
    _ahead.clear()
    return started


def dismiss() -> None:
    """End the child that was started ahead, if there is one: nobody will take it."""
    _drop(os.getpid())


def _drop(owner: int) -> None:
    """End the child that was started ahead and is not needed, in the process that started it, not in a fork of it."""
    if not _ahead or os.getpid() != owner:
        return
    folder, process, pipe = _ahead.pop()[1]
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    pipe.close()
    folder.cleanup()


def _start(variables: Mapping[str, str]) -> Started:
    # a child that dies cannot clean up by itself; where this process cannot either (`ulimit -n`), another error is told
    folder = tempfile.TemporaryDirectory(prefix="tvmopt-", ignore_cleanup_errors=True)
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from tvmopt.children import main; main()"],
        stdin=subprocess.PIPE,
        pass_fds=[writer],
        process_group=0,
        env={**variables, "TMPDIR": folder.name, _PIPE: str(writer)},
    )
    os.close(writer)
    return folder, process, os.fdopen(reader)


def receive() -> Any:
    """In a child: the next message of its parent, as soon as there is one. Without one the child ends: its parent has
    given up."""
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        os._exit(130)
    return json.loads(line)


def starved(what: str = "") -> str:
    """How to mend a lack of memory or of time: of that which this process was started with (`ulimit -v`, `-t`), or,
    where a child ended by SIGKILL, of all; empty where nothing speaks for it.

    A C++ library that gets no memory ends the process, and no message says why. Linux kills the process that has most
    when there is none left, and one that has used up its time.

    Args:
        what: how a child ended, as :class:`Crash` says it.
    """
    if used_up(what):
        return f"it used up the time of its processor, {_limit('RLIMIT_CPU')} s; raise `ulimit -t`"
    if KILLED in what:
        return (
            "not enough memory, most likely: a process is ended so when the system has none left. Verification takes "
            "most of it: free some, or leave it out (--no-verify)"
        )
    limit = _limit("RLIMIT_AS")
    if limit is None:
        return ""
    return f"not enough memory, most likely: this process may have {limit >> 20} MB of addresses; raise `ulimit -v`"


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception comes, most likely, of the limit that this process has for its memory (`ulimit -v`)."""
    told = isinstance(error, _LACKING) or any(words in str(error) for words in _LACKING_TEXTS)
    return told and _limit("RLIMIT_AS") is not None


def used_up(what: str) -> bool:
    """Whether a child ended because it may use no more of a processor's time: by SIGXCPU, or, where the two limits are
    one, by SIGKILL when the children together had as much."""
    limit = _limit("RLIMIT_CPU")
    if limit is None or KILLED not in what:
        return "SIGXCPU" in what
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime >= 0.9 * limit


def _limit(name: str) -> int | None:
    """What this process was started with; None where that is no limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _interrupted(number: int, frame: Any) -> None:
    """Ctrl-C, from the parent. It may unwind through C++, which prints and aborts: nobody needs to read that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise KeyboardInterrupt


def main() -> None:
    """The child's entry."""
    gc.set_threshold(*RARELY)
    die_with_parent()
    signal.signal(signal.SIGINT, _interrupted)
    pipe = os.fdopen(int(os.environ.pop(_PIPE)), "w", buffering=1)
    try:
        _answer(pipe)
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        if lacks_memory(error):
            os._exit(1)  # the parent tells that there was no memory, and nobody needs to read where Python was
        raise
    for stream in (pipe, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # generated libraries can crash in their destructors; everything is said


def _answer(pipe: IO[str]) -> None:
    """In a child: do what its parent asks for, and tell it what came of that."""
    _tell(pipe, {"ready": True})
    request = receive()
    if "prepare" in request:
        with suppress(Exception):  # what does not work now will not work either when it is needed, and is told then
            _function(request["prepare"])()
        request = receive()
    try:
        result = _function(request["function"])(
            **request["arguments"], progress=lambda stage: _tell(pipe, {"progress": stage})
        )
        _tell(pipe, {"result": result})
    except TvmoptError as error:
        _tell(pipe, {"error": freeze(error)})
    except Exception as error:
        if (limit := limit_of(error)) is not None:
            _tell(pipe, {"error": freeze(limit)})
            return
        if not lacks_memory(error):
            said = f": {last_line(error)}" if str(error).strip() else ""
            _tell(pipe, {"bug": type(error).__name__ + said})
        raise


_telling = threading.Lock()


def _tell(pipe: IO[str], message: Mapping[str, Any]) -> None:
    """In a child: one message to its parent. A parent that has ended reads none, and the child ends, too, silently:
    the kernel's SIGKILL (:func:`die_with_parent`) does not come where the parent ended before it was asked for."""
    line = json.dumps(message)
    try:
        with _telling:
            print(line, file=pipe, flush=True)
    except BrokenPipeError:
        os._exit(130)


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def freeze(error: TvmoptError) -> dict[str, Any]:
    """An error as plain data, for a pipe."""
    return {
        "type": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "fix": error.fix,
        "others": [freeze(other) for other in error.others],
    }


def thaw(data: Mapping[str, Any]) -> TvmoptError:
    """The error that :func:`freeze` made plain data of."""
    kind = getattr(errors, data["type"], TvmoptError)
    others = [thaw(other) for other in data["others"]]
    error: TvmoptError = kind(data["what"], where=data["where"], fix=data["fix"], others=others)
    return error
