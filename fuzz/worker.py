"""A process that checks models one after another and survives their crashes - and its client, `Worker`.

`python -m fuzz.worker` imports the compiler once and forks a child that does the work; when a kernel kills the child,
the next one is forked in milliseconds. Tasks and answers are lines of JSON on stdin and stdout. A child is replaced
after `BATCH` models, so that what one leaves behind does not grow.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

BATCH = 150
SECONDS = 60.0
"""A model that takes a processor longer hangs; so does one that takes ten times as long by the clock."""
MEMORY = 6 << 30
"""Bytes of private memory a child may have."""
ROOT = Path(__file__).resolve().parent.parent

Line = dict[str, Any]


class Worker:
    """The parent's end of one worker process.

    Args:
        forks: keep the importer's own forks: for models that may kill ONNX's C++.
    """

    def __init__(self, forks: bool = False, seconds: float = SECONDS) -> None:
        from fuzz.guard import library

        environment = {
            **os.environ, "LD_PRELOAD": str(library()), "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }  # fmt: skip
        arguments = [sys.executable, "-m", "fuzz.worker", str(int(forks)), str(seconds)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
            preexec_fn=lambda: os.nice(5),
        )  # fmt: skip

    def check(self, model: bytes, options: Line) -> Line:
        """The outcome of one model, as :class:`fuzz.once.Outcome` has it.

        Raises:
            RuntimeError: the worker itself has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        task = {"model": base64.b64encode(model).decode(), "options": options}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self.process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Child:
    """A forked process that answers tasks; its standard error goes to a file."""

    def __init__(self, work: Callable[[Line, Callable[[str], None]], Line]) -> None:
        down, self.down = os.pipe()
        self.up, up = os.pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self.done, self.rest = 0, b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.down)
            os.close(self.up)
            os.dup2(self.errors.fileno(), 2)
            os.dup2(self.errors.fileno(), 1)
            self._live(work, down, up)
        os.close(down)
        os.close(up)

    def _live(self, work: Callable[[Line, Callable[[str], None]], Line], down: int, up: int) -> None:
        """In the child: never returns."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            faulthandler.enable(all_threads=False)
            faulthandler.register(signal.SIGUSR1, all_threads=False)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

            def send(message: Line) -> None:
                os.write(up, json.dumps(message).encode() + b"\n")

            with os.fdopen(down) as tasks:
                for line in tasks:
                    answer = work(json.loads(line), lambda stage: send({"stage": stage}))
                    data = json.dumps({"answer": answer}).encode() + b"\n"
                    while data:
                        data = data[os.write(up, data) :]
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(71)
        os._exit(0)

    def ask(self, line: str, seconds: float) -> Line:
        """The answer, or how the child ended and in which stage."""
        self.done += 1
        data = line.encode()
        stage, deadline, used = "start", time.monotonic() + 10 * seconds, self._seconds([self.pid])
        try:
            while data:
                data = data[os.write(self.down, data) :]
        except BrokenPipeError:
            return self._ended(stage)
        while True:
            if not select.select([self.up], [], [], 1.0)[0]:
                family = self._family()
                if time.monotonic() < deadline and self._seconds(family) - used < seconds:
                    continue
                for number in (signal.SIGUSR1, signal.SIGKILL):  # faulthandler tells where they are
                    for pid in family:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
                    time.sleep(0.5)
                return {**self._ended(stage), "death": f"it takes longer than {seconds:.0f} s", "hang": True}
            got = os.read(self.up, 1 << 20)
            if not got:
                return self._ended(stage)
            *lines, self.rest = (self.rest + got).split(b"\n")
            for message in map(json.loads, lines):
                if "answer" in message:
                    return dict(message["answer"])
                stage = message["stage"]

    def _seconds(self, family: Sequence[int]) -> float:
        """Processor time of these processes and of those that they waited for."""
        return sum(sum(map(int, fields[11:15])) for pid in family if (fields := _stat(pid))) / os.sysconf("SC_CLK_TCK")

    def _family(self) -> list[int]:
        """The child and its descendants: the importer tries in forks what may never end."""
        parents = {int(p.name): int(fields[1]) for p in Path("/proc").glob("[0-9]*") if (fields := _stat(int(p.name)))}
        found = [self.pid]
        for pid in found:
            found += [one for one, parent in parents.items() if parent == pid]
        return found

    def _ended(self, stage: str) -> Line:
        _, code = os.waitpid(self.pid, 0)
        self.pid = 0
        how = signal.Signals(os.WTERMSIG(code)).name if os.WIFSIGNALED(code) else f"exit code {code >> 8}"
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace")
        told = said.rpartition("Fatal Python error")[2].partition("Extension modules")[0]
        llvm = [line for line in said.splitlines() if line.startswith("LLVM ERROR")][-1:]
        return {"death": how, "stage": stage, "stderr": "\n".join([*llvm, told[-2000:]])}

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.down)
        os.close(self.up)
        self.errors.close()


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name: its state, its parent, ...; none where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def work(task: Line, say: Callable[[str], None]) -> Line:
    """In the child: one task."""
    from fuzz import guard
    from fuzz.evaluate import evaluate
    from fuzz.once import options_of

    outcome = evaluate(base64.b64decode(task["model"]), options_of(task["options"]), say)
    guard.reset()
    return outcome.as_dict()


def outcome_of(answer: Line) -> Line:
    """A child's death as an outcome: a finding, unless the reference died."""
    if "death" not in answer:
        return answer
    from fuzz.once import Finding, Outcome

    stage, text = answer["stage"], f"{answer['death']} while: {answer['stage']}\n{answer['stderr']}"
    if stage.startswith("reference"):
        return {
            "status": "skipped",
            "why": f"onnxruntime dies: {answer['death']}",
            "runs": 0,
            "unjudged": 0,
            "findings": [],
        }
    inputs = stage.partition("run: ")[2]
    return Outcome("found", findings=[Finding("hang" if answer.get("hang") else "death", text, inputs)]).as_dict()


def main() -> None:
    forks, seconds = sys.argv[1] == "1", float(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    from fuzz.engine import prepare_process

    prepare_process(forks)
    child = Child(work)
    for line in sys.stdin:
        if not child.pid or child.done >= BATCH:
            child.end()
            child = Child(work)
        print(json.dumps(outcome_of(child.ask(line, seconds))), file=answers)
    child.end()


if __name__ == "__main__":
    main()
