"""Texts that a decoder goes on with, token by token - what is asked for, and the pieces as they are computed.

A request is that of Triton's generate extension; instead of a text it may give tokens::

    {"text_input": "Once upon", "parameters": {"max_tokens": 50, "temperature": 0.7, "stop": ["</s>"]}}
    {"tokens": [1, 15, 27]}

Where an encoder belongs to the decoder, the request has its inputs, too, written as in the protocol's `infer`::

    {"tokens": [50258],
     "inputs": [{"name": "input_features", "datatype": "FP32", "shape": [1, 80, 3000], "data": [...]}]}

Texts that are generated at the same time are computed together, see `tvmopt.serving.together`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tvmopt.errors import InputError
from tvmopt.generation import Pieces, prompt_tokens, stop_token
from tvmopt.runtime import sampling
from tvmopt.runtime.tensors import Array
from tvmopt.serving.batcher import Batcher
from tvmopt.serving.protocol import tensors
from tvmopt.serving.refusals import Refused, bad
from tvmopt.serving.together import END, Text

PARAMETERS = {
    "max_tokens": (int, "a whole number"), "temperature": (float, "a number"), "top_k": (int, "a whole number"),
    "top_p": (float, "a number"), "seed": (int, "a whole number"), "stop": (list, "a list of tokens"),
}  # fmt: skip
"""What a request may say of its text, each with its type."""

MAX_TOKENS = 128
"""Where it does not say how many."""


@dataclass(frozen=True)
class Asked:
    """A text to go on from.

    Attributes:
        prompt: the text, or its tokens. stop: tokens that end it, as numbers or as the tokenizer writes them.
        sampling: as :meth:`tvmopt.runtime.decoder.Decoder.generate` takes it.
        inputs: of the encoder, as JSON has them; None where there are none.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int = MAX_TOKENS
    stop: tuple[str | int, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    inputs: Any = None


@dataclass(frozen=True)
class Piece:
    """What was computed.

    Attributes:
        token: None at the end. text: what it adds, which may be nothing; at the end what is left.
        finish: at the end "stop" or "length". count: tokens so far. prompt: tokens of the prompt.
    """

    token: int | None
    text: str
    finish: str = ""
    count: int = 0
    prompt: int = 0


def parse(body: bytes | memoryview) -> Asked:
    """A request in JSON.

    Raises:
        Refused: it is none.
    """
    try:
        told = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise bad("the request is no JSON.") from None
    if not isinstance(told, dict):
        raise bad("the request is no object.")
    if others := sorted(set(told) - {"id", "text_input", "tokens", "parameters", "inputs"}):
        raise bad(f"the request has {others[0]!r}; it takes text_input or tokens, parameters, inputs and id.")
    if ("text_input" in told) == ("tokens" in told):
        raise bad("the request gives one of text_input and tokens.")
    if not isinstance(told.get("text_input", ""), str):
        raise bad("text_input is no text.")
    request_id = told.get("id", "")
    if not isinstance(request_id, str):
        raise bad("the id is no text.")
    prompt = told["text_input"] if "text_input" in told else checked_tokens(told["tokens"])
    return replace(asked(prompt, told.get("parameters") or {}, request_id), inputs=told.get("inputs"))


def checked_tokens(given: Any) -> tuple[int, ...]:
    """Tokens of a request.

    Raises:
        Refused: they are no whole numbers.
    """
    if not isinstance(given, list) or not all(type(t) is int and 0 <= t < 2**31 for t in given):
        raise bad("tokens are a list of whole numbers from 0.")
    return tuple(given)


def asked(prompt: str | tuple[int, ...], parameters: Any, request_id: str = "") -> Asked:
    """A request of these parameters.

    >>> asked((1, 2), {"max_tokens": 5, "temperature": 1}).sampling
    {'temperature': 1.0}

    Raises:
        Refused: one is not known, or of another type.
    """
    if not isinstance(parameters, dict):
        raise bad("parameters are an object.")
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in PARAMETERS:
            raise bad(f"there is no parameter {name!r}; there are {', '.join(PARAMETERS)}.")
        kind, told = PARAMETERS[name]
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        if type(value) is not kind:
            raise bad(f"the parameter {name!r} is {told}, not {value!r}.")
        found[name] = value
    stop = found.pop("stop", [])
    if not all(type(one) in (int, str) for one in stop):
        raise bad("the parameter 'stop' is a list of tokens, as numbers or as texts.")
    most = found.pop("max_tokens", MAX_TOKENS)
    if most < 0 or found.get("seed", 0) < 0:
        raise bad(f"the parameter {'max_tokens' if most < 0 else 'seed'!r} is negative.")
    return Asked(prompt, most, tuple(stop), found, request_id)


async def generate(batcher: Batcher, wanted: Asked, observe: Any) -> AsyncGenerator[Piece]:
    """The tokens of a text, one by one, and an end. Who stops reading closes it, and nothing more is computed.

    Args:
        observe: called with "first_token" or "token" and seconds.

    Raises:
        Refused: there is no room for it, it is not what the model takes, or a token took too long.
    """
    pieces, before = Pieces(batcher.words), time.perf_counter()
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    text = await asyncio.to_thread(_text, batcher, wanted, asyncio.get_running_loop(), arrived)
    with batcher.text(text) as group:
        while (token := await _next(arrived, batcher.limits.timeout)) is not END:
            if isinstance(token, Refused):
                raise token
            now = time.perf_counter()
            observe("token" if pieces.tokens else "first_token", now - before)
            before = now
            text.taken += 1
            group.wake()
            yield Piece(token, pieces.add(token), count=len(pieces.tokens), prompt=len(text.ids))
    finish = "stop" if pieces.tokens and pieces.tokens[-1] in text.stop else "length"
    yield Piece(None, pieces.rest(), finish, len(pieces.tokens), len(text.ids))


def _text(batcher: Batcher, wanted: Asked, loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[Any]) -> Text:
    """The text that is asked for, which tells its tokens to a queue of the loop.

    Raises:
        Refused: a word or number of it is not what the model takes.
    """

    def tell(told: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(arrived.put_nowait, told)

    try:
        ids = prompt_tokens(wanted.prompt if isinstance(wanted.prompt, str) else list(wanted.prompt), batcher.words)
        stop = {stop_token(one, batcher.words) for one in wanted.stop}
        choose = sampling.choice(**wanted.sampling)
    except InputError as error:
        raise bad(error.what) from None
    return Text(ids, wanted.max_tokens, stop, choose, tell, _given(batcher, wanted.inputs))


def _given(batcher: Batcher, inputs: Any) -> dict[str, Array]:
    """The inputs of the decoder's encoder; none where it has no encoder.

    Raises:
        Refused: they are not what it takes.
    """
    if batcher.encoder is not None:
        return tensors(batcher.encoder, [] if inputs is None else inputs)
    if inputs is not None:
        raise bad("the request has inputs, and no encoder belongs to the model: leave them out.")
    return {}


async def _next(arrived: asyncio.Queue[Any], seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await arrived.get()
    except TimeoutError:
        raise Refused(504, f"there was no result within {seconds:g} s.") from None
