"""The table of results in the README, made from the measured JSON files - for whoever measured again.

    python benchmarks/readme_table.py            # write it into README.md
    python benchmarks/readme_table.py --check    # exit code 1 if README.md has another

It stands between two comments, `<!-- results: MACHINE -->` and `<!-- end of results -->`: batch 1, the most
threads there are. A test runs the check: no figure there is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
BLOCK = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
NAMES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO", "tensorrt": "TensorRT"}
ORDER = ("faster", "no difference measured", "slower", "unstable", "failed")


def cases(folder: Path) -> list[dict[str, Any]]:
    """The cases of a folder in fp32 at batch 1 and its largest number of threads, quickest ratio first."""
    found = [c for f in sorted(folder.glob("*-b*-t*.json")) for c in json.loads(f.read_text())["cases"]]
    found = [c for c in found if c["precision"] == "fp32"]
    most = max((c["threads"] for c in found), default=0)
    chosen = [c for c in found if c["threads"] == most and c["batch"] == 1]
    return sorted(chosen, key=lambda c: (_value(c, _peers(chosen)[0]) or math.inf, c["model"]))


def block(folder: Path, suite: Sequence[str]) -> str:
    """Words and table, as Markdown.

    Args:
        suite: the names of all models, to say which were not measured.
    """
    chosen = cases(folder)
    peers = _peers(chosen)
    machine = json.loads(next(folder.glob("*-b*-t*.json")).read_text())["machine"]
    lines = [_words(chosen, peers, machine, suite), ""]
    lines.append("| model | tvmopt ms | " + " | ".join(f"{NAMES[p]} ms | ratio | verdict" for p in peers) + " |")
    lines.append("|---|---:|" + "---:|---|---|" * len(peers))
    for case in chosen:
        rows = {row["label"]: row for row in case["engines"]}
        cells = [Path(case["model"]).stem, _time(case["engines"][0])]
        for peer in peers:
            ratio = case["ratios"].get(peer)
            cells += [
                _time(rows[peer]) if peer in rows else "",
                _interval(ratio),
                ratio["verdict"] if ratio else "",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def _words(chosen: list[dict[str, Any]], peers: list[str], machine: dict[str, Any], suite: Sequence[str]) -> str:
    measured = {Path(c["model"]).stem for c in chosen}
    absent = [name for name in suite if name not in measured]
    shared = ", a shared virtual machine" if machine.get("virtual") else ""
    threads = f"{chosen[0]['threads']} threads of an {machine['processor']}{shared}"
    text = [
        f"{chosen[0]['precision']}, batch 1, {threads}; no tuning. "
        "Medians of interleaved rounds; the ratio is tvmopt's latency over the other's, with its interval: "
        "below 1 tvmopt is faster. *Unstable*: the machine was not quiet enough for a verdict."
    ]
    for peer in peers:
        values = [v for c in chosen if (v := _value(c, peer))]
        verdicts = [c["ratios"][peer]["verdict"] for c in chosen if peer in c["ratios"]]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ORDER if v in verdicts)
        mean = math.exp(sum(map(math.log, values)) / len(values))
        losses = sum(v > 1 for v in values)
        text.append(
            f"Against {NAMES[peer]}: geometric mean {mean:.2f}, {losses} of {len(values)} ratios above 1; {counts}."
        )
    if absent:
        text.append(f"Not measured: {', '.join(absent)}.")
    return "\n".join(textwrap.fill(line, 118) for line in text)


def _peers(chosen: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["label"] for c in chosen for row in c["engines"][1:]))


def _value(case: dict[str, Any], peer: str) -> float | None:
    ratio = case["ratios"].get(peer)
    return ratio["value"] if ratio else None


def _interval(ratio: dict[str, Any] | None) -> str:
    if not ratio or ratio["value"] is None:
        return ""
    return f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _time(row: dict[str, Any]) -> str:
    return f"{row['latency']['median_ms']:.2f}" if row["latency"] else str(row["status"])


def rewritten(text: str, results: Path = HERE / "results") -> str:
    """The README with its tables made again."""
    suite = [entry.name for entry in models.SUITE]
    return BLOCK.sub(lambda found: found[1] + block(results / found[2], suite) + found[4], text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the README's table of results from the measured files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it differs")
    args = parser.parse_args(arguments)
    old = README.read_text()
    new = rewritten(old)
    if args.check and new != old:
        print(
            "README.md: the table differs from the results: python benchmarks/readme_table.py",
            file=sys.stderr,
        )
        return 1
    if not args.check:
        README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
