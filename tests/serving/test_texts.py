"""Texts over both ways in: the decoder's own tokens one by one, wrong requests by status, an end when nobody reads."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.decoders.small import VOCABULARY, greedy, small_decoder
from tests.serving.conftest import Running
from tests.serving.test_rest import call
from tests.waiting import until
from tvmopt.runtime.decoder import Decoder
from tvmopt.serving import rest, texts, together
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
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'tvmopt[test]'")
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


# -- several at a time -------------------------------------------------------------------------------------------------


def drawn(count: int, most: int = 30, seed: int = 0) -> list[list[int]]:
    """Prompts of some length."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCABULARY, int(n)).tolist() for n in generator.integers(1, most, count)]


def test_texts_of_many_clients_are_computed_together(talking: Running) -> None:
    """By both ways in, more than there is room for at a time; what is seen of it is the rows of the calls."""
    prompts = drawn(12)
    model = small_decoder("plain")
    expected = [greedy(model, prompt, 9) for prompt in prompts]
    most = [{"key": "max_tokens", "value": {"int64_param": 9}}]

    def over_http(prompt: list[int]) -> list[int]:
        return [
            e["token"] for e in events(talking, {"tokens": prompt, "parameters": {"max_tokens": 9}}) if "token" in e
        ]

    def over_grpc(prompt: list[int]) -> list[int]:
        answers = [one.infer_response for one in stream(talking, tokens(prompt, parameters=most))]
        return [int(np.frombuffer(one.raw_output_contents[1], np.int64)[0]) for one in answers[:-1]]

    def calls_of(rows: int) -> int:
        text = call(talking, "GET", "/metrics")[2].decode()
        found = re.search(rf'^tvmopt_batch_rows_bucket{{le="{rows}.0",model="talk",version="1"}} (\d+)', text, re.M)
        return int(found[1]) if found else 0

    before = calls_of(2) - calls_of(1)
    with ThreadPoolExecutor(12) as clients:
        asked = [clients.submit((over_http, over_grpc)[n % 2], prompt) for n, prompt in enumerate(prompts)]
        assert [one.result() for one in asked] == expected
    assert calls_of(2) - calls_of(1) > before, "no step was of two texts"


@pytest.mark.parametrize("window", [-1, 5])
def test_each_text_has_the_tokens_that_it_has_alone(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in pieces, some clients that leave in the middle; with a window the code takes one text at a time."""
    monkeypatch.setattr(together, "PIECE", 7)
    tvmopt.compile(small_decoder(local_window_size=window), threads=1, verify=False, output=tmp_path / "m.tvmopt")
    model = tvmopt.load(tmp_path / "m.tvmopt")
    assert model.manifest.decoder.placed == (window < 0)
    prompts, rows = drawn(14, 40, 2), []
    batcher = Batcher(model, Limits(max_texts=4), lambda what, value: rows.append(value) if what == "rows" else None)
    kinds = [{"max_tokens": 8}, {"max_tokens": 30}, {"max_tokens": 9, "temperature": 2.0, "seed": 5}]

    def alone(n: int) -> list[int]:
        given = dict(kinds[n % 3])
        return list(model.decoder().generate(prompts[n], max_new_tokens=given.pop("max_tokens"), **given))

    async def ask(n: int) -> list[int]:
        found: list[int] = []
        async with aclosing(texts.generate(batcher, texts.asked(tuple(prompts[n]), kinds[n % 3]), quiet)) as pieces:
            async for piece in pieces:
                found += [piece.token] if piece.token is not None else []
                if n % 5 == 4 and len(found) == 3:
                    break
        return found

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(ask(n) for n in range(len(prompts))))

    expected = [alone(n) for n in range(len(prompts))]
    assert asyncio.run(all_of_them()) == [e[:3] if n % 5 == 4 else e for n, e in enumerate(expected)]
    batcher.close()
    assert batcher.texts == 0 and max(rows) == 4 and sum(rows) < sum(map(len, expected))
    (group,) = batcher._groups
    assert group.count == 0
    if window < 0:
        assert group._slots._batch.max_length == 1, "memory of texts that have ended is kept"  # type: ignore[union-attr]


def test_a_prompt_that_is_wrong_ends_alone(decoders: Path) -> None:
    batcher = Batcher(tvmopt.load(decoders / "talk.tvmopt"), Limits(max_texts=2))

    async def ask(prompt: tuple[int, ...]) -> Any:
        try:
            return [p.token async for p in texts.generate(batcher, texts.asked(prompt, {"max_tokens": 4}), quiet)][:-1]
        except Refused as refused:
            return refused.status

    async def several() -> list[Any]:
        return await asyncio.gather(*map(ask, ((3, 1, 4), (VOCABULARY,), (), (1,) * 999, (3, 1, 4))))

    right = greedy(small_decoder("plain"), PROMPT, 4)
    assert asyncio.run(several()) == [right, 400, 400, 400, right]
    batcher.close()


# -- without a model: texts that never end -----------------------------------------------------------------------------


class Endless:
    """Slots whose texts never end; the scores of the n-th token are highest for n."""

    def __init__(self) -> None:
        self.steps, self.slots = 0, 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.fails = False

    def check(self, ids: list[int]) -> None: ...
    def remove(self, slot: int) -> None: ...
    def is_full(self, slot: int) -> bool:
        return False

    def begin(self, ids: list[int], room: int, given: Any = None) -> int:
        self.slots += 1
        return self.slots

    extend = begin

    def scores(self, slot: int) -> Any:
        self.goes_on.wait()
        self.steps += 1
        if self.fails:
            raise RuntimeError("broken")
        return np.arange(1024) == self.steps

    def step(self, tokens: dict[int, int]) -> Any:
        return {slot: self.scores(slot) for slot in tokens}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Endless, Batcher]]:
    model = Endless()
    monkeypatch.setattr(together, "slots_of", lambda found, most, encoder: (found, most))
    batcher = Batcher(model, Limits(max_texts=2, max_queue=1))  # type: ignore[arg-type]
    yield model, batcher
    model.goes_on.set()
    batcher.close()


def quiet(what: str, seconds: float) -> None:
    """Nobody counts."""


def asked() -> texts.Asked:
    return texts.Asked((1,), 1 << 20)


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
            async for piece in texts.generate(batcher, asked(), quiet):
                yield "1", piece

        stream = pieces()
        answer = rest.Events(stream, await anext(stream), lambda version, piece: piece.token, 60.0)
        await asyncio.wait_for(answer({}, receive, send), 60)
        assert sent[0]["status"] == 200 and sent[1]["body"] == b"data: 1\n\n"

    asyncio.run(leave())
    assert batcher.texts == 0
    until(lambda: not batcher._groups[0].count, "the text leaves")
    made = model.steps
    time.sleep(0.05)
    assert model.steps == made, "it goes on"


def test_a_client_that_does_not_read_ends_its_text(endless: tuple[Endless, Batcher]) -> None:
    async def stall() -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def pieces() -> Any:
            async for piece in texts.generate(endless[1], asked(), quiet):
                yield "1", piece

        stream = pieces()
        answer = rest.Events(stream, await anext(stream), lambda version, piece: piece.token, 0.05)
        await asyncio.wait_for(answer({}, asyncio.Event().wait, send), 60)  # type: ignore[arg-type]

    asyncio.run(stall())
    assert endless[1].texts == 0


def test_what_is_not_read_waits(endless: tuple[Endless, Batcher]) -> None:
    model, batcher = endless

    async def read() -> None:
        first = texts.generate(batcher, asked(), quiet)
        await anext(first)
        await asyncio.to_thread(until, lambda: model.steps == together.AHEAD + 1, "tokens ahead")
        await asyncio.sleep(0.05)
        assert model.steps == together.AHEAD + 1
        assert [(await anext(first)).token for _ in range(40)] == list(range(2, 42))
        await first.aclose()

    asyncio.run(read())


def test_texts_wait_for_room_and_are_so_many(endless: tuple[Endless, Batcher]) -> None:
    _, batcher = endless

    async def several() -> None:
        first, second, third, fourth = (texts.generate(batcher, asked(), quiet) for _ in range(4))
        assert {(await anext(one)).token for one in (first, second)} <= set(range(1, 2 * together.AHEAD))
        waits = asyncio.ensure_future(anext(third))
        await asyncio.sleep(0.05)
        assert batcher.texts == 3 and not waits.done()
        with pytest.raises(Refused, match="3 texts are being generated or wait") as raised:
            await anext(fourth)
        assert raised.value.status == 429
        await first.aclose()
        assert (await waits).count == 1  # the first one made room
        closing = threading.Thread(target=batcher.close)
        closing.start()
        while not batcher._ends:
            await asyncio.sleep(0.001)
        assert [(await anext(second)).count for _ in range(40)] == list(range(2, 42))  # what was begun is finished
        late = texts.generate(batcher, asked(), quiet)
        with pytest.raises(Refused, match="unloaded"):
            await anext(late)
        await third.aclose()
        assert closing.is_alive()
        await second.aclose()
        await asyncio.to_thread(closing.join, 60)
        assert not closing.is_alive()

    asyncio.run(several())


def test_a_token_that_takes_too_long_is_told(endless: tuple[Endless, Batcher]) -> None:
    model, batcher = endless
    object.__setattr__(batcher.limits, "timeout", 0.05)

    async def wait() -> None:
        model.goes_on.clear()
        stream = texts.generate(batcher, asked(), quiet)
        with pytest.raises(Refused, match="no result within") as raised:
            await anext(stream)
        assert raised.value.status == 504

    asyncio.run(wait())
    assert batcher.texts == 0


def test_a_failure_ends_the_texts_and_not_the_server(endless: tuple[Endless, Batcher]) -> None:
    model, batcher = endless

    async def fail() -> None:
        first = texts.generate(batcher, asked(), quiet)
        await anext(first)
        model.fails = True
        with pytest.raises(Refused, match="RuntimeError: broken") as raised:
            async for _ in first:
                pass
        assert raised.value.status == 500
        model.fails = False
        again = texts.generate(batcher, asked(), quiet)
        assert (await anext(again)).count == 1
        await again.aclose()

    asyncio.run(fail())


def test_the_longest_text_is_told(decoders: Path) -> None:
    model = tvmopt.load(decoders / "talk.tvmopt")
    assert Decoder(model, 1).longest == model.decoder().max_length
