"""The `tvmopt` command: one file a subcommand, each parse -> one api call -> render.

A subcommand's module is imported when it is called: `tvmopt --help` imports no TVM, ONNX or NumPy.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from math import isfinite
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tvmopt.children import lacks_memory, prepare, starved
from tvmopt.ending import interrupted, received
from tvmopt.errors import InputError, TvmoptError, limit_of
from tvmopt.texts import printable

COMMANDS = {  # name -> one line of help; the module is tvmopt.cli.<name>
    "compile": "Compile an ONNX model to one file, checked against onnxruntime.",
    "run": "Run a compiled model; time it.",
    "generate": "Text from a compiled decoder, token by token.",
    "inspect": "What a model or a compiled file is: FLOPs, parameters, bytes, memory; versions, hashes.",
    "bench": "Compare with onnxruntime, OpenVINO, TensorRT: interleaved, with intervals and a verdict.",
    "profile": "Time per kernel inside a run: FLOPs, bytes, share of the roof, advice.",
    "report": "All about a model on one page: graph, profile, memory, accuracy, comparison.",
    "compare": "Outputs and layers of engines, precisions or models: the first that differs, why, a small repro.",
    "surgeon": "Operations on ONNX files: extract, fold, sanitize, reduce to what fails.",
    "explain": "What was done to each node and why not.",
    "refit": "Put another model's weights into a compiled file, without compiling.",
    "serve": "Serve compiled models by HTTP and gRPC: the Open Inference Protocol v2.",
    "quantize": "A float model in 8 bits, calibrated on real inputs; what each layer loses.",
    "tune": "Make a model faster than its analytic schedules: search, keep, go on.",
    "logs": "Tuning records: list, show, merge, prune, verify, export, import, curve.",
    "cache": "Machine code kept of earlier compiles: list, prune, clear.",
    "nightly": "Tune, compile, verify and time a list of models every night; fail on what became slower.",
    "targets": "The machines tvmopt knows: list, show, detect this one.",
    "doctor": "Check versions, compiler, CPU, GPU and threads; say how to mend what is missing.",
}

_FOREIGN = {  # what the fingers of tvmc's and trtexec's users type -> what it is called here
    "--input-shapes": "--shape NAME:1x3x224x224",
    "--shapes": "--shape NAME:1x3x224x224",
    "--minShapes": "--shape NAME:1..8x3x224x224",
    "--optShapes": "--shape NAME:1..8@4x3x224x224",
    "--maxShapes": "--shape NAME:1..8x3x224x224",
    "--onnx": "the model is the first argument: tvmopt compile MODEL",
    "--saveEngine": "-o FILE.tvmopt",
    "--loadEngine": "the file is the first argument: tvmopt run FILE.tvmopt",
    "--inputs": "-i NAME=FILE.npy or -i FILE.npz",
    "--loadInputs": "-i NAME=FILE.npy or -i FILE.npz",
    "--outputs": "-o FILE.npz",
    "--fill-mode": "--fill random|zeros|ones",
    "--warmUp": "--warmup N (calls)",
    "--repeat": "--iterations N",
    "--number": "--iterations N",
    "--tuning-records": "records of `tvmopt tune` are found by themselves; see `tvmopt logs`",
    "--stripWeights": "--strip-weights",
    "--fp16": "--precision fp16",
    "--bf16": "--precision bf16",
    "--opt-level": "there are no levels: every compile uses all passes",
    "--desired-layout": "the layout is chosen for the whole graph; `tvmopt explain` tells it",
}

_FOREIGN_TO_TUNE = {
    "-o": "records are kept in the store (--store FILE); `tvmopt logs export DIR` writes them",
    "--output": "records are kept in the store (--store FILE); `tvmopt logs export DIR` writes them",
    "--tasks": "--list-tasks, --only NAME",
    "--tuner": "there is one: families' knobs ranked by a cost model, beside MetaSchedule's space",
    "--enable-autoscheduler": "it is on; --no-generic searches the families' knobs only",
    "--early-stopping": "--trials N or --budget 2h; a kernel whose points are all measured ends by itself",
    "--repeat": "the measurement goes on until a time is known well enough",
    "--number": "the measurement goes on until a time is known well enough",
    "--min-repeat-ms": "the measurement goes on until a time is known well enough",
    "--timeout": "the measurement sets its own, from the kernel's floor",
}

_OWN = {"compile", "run", "inspect", "explain", "refit"}  # the commands that these flags are looked for in
_ALSO = {"tune", "bench", "profile", "compare"}  # ... those of them that name a shape or a precision


class Commands(TyperGroup):
    """The subcommands, each loaded when asked for; a stub with its help line otherwise."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = _load(cmd_name) if cmd_name in _asked_for() else _stub(cmd_name)
        command.name = cmd_name
        return command


def _asked_for() -> set[str]:
    asked = _arguments
    for words in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):  # a shell asks how the line goes on
        asked = asked | set(os.environ.get(words, "").split())
    return asked & COMMANDS.keys()


_arguments: set[str] = set()
HELP = {"-h", "--help"}


def _load(name: str) -> Any:
    command = typer.main.get_command(import_module(f"tvmopt.cli.{name}").app)
    _refuse_infinite(command)
    return command


def _refuse_infinite(command: Any) -> None:
    """Let a command, or each of a group, refuse NaN and infinity wherever it takes a number: they are none in JSON, no
    size and no time, and a tolerance of them would allow everything."""
    for inner in getattr(command, "commands", {}).values():
        _refuse_infinite(inner)
    asked = command.callback
    flags = {option.name: max(option.opts, key=len) for option in command.params}

    def checked(**values: Any) -> Any:
        for name, value in values.items():
            if isinstance(value, float) and not isfinite(value):
                raise InputError(f"{flags[name]} is {value}.", where=flags[name], fix="give a finite number")
        return asked(**values)

    if asked is not None:
        command.callback = checked


def _stub(name: str) -> Any:
    stub = typer.Typer(add_completion=False)
    stub.command(name, help=COMMANDS[name])(lambda: None)
    return typer.main.get_command(stub)


def application() -> Any:
    """The whole command, as the object that parses and runs."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help="ONNX in; a fast, checked, explained module out.")(_options)
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        names = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime")
        print(f"tvmopt {version('tvmopt')} ({', '.join(f'{name} {version(name)}' for name in names)})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script: returns the exit code.

    0 done; 2 wrong use or input; 3 wrong numbers; 4 something became slower (`nightly`); 5 something is not
    installed; 70 a crash of the compiler; 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments, argv is None)
    except KeyboardInterrupt:
        return _interrupted(arguments)
    except Exception as error:  # what comes of a signal may be any of them
        if interrupted():
            return _interrupted(arguments)
        return _failed(error)


def _run(arguments: list[str], alone: bool) -> int:
    """Parse and run: returns the exit code, if an error does not tell it.

    Args:
        alone: whether the command is all that this process does.
    """
    try:
        _foreign(arguments)
        if alone and arguments[:1] == ["compile"] and len(arguments) > 1 and not HELP & {*arguments}:
            warm = "warm_unverified" if "--no-verify" in arguments else "warm"
            prepare(f"tvmopt.compiler.whole:{warm}")
        _arguments.clear()
        _arguments.update(arguments)
        application().main(args=arguments, prog_name="tvmopt")
    except SystemExit as stop:
        if stop.code == 130:  # typer's word for Ctrl-C
            return _interrupted(arguments)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _failed(error: Exception) -> int:
    """Say in which way the command failed: returns the exit code. A bug is raised again."""
    if isinstance(error, TvmoptError):
        print(f"{type(error).__name__}: {error.told()}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, BrokenPipeError):  # `tvmopt explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and lacks_memory(error)):
        told = starved() or f"there is not enough memory. {printable(str(error))}".rstrip()
        print(f"InputError: {told}", file=sys.stderr)
        return 2
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        told = "no folder for temporary files can be written to.\n  fix:   name one in TMPDIR"
        print(f"InputError: {told}", file=sys.stderr)
        return 2
    limit = limit_of(error) if isinstance(error, OSError) else None
    if limit is None:
        raise error
    assert isinstance(error, OSError)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # what is left to print cannot be printed either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"{type(limit).__name__}: {limit.told()}", file=sys.stderr)
    return limit.exit_code


def _interrupted(arguments: Sequence[str]) -> int:
    """Say what is left of the work, and by which signal it ended unless that was Ctrl-C's: returns the exit code."""
    number = received()
    how = f"interrupted by {number.name}" if number else "interrupted"
    left = "nothing was written"
    if arguments[:1] in (["tune"], ["nightly"]):
        left = "what was measured is kept, and the same command goes on from there"
    with suppress(OSError):  # a terminal that is gone
        print(f"{how}; {left}", file=sys.stderr)
    return 128 + (number or signal.SIGINT)


def _foreign(arguments: Sequence[str]) -> None:
    """Refuse a command or a flag of another tool, and say what it is called here."""
    first = arguments[0] if arguments else "--help"
    if not first.startswith("-") and first not in COMMANDS:
        from tvmopt.cli.common import no_command

        raise no_command(first, COMMANDS)
    known = _FOREIGN if first in _OWN else {}
    if first in _ALSO:
        known = {flag: told for flag, told in _FOREIGN.items() if told.startswith(("--shape", "--precision"))}
        known |= _FOREIGN_TO_TUNE if first == "tune" else {}
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in known:
            raise InputError(f"there is no option {flag}.", where="tvmopt " + " ".join(arguments), fix=known[flag])
