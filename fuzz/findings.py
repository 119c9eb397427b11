"""Findings: which are the same, and how they are written down."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fuzz.shrink import describe

PLACES = re.compile(r"[\w./-]+\.py:\d+ \w+|[\w./-]+\.(?:cc|h)\b|(?:SIG\w+)|\b[A-Z]\w+Error\b")


def signature(finding: dict[str, str], model: onnx.ModelProto | None) -> str:
    """What findings of one cause have in common, roughly: the kind, and where or on which operators it shows."""
    kind = finding["kind"]
    if kind in ("exception", "refused"):
        text = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "#", finding["text"])
        places = PLACES.findall(finding["text"])
        return f"{kind}: {text[:70]} {' '.join(places[-2:])}"
    operators = sorted({n.op_type for n in model.graph.node}) if model is not None else []
    stage = re.search(r"while: ([^\n]*)", finding["text"])
    return f"{kind}: {stage.group(1) if stage else ''} {' '.join(operators)}"


@dataclass(frozen=True)
class Found:
    """One finding with the model that shows it, and how to see it again."""

    index: int
    finding: dict[str, str]
    model: bytes
    options: dict[str, Any]
    command: str

    def write(self, folder: Path, small: onnx.ModelProto | None) -> Path:
        """Write ``NAME.onnx`` and ``NAME.txt``; the path of the model."""
        folder.mkdir(parents=True, exist_ok=True)
        data = small.SerializeToString() if small is not None else self.model
        operators = "-".join(dict.fromkeys(n.op_type for n in small.graph.node))[:40] if small is not None else "bytes"
        path = folder / f"{self.finding['kind']}-{self.index}-{re.sub(r'[^A-Za-z0-9-]', '', operators)}.onnx"
        path.write_bytes(data)
        if small is not None and data != self.model:
            path.with_suffix(".whole.onnx").write_bytes(self.model)
        text = [
            f"{self.finding['kind']} {self.finding['inputs']}".strip(), self.finding["text"], "",
            f"found by: {self.command}", f"options: {json.dumps(self.options)}", "",
            describe(small) if small is not None else "",
        ]  # fmt: skip
        path.with_suffix(".txt").write_text("\n".join(text) + "\n")
        return path
