"""A folder of small models, and a server of it in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.decoders.small import VOCABULARY, small_decoder

value = helper.make_tensor_value_info
PACKAGES = ("starlette", "uvicorn", "hpack", "google.protobuf", "prometheus_client")


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: np.ndarray) -> Any:
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows_model(scale: float = 1.0) -> Any:
    """y = x @ w for any number of rows up to 16."""
    w = scale * np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 8])], [value("y", TensorProto.FLOAT, ["n", 4])], w=w,
    )  # fmt: skip


def kinds_model() -> Any:
    """Every kind of number, as it came; and rows of a table."""
    kinds = {"f": TensorProto.FLOAT16, "d": TensorProto.DOUBLE, "b": TensorProto.BOOL, "u": TensorProto.UINT8}
    nodes = [helper.make_node("Identity", [k], [f"{k}_out"]) for k in kinds]
    nodes.append(helper.make_node("Gather", ["table", "i"], ["rows"]))
    inputs = [value(k, t, [2, 3]) for k, t in kinds.items()] + [value("i", TensorProto.INT64, [2])]
    outputs = [value(f"{k}_out", t, [2, 3]) for k, t in kinds.items()] + [value("rows", TensorProto.FLOAT, [2, 2])]
    return model(nodes, inputs, outputs, table=np.arange(10, dtype=np.float32).reshape(5, 2))


def wide_model() -> Any:
    """y = the first four columns of x, of 2048, for any number of rows up to 16."""
    places = {"start": [0], "end": [4], "axis": [1]}
    return model(
        [helper.make_node("Slice", ["x", *places], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 2048])], [value("y", TensorProto.FLOAT, ["n", 4])],
        **{name: np.array(place) for name, place in places.items()},
    )  # fmt: skip


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rows.tvmopt, twice.tvmopt (the same, of twice the weights), wide.tvmopt and kinds.tvmopt."""
    folder = tmp_path_factory.mktemp("artifacts")
    made_of = {"rows": rows_model(), "twice": rows_model(2.0), "wide": wide_model(), "kinds": kinds_model()}
    for name, made in made_of.items():
        shape = {} if name == "kinds" else {"n": "1..16"}
        tvmopt.compile(made, shape=shape, threads=1, verify=False, output=folder / f"{name}.tvmopt")
    return folder


@dataclass
class Running:
    """A server's process and addresses."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    told: Path

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """Start a server with these arguments; all end with the session."""
    for name in PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'tvmopt[serve]'")
    started: list[Running] = []

    def start(*arguments: Any, program: Sequence[object] = ("-m", "tvmopt")) -> Running:
        told = tmp_path_factory.mktemp("server") / "stderr"
        command = [sys.executable, *map(str, program), "serve", *map(str, arguments), "--json"]
        command += ["--port", "0", "--grpc-port", "0"]
        with told.open("w") as file:
            buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}  # as a user has it
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=buffered)
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, told.read_text()
            text += line
        addresses = json.loads(text)
        started.append(Running(process, addresses["http"].removeprefix("http://"), addresses["grpc"], told))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="session")
def running(serve: Callable[..., Running], artifacts: Path) -> Running:
    return serve(artifacts, "--max-body", 1, "--reload", 0)


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """talk.tvmopt, a decoder, with a tokenizer of the words w0, w1, ...; mute.tvmopt, the same without one."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'tvmopt[generate]'")
    made = tmp_path_factory.mktemp("texts")
    tvmopt.compile(small_decoder("plain"), threads=1, verify=False, output=made / "talk.tvmopt")
    (made / "mute.tvmopt").write_bytes((made / "talk.tvmopt").read_bytes())
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(made / "talk.tokenizer.json"))
    return made


@pytest.fixture(scope="session")
def talking(serve: Callable[..., Running], decoders: Path, artifacts: Path) -> Running:
    return serve(decoders, artifacts / "rows.tvmopt", "--reload", 0, "--max-texts", 2)


@pytest.fixture(scope="session")
def hasty(serve: Callable[..., Running], artifacts: Path) -> Running:
    """A server that waits for little longer than nothing."""
    return serve(artifacts / "wide.tvmopt", "--timeout", 0.3, "--reload", 0)
