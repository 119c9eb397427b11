"""The `tvmopt` command: one file a subcommand, each parse -> one api call -> render.

A subcommand's module is imported when it is called: `tvmopt --help` imports no TVM, ONNX or NumPy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tvmopt.errors import InputError, TvmoptError

COMMANDS = {  # name -> one line of help; the module is tvmopt.cli.<name>_command or tvmopt.cli.<name>
    "compile": "Compile an ONNX model to one file, checked against onnxruntime.",
    "run": "Run a compiled model; time it.",
    "inspect": "What a model or a compiled file is: FLOPs, parameters, bytes, memory; versions, hashes.",
    "explain": "What was done to each node and why not.",
    "refit": "Put another model's weights into a compiled file, without compiling.",
    "targets": "The machines tvmopt knows: list, show, detect this one.",
    "doctor": "Check versions, compiler, CPU, GPU and threads; say how to mend what is missing.",
}

_FOREIGN = {  # what the fingers of tvmc's and trtexec's users type -> what it is called here
    "--input-shapes": "--shape NAME:1x3x224x224",
    "--shapes": "--shape NAME:1x3x224x224",
    "--optShapes": "--shape NAME:1x3x224x224",
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
    "--int8": "--precision int8",
    "--opt-level": "there are no levels: every compile uses all passes",
    "--desired-layout": "the layout is chosen for the whole graph; `tvmopt explain` tells it",
}


class Commands(TyperGroup):
    """The subcommands, each loaded when asked for; a stub with its help line otherwise."""

    loading = True

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if _wants_help_only(ctx):
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], callback=lambda: None)
        module = import_module(f"tvmopt.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name, command.help = cmd_name, command.help or COMMANDS[cmd_name]
        return command


def _wants_help_only(ctx: Any) -> bool:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    return ctx.info_name == "tvmopt" and not words


def application() -> Commands:
    """The whole command, as an object that typer's machinery can run."""
    options = [
        typer.core.TyperOption(
            param_decls=["--version"], is_flag=True, expose_value=False, is_eager=True,
            callback=_version, help="Show the versions and exit.",
        )
    ]  # fmt: skip
    return Commands(
        name="tvmopt",
        params=list(options),
        help="ONNX in; a fast, checked, explained module out.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _version(ctx: Any, _param: Any, value: bool) -> None:
    if value:
        from importlib.metadata import version

        names = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime")
        print("tvmopt", version("tvmopt"), *(f"({', '.join(f'{n} {version(n)}' for n in names)})",))
        ctx.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script: returns the exit code.

    0 done; 2 wrong use or input; 3 wrong numbers; 5 something is not installed; 70 a crash of the compiler; 130 Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _foreign(arguments)
        application().main(args=arguments, prog_name="tvmopt")
    except TvmoptError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tvmopt explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _foreign(arguments: Sequence[str]) -> None:
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in _FOREIGN:
            raise InputError(f"there is no option {flag}.", where="tvmopt " + " ".join(arguments), fix=_FOREIGN[flag])
