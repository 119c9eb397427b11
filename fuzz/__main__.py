"""The command line of the fuzzer: `scripts/fuzz`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fuzz.inputs import KINDS as INPUTS
from fuzz.once import Options
from fuzz.run import Plan, Run, replay
from fuzz.sources import DAMAGED, FLOATS, KINDS


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 where nothing was found, 1 where something was."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description="Look for wrong numbers, crashes and foreign memory."
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument("--count", type=int, default=1 << 60, help="end after so many models")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same models")
    parser.add_argument("--start", type=int, default=0, help="number of the first model")
    parser.add_argument(
        "--kind", choices=KINDS, default="graphs", help="what to try, see docs/how-to/fuzz.md (default graphs)"
    )
    parser.add_argument("--precision", default="fp32", help="fp32, bf16")
    parser.add_argument("--target", default="cpu", help="cpu, x86-64-v3, ...; nvidia-h100: in an emulator")
    parser.add_argument("--float", default="", choices=["", *FLOATS], help="the floating-point type of all models")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--out", default="build/fuzz", help="folder for what is found (default build/fuzz)")
    parser.add_argument("--models", default="", help="a folder of valid models to mutate, besides the built-in ones")
    parser.add_argument("--inputs", default="", help=f"kinds of inputs, of {', '.join(INPUTS)}; default: all that fit")
    parser.add_argument(
        "--shrinks", type=int, default=2, help="findings of one sort that are made smaller; 0: none is, for long runs"
    )
    parser.add_argument("--replay", type=Path, nargs="+", help="check these model files and nothing else")
    args = parser.parse_args(arguments)
    if args.replay:
        return _replay(args)
    plan = Plan(
        args.kind, args.seed, args.start, args.count, args.minutes * 60, args.jobs, args.target, args.precision,
        args.out, args.shrinks, args.models, tuple(filter(None, args.inputs.split(","))), args.float,
    )  # fmt: skip
    summary = Run(plan, lambda line: print(line, flush=True))()
    print("\n".join(summary.lines()))
    return 1 if summary.kinds else 0


def _replay(args: argparse.Namespace) -> int:
    bad = 0
    for path in args.replay:
        valid = args.kind not in DAMAGED
        kinds = Plan(args.kind).options(0).kinds
        outcome = replay(path, Options(args.target, args.precision, kinds, valid, args.seed))
        bad += bool(outcome["findings"])
        print(f"{path}: {outcome['status']} {outcome['why']}")
        for finding in outcome["findings"]:
            print(f"  {finding['kind']} {finding['inputs']}: {finding['text']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
