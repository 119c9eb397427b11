"""Raw contents are found in a message as protobuf finds them, in right messages and in damaged ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tvmopt.serving import wire
from tvmopt.serving.messages import messages

pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'tvmopt[serve]'")


def request(*raw: bytes) -> bytes:
    one = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    made = messages().ModelInferRequest(model_name="m", id="q", inputs=[one, one], raw_input_contents=raw)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("sizes", [(0,), (1,), (16 << 10,), (40_000, 3, 20_000), ()])
def test_a_request_is_what_protobuf_reads(sizes: tuple[int, ...]) -> None:
    kind, raw = messages().ModelInferRequest, [np.random.default_rng(n).bytes(n) for n in sizes]
    found = wire.read(kind, request(*raw))
    assert [bytes(data) for data in found.raw_input_contents] == raw
    assert (found.model_name, found.id, [i.name for i in found.inputs]) == ("m", "q", ["x", "x"])


def test_a_damaged_message_is_read_as_protobuf_reads_it() -> None:
    from google.protobuf.message import DecodeError

    kind, whole, draw, read = messages().ModelInferRequest, request(b"abcdef", b"abc"), random.Random(0), 0
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        damaged = bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
        if (found := wire.apart(damaged, wire.RAW)) is None:
            continue
        results = []
        for rest in (damaged, found[0]):
            try:
                results.append(kind.FromString(rest))
            except DecodeError:
                results.append(None)
        expected, kept = results
        assert (expected is None) == (kept is None), damaged
        if expected is not None:
            assert [bytes(data) for data in found[1]] == [*expected.raw_input_contents], damaged
            expected.ClearField("raw_input_contents")
            assert kept == expected
            read += 1
    assert read > 100
