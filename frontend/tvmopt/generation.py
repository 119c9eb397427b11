"""Text from a compiled decoder: prompts in, tokens or words out, with the times - `tvmopt generate` and its functions.

The model is a file that `tvmopt compile` wrote. Words need its tokenizer, a `tokenizer.json` that the package
`tokenizers` reads (`pip install 'tvmopt[generate]'`); without one, prompts and results are numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import InputError, MissingDependency, reason
from tvmopt.runtime.model import Model, load

HIDDEN, TEXT_MASK = "encoder_hidden_states", "attention_mask"
"""What exporters call an encoder's output where a decoder takes it, and the mask of a text where an encoder does."""

MOST_TOGETHER = 8
"""Texts at a time unless it is said otherwise."""


@dataclass(frozen=True)
class Generated:
    """What was generated.

    Attributes:
        prompt: the tokens of the prompt. tokens: those behind it.
        text: of `tokens`; empty without a tokenizer.
        prefill_seconds: until the first token was known. step_seconds: for the others together.
        threads: that the model ran with.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    prefill_seconds: float
    step_seconds: float
    threads: int

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt a second."""
        return len(self.prompt) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def step_rate(self) -> float:
        """Tokens a second behind the first one; 0 where there is none."""
        return (len(self.tokens) - 1) / self.step_seconds if self.step_seconds and len(self.tokens) > 1 else 0.0


def generate(
    model: str | Path | Model,
    prompt: str | Sequence[int],
    *,
    tokenizer: str | Path | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: Sequence[str | int] = (),
    max_length: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    encoder: str | Path | Model | None = None,
    threads: int | None = None,
    cores: str | None = None,
    on_piece: Callable[[str], None] | None = None,
) -> Generated:
    """Go on from a prompt.

    Args:
        model: the artifact's path, or a loaded model.
        prompt: text, for which `tokenizer` is needed, or tokens.
        tokenizer: a `tokenizer.json`.
        temperature, top_k, top_p, seed: see :func:`tvmopt.runtime.sampling.choice`; by default the token with the
            highest score is taken.
        stop: tokens behind which it ends, as numbers or as the tokenizer writes them (``"</s>"``).
        max_length: tokens that the state has room for; default: as many as the model takes, or as are needed.
        inputs: what the decoder looks at besides its own text, by name: an encoder's output.
        encoder: an artifact, or a loaded model, that computes this; `inputs` are then the encoder's.
        on_piece: called with each piece of text, or number, as soon as it is known.

    Raises:
        InputError: see :meth:`tvmopt.runtime.decoder.Decoder.generate`; inputs that do not fit; a text
            without a tokenizer; a token that the tokenizer does not know.
        MissingDependency: a tokenizer without the package `tokenizers`.
    """
    words, (ids,), ends = _in_tokens([prompt], tokenizer, stop)
    loaded = _loaded(model, threads, cores)
    beside = dict(inputs or {})
    if encoder is not None:
        beside = encoded(_loaded(encoder, threads, cores), beside)
        beside = {name: value for name, value in beside.items() if name in loaded.looks_at}
    decoder = loaded.decoder(max_length, **beside)
    start = time.perf_counter()
    pieces, first = Pieces(words), start
    for token in decoder.generate(
        ids, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=ends
    ):
        first = time.perf_counter() if not pieces.tokens else first
        piece = pieces.add(token)
        if on_piece and piece:
            on_piece(piece)
    end = time.perf_counter()
    tokens = tuple(pieces.tokens)
    text = words.text(tokens) if words is not None else ""
    return Generated(tuple(ids), tokens, text, first - start, end - first if tokens else 0.0, loaded.threads)


def encoded(encoder: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a decoder looks at, computed by its encoder: its output, the mask of what it read, and the caches that
    encoders of some exporters compute themselves (``present_key_cross_0``, which decoders read as ``past_...``).

    Raises:
        InputError: see :meth:`tvmopt.runtime.model.Model.run`.
    """
    given = dict(inputs)
    names = [info.name for info in encoder.inputs]
    if TEXT_MASK in names and TEXT_MASK not in given and len(given) == 1:
        given[TEXT_MASK] = np.ones(np.shape(next(iter(given.values()))), np.int64)
    outputs = encoder.run(given)
    caches = {name.removeprefix("present"): a for name, a in outputs.items() if name.startswith("present")}
    found: dict[str, Any] = {f"{word}{rest}": a for rest, a in caches.items() for word in ("past", "past_key_values")}
    hidden = outputs.get(HIDDEN, next((a for name, a in outputs.items() if not name.startswith("present")), None))
    found |= {} if hidden is None else {HIDDEN: hidden}
    return found | ({f"encoder_{TEXT_MASK}": given[TEXT_MASK]} if TEXT_MASK in names else {})


@dataclass(frozen=True)
class GeneratedTexts:
    """What was generated for several prompts.

    Attributes:
        prompts: the tokens of each. tokens: those behind each. texts: of `tokens`; empty without a tokenizer.
        sequences: texts that were computed together at most.
        seconds: in all, prompts included.
        threads: that the model ran with.
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    sequences: int
    seconds: float
    threads: int

    @property
    def rate(self) -> float:
        """New tokens a second, of all texts together."""
        return sum(map(len, self.tokens)) / self.seconds if self.seconds else 0.0


def generate_texts(
    model: str | Path | Model,
    prompts: Sequence[str | Sequence[int]],
    *,
    sequences: int | None = None,
    tokenizer: str | Path | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: Sequence[str | int] = (),
    max_length: int | None = None,
    threads: int | None = None,
    cores: str | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> GeneratedTexts:
    """Go on from several prompts of any lengths; a step is one token more of each text that is there.

    Args:
        sequences: texts at a time, the others wait; default: all of them, 8 at most.
        on_token: called with the number of a prompt and each token of its text, as soon as it is known.

    The other arguments, and errors, are those of :func:`generate`, and of :class:`tvmopt.runtime.batch.Batch`.
    """
    words, ids, ends = _in_tokens(prompts, tokenizer, stop)
    loaded = _loaded(model, threads, cores)
    batch = loaded.decoder(max_length, sequences=sequences or max(1, min(len(ids), MOST_TOGETHER)))
    found: list[list[int]] = [[] for _ in ids]
    start = time.perf_counter()
    for number, token in batch.generate(
        ids, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=ends
    ):
        found[number].append(token)
        if on_token:
            on_token(number, token)
    seconds = time.perf_counter() - start
    texts = tuple(words.text(one) if words is not None else "" for one in found)
    given, made = (tuple(map(tuple, many)) for many in (ids, found))
    return GeneratedTexts(given, made, texts, batch.sequences, seconds, loaded.threads)


def _in_tokens(
    prompts: Sequence[str | Sequence[int]], tokenizer: str | Path | None, stop: Sequence[str | int]
) -> tuple[Tokenizer | None, list[list[int]], list[int]]:
    """The tokenizer, if there is one, the prompts as tokens, and the tokens that end a text."""
    words = Tokenizer(tokenizer) if tokenizer is not None else None
    return words, [prompt_tokens(prompt, words) for prompt in prompts], [stop_token(one, words) for one in stop]


def _loaded(model: str | Path | Model, threads: int | None, cores: str | None) -> Model:
    return model if isinstance(model, Model) else load(model, threads=threads, cores=cores)


def prompt_tokens(prompt: str | Sequence[int], words: Tokenizer | None) -> list[int]:
    """A prompt as tokens.

    Raises:
        InputError: it is a text, and there is no tokenizer.
    """
    if not isinstance(prompt, str):
        return [int(t) for t in prompt]
    if words is None:
        raise InputError(
            "the prompt is a text, and there is no tokenizer.",
            fix="name the model's tokenizer.json (--tokenizer FILE), or give tokens (--tokens 1,15,27)",
        )
    return words.tokens(prompt)


def stop_token(one: str | int, words: Tokenizer | None) -> int:
    """The number of a token that is given as its number or as the tokenizer writes it.

    Raises:
        InputError: there is no such token.
    """
    if isinstance(one, int) or one.isdecimal():
        return int(one)
    found = words.token(one) if words is not None else None
    if found is None:
        raise InputError(f"the token {one!r} is not known.", fix="give its number, or a token of the tokenizer")
    return found


class Pieces:
    """What each new token adds to the text; a token that ends inside a letter adds nothing until the letter is whole.

    A token costs the same wherever in the text it is: the tokenizer's stream decodes a few tokens, not all. Without a
    tokenizer the text is the tokens' numbers.
    """

    def __init__(self, words: Tokenizer | None) -> None:
        self.tokens: list[int] = []
        self._words, self._step, self._told = words, words.stream() if words is not None else None, 0

    def add(self, token: int) -> str:
        """The piece of text that this token completes, which may be empty."""
        self.tokens.append(token)
        if self._step is None:
            return f" {token}" if len(self.tokens) > 1 else str(token)
        piece = self._step(token)
        self._told += len(piece)
        return piece

    def rest(self) -> str:
        """What is left at the end: the first bytes of a letter that never became whole."""
        return self._words.text(self.tokens)[self._told :] if self._words is not None else ""


class Tokenizer:
    """A `tokenizer.json`.

    Raises:
        MissingDependency, InputError: the package is not installed; the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingDependency(
                "the package tokenizers is not installed.", fix="pip install 'tvmopt[generate]', or give tokens"
            ) from None
        try:
            self._inner: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise InputError(
                f"cannot read the tokenizer: {reason(error)}", where=str(path), fix="give a tokenizer.json"
            ) from None

    def tokens(self, text: str) -> list[int]:
        """A text in tokens, with those that the tokenizer puts around it."""
        return [int(t) for t in self._inner.encode(text).ids]

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens in words."""
        return str(self._inner.decode(list(tokens)))

    def stream(self) -> Callable[[int], str]:
        """Tokens in words one after the other: called with each token, it gives the text that it completes."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: str(stream.step(self._inner, token) or "")

    def token(self, text: str) -> int | None:
        """The number of a token, None where there is none."""
        found = self._inner.token_to_id(text)
        return None if found is None else int(found)
