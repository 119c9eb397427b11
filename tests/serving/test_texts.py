"""Texts over both ways in: the decoder's own tokens one by one, wrong requests by status, an end when nobody reads."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.decoders.small import VOCABULARY, greedy, small_decoder
from tests.serving.conftest import Running
from tests.serving.test_rest import call
from tvmopt.runtime.decoder import Decoder
from tvmopt.serving import rest, texts
from tvmopt.serving.batcher import Batcher, Limits
from tvmopt.serving.messages import SERVICE, messages
from tvmopt.serving.refusals import Refused

PROMPT = [3, 1, 4]
GENERATE, STREAM = "/v2/models/talk/generate", "/v2/models/talk/generate_stream"


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy(small_decoder("plain"), PROMPT, 12)


def said(tokens: list[int]) -> str:
    return " ".join(f"w{n}" for n in tokens)


def ask(server: Running, request: Any, path: str = GENERATE) -> tuple[int, Any]:
    status, _, body = call(server, "POST", path, json.dumps(request).encode())
    return status, json.loads(body)


def events(server: Running, request: Any, path: str = STREAM) -> list[Any]:
    status, headers, body = call(server, "POST", path, json.dumps(request).encode())
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), body
    *found, end = body.split(b"\n\n")
    assert end == b"" and all(one.startswith(b"data: ") for one in found)
    return [json.loads(one.removeprefix(b"data: ")) for one in found]


@pytest.mark.parametrize("form", [{"tokens": PROMPT}, {"text_input": said(PROMPT)}])
def test_a_stream_has_the_tokens_of_the_model(talking: Running, expected: list[int], form: Any) -> None:
    *found, end = events(talking, {**form, "id": "me", "parameters": {"max_tokens": 12}})
    assert [one["token"] for one in found] == expected
    assert "".join(one["text_output"] for one in found) == said(expected)
    assert all((one["id"], one["model_name"], one["model_version"]) == ("me", "talk", "1") for one in found)
    assert (end["finish_reason"], end["prompt_tokens"], end["generated_tokens"]) == ("length", 3, 12)
    status, whole = ask(talking, {**form, "parameters": {"max_tokens": 12}})
    assert (status, whole["tokens"], whole["text_output"]) == (200, expected, said(expected))


def test_a_text_ends_where_it_is_asked_to(talking: Running, decoders: Path, expected: list[int]) -> None:
    stop = expected[4]
    end = expected.index(stop) + 1
    for one in (stop, f"w{stop}"):
        found = ask(talking, {"tokens": PROMPT, "parameters": {"stop": [one]}})[1]
        assert (found["tokens"], found["finish_reason"]) == (expected[:end], "stop")
    found = ask(talking, {"tokens": PROMPT, "parameters": {"max_tokens": 0}})[1]
    assert (found["tokens"], found["finish_reason"]) == ([], "length")
    found = ask(talking, {"tokens": PROMPT})[1]  # as long as the model's texts are
    longest = tvmopt.load(decoders / "talk.tvmopt").decoder().longest
    assert len(PROMPT) + len(found["tokens"]) in (longest, longest + 1)
    drawn = {"temperature": 500, "top_k": 20, "top_p": 0.9, "seed": 7, "max_tokens": 12}
    once, again = (ask(talking, {"tokens": PROMPT, "parameters": drawn})[1]["tokens"] for _ in range(2))
    assert once == again != expected
    assert ask(talking, {"tokens": PROMPT}, "/v2/models/mute/generate")[1]["text_output"].split()


@pytest.mark.parametrize(
    ("request_", "path", "told"),
    [
        ([], GENERATE, "no object"), ({}, GENERATE, "one of text_input and tokens"),
        ({"tokens": [1], "text_input": "w1"}, GENERATE, "one of"), ({"tokens": [1], "x": 1}, GENERATE, "has 'x'"),
        ({"tokens": []}, GENERATE, "tokens have the shape"), ({"tokens": [True]}, GENERATE, "whole numbers"),
        ({"tokens": [-1]}, GENERATE, "whole numbers"), ({"tokens": [2**40]}, GENERATE, "whole numbers"),
        ({"tokens": [VOCABULARY]}, GENERATE, "vocabulary"), ({"tokens": [1] * 999}, GENERATE, "max_length"),
        ({"text_input": 3}, GENERATE, "no text"), ({"text_input": "w1"}, "/v2/models/mute/generate", "no tokenizer"),
        ({"tokens": [1], "id": 3}, GENERATE, "the id"), ({"tokens": [1], "parameters": [1]}, GENERATE, "an object"),
        ({"tokens": [1], "parameters": {"beams": 2}}, GENERATE, "no parameter 'beams'"),
        ({"tokens": [1], "parameters": {"max_tokens": 1.5}}, GENERATE, "a whole number"),
        ({"tokens": [1], "parameters": {"max_tokens": True}}, GENERATE, "a whole number"),
        ({"tokens": [1], "parameters": {"max_tokens": -1}}, GENERATE, "negative"),
        ({"tokens": [1], "parameters": {"seed": -1}}, GENERATE, "negative"),
        ({"tokens": [1], "parameters": {"temperature": -1}}, GENERATE, "temperature"),
        ({"tokens": [1], "parameters": {"temperature": 10**400}}, GENERATE, "a number"),
        ({"tokens": [1], "parameters": {"top_p": 7.0}}, GENERATE, "top_p"),
        ({"tokens": [1], "parameters": {"stop": "w1"}}, GENERATE, "a list"),
        ({"tokens": [1], "parameters": {"stop": [None]}}, GENERATE, "a list"),
        ({"tokens": [1], "parameters": {"stop": ["nowhere"]}}, GENERATE, "not known"),
        ({"tokens": [1]}, "/v2/models/rows/generate", "no decoder"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(talking: Running, request_: Any, path: str, told: str) -> None:
    for way in (path, f"{path}_stream"):
        status, found = ask(talking, request_, way)
        assert status == 400 and told in found["error"], found
    assert ask(talking, {"tokens": [1]}, "/v2/models/none/generate_stream")[0] == 404
    assert call(talking, "POST", STREAM, b"{")[0] == 400


# -- gRPC --------------------------------------------------------------------------------------------------------------


def stream(server: Running, *requests: dict[str, Any]) -> list[Any]:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'tvmopt[serve]'")
    types = messages()
    with grpc.insecure_channel(server.grpc) as channel:
        method = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", types.ModelInferRequest.SerializeToString,
            types.ModelStreamInferResponse.FromString,
        )  # fmt: skip
        return list(method(iter([types.ModelInferRequest(**one) for one in requests]), timeout=60))


def tokens(given: list[int], **changes: Any) -> dict[str, Any]:
    contents = {"name": "input_ids", "datatype": "INT64", "shape": [len(given)], "contents": {"int64_contents": given}}
    return {"model_name": "talk", "inputs": [contents], **changes}


def test_a_stream_of_grpc(talking: Running, expected: list[int]) -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    prompt = said(PROMPT).encode()
    most = [{"key": "max_tokens", "value": {"int64_param": 12}}]
    forms = [
        tokens(PROMPT), {"inputs": [text], "raw_input_contents": [len(prompt).to_bytes(4, "little") + prompt]},
        {"inputs": [{**text, "contents": {"bytes_contents": [prompt]}}]},
    ]  # fmt: skip
    found = stream(
        talking, *({"model_name": "talk", "id": str(n), "parameters": most, **f} for n, f in enumerate(forms))
    )
    for n in range(3):
        *pieces, end = [one.infer_response for one in found if one.infer_response.id == str(n)]
        assert [int(np.frombuffer(one.raw_output_contents[1], np.int64)[0]) for one in pieces] == expected
        assert b"".join(one.raw_output_contents[0][4:] for one in pieces).decode() == said(expected)
        assert {p.key: p.value.string_param or p.value.bool_param for p in end.parameters} == {
            "triton_final_response": True, "finish_reason": "length",
        }  # fmt: skip


def test_wrong_requests_do_not_end_a_stream_of_grpc(talking: Running, artifacts: Path) -> None:
    x = np.ones((1, 8), np.float32)
    rows = {"name": "x", "datatype": "FP32", "shape": [1, 8]}
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    wrong = [
        tokens([VOCABULARY]), {"model_name": "none"}, {"model_name": "talk"}, tokens(PROMPT, model_version="7"),
        tokens(PROMPT, parameters=[{"key": "beams", "value": {"int64_param": 1}}]),
        tokens(PROMPT, parameters=[{"key": "stop", "value": {"string_param": "["}}]),
        {"model_name": "talk", "inputs": [text], "raw_input_contents": [b"\xff\xff\xff\xffno"]},
        {"model_name": "talk", "inputs": [text], "raw_input_contents": [b"\x01\x00\x00\x00\xff"]},
        {"model_name": "rows", "inputs": [rows], "raw_input_contents": [b"1"]},
    ]  # fmt: skip
    right = {"model_name": "rows", "inputs": [rows], "raw_input_contents": [x.tobytes()]}
    *refused, last = stream(talking, *wrong, right)
    assert len(refused) == len(wrong) and all(one.error_message for one in refused)
    expected = tvmopt.load(artifacts / "rows.tvmopt")(x)
    np.testing.assert_array_equal(np.frombuffer(last.infer_response.raw_output_contents[0], np.float32), expected[0])


def test_tritonclient_streams(talking: Running, expected: list[int]) -> None:
    triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    given = triton.InferInput("input_ids", [3], "INT64")
    given.set_data_from_numpy(np.array(PROMPT))
    found: list[int] = []
    ended = threading.Event()

    def take(result: Any, error: Any) -> None:
        token = result.as_numpy("token") if error is None else None
        found.extend(token.tolist() if token is not None else [])
        if token is None:
            ended.set()

    with triton.InferenceServerClient(talking.grpc) as client:
        client.start_stream(take)
        client.async_stream_infer("talk", [given], parameters={"max_tokens": 12})
        assert ended.wait(60)
        client.stop_stream()
    assert found == expected


# -- without a server: texts that never end ----------------------------------------------------------------------------


class Endless:
    """A model whose texts never end."""

    def __init__(self) -> None:
        self.steps = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def decoder(self, max_length: int | None = None) -> Any:
        return SimpleNamespace(longest=1 << 20, generate=self.generate)

    def generate(self, ids: Any, **sampling: Any) -> Iterator[int]:
        while True:
            self.goes_on.wait()
            self.steps += 1
            yield self.steps


@pytest.fixture
def endless() -> Iterator[tuple[Endless, Batcher]]:
    model = Endless()
    batcher = Batcher(model, Limits(max_texts=2, instances=1))  # type: ignore[arg-type]
    yield model, batcher
    model.goes_on.set()
    batcher.close()


def quiet(what: str, seconds: float) -> None:
    """Nobody counts."""


def test_a_text_that_nobody_reads_ends(endless: tuple[Endless, Batcher]) -> None:
    model, batcher = endless

    async def leave() -> None:
        """The client goes away after the third event."""
        sent: list[Any] = []
        left = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == 4:
                left.set()

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        async def pieces() -> Any:
            async for piece in texts.generate(batcher, texts.Asked((1,)), quiet):
                yield "1", piece

        stream = pieces()
        answer = rest.Events(stream, await anext(stream), lambda version, piece: piece.token, 60.0)
        await asyncio.wait_for(answer({}, receive, send), 60)
        assert sent[0]["status"] == 200 and sent[1]["body"] == b"data: 1\n\n"

    asyncio.run(leave())
    assert batcher.texts == 0
    made = model.steps
    time.sleep(0.05)
    assert model.steps - made <= 1, "it goes on"


def test_a_client_that_does_not_read_ends_its_text(endless: tuple[Endless, Batcher]) -> None:
    async def stall() -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def pieces() -> Any:
            async for piece in texts.generate(endless[1], texts.Asked((1,)), quiet):
                yield "1", piece

        stream = pieces()
        answer = rest.Events(stream, await anext(stream), lambda version, piece: piece.token, 0.05)
        await asyncio.wait_for(answer({}, asyncio.Event().wait, send), 60)  # type: ignore[arg-type]

    asyncio.run(stall())
    assert endless[1].texts == 0


def test_texts_take_turns_and_are_so_many(endless: tuple[Endless, Batcher]) -> None:
    batcher = endless[1]

    async def several() -> None:
        first, second, third = (texts.generate(batcher, texts.Asked((1,)), quiet) for _ in range(3))
        assert [(await anext(one)).token for one in (first, second, first, second)] == [1, 2, 3, 4]
        with pytest.raises(Refused, match="2 texts are being generated") as raised:
            await anext(third)
        assert raised.value.status == 429
        closing = threading.Thread(target=batcher.close)
        closing.start()
        while not batcher._ends:
            await asyncio.sleep(0.001)
        assert (await anext(first)).token == 5  # what was begun is finished
        late = texts.generate(batcher, texts.Asked((1,)), quiet)
        with pytest.raises(Refused, match="unloaded"):
            await anext(late)
        await first.aclose()
        assert closing.is_alive()
        await second.aclose()
        await asyncio.to_thread(closing.join, 60)
        assert not closing.is_alive()

    asyncio.run(several())


def test_a_token_that_takes_too_long_is_told(endless: tuple[Endless, Batcher]) -> None:
    model, batcher = endless
    object.__setattr__(batcher.limits, "timeout", 0.05)

    async def wait() -> None:
        stream = texts.generate(batcher, texts.Asked((1,)), quiet)
        assert (await anext(stream)).token == 1
        model.goes_on.clear()
        with pytest.raises(Refused, match="no result within") as raised:
            await anext(stream)
        assert raised.value.status == 504

    asyncio.run(wait())
    assert batcher.texts == 0


def test_the_longest_text_is_told(decoders: Path) -> None:
    model = tvmopt.load(decoders / "talk.tvmopt")
    assert Decoder(model, 1).longest == model.decoder().max_length
