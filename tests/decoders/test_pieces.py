"""The text of a stream of tokens, piece by piece, is the text of all of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmopt.generation import Pieces, Tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
TEXTS = ["Hello, world! It's 5 o'clock.", "Grüße aus Köln", "日本語と emoji 👩‍👩‍👧 🇩🇪", "a  b\n\n c", "नमस्ते"]


def byte_level() -> Any:
    """As GPT-2's: a token may be any byte."""
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def sentence_piece() -> Any:
    """As Llama's: bytes are tokens of their own, and the first space of a text is none."""
    from tokenizers import decoders, models, pre_tokenizers

    words = [f"<0x{b:02X}>" for b in range(256)] + [chr(c) for c in range(33, 127)] + ["\u2581", "\u2581a"]
    made = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("\u2581", "a")], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


def word_pieces() -> Any:
    """As BERT's: spaces between words are put by the decoder."""
    from tokenizers import decoders, models, pre_tokenizers

    words = ["[UNK]", *"abcdefghij", *("##" + c for c in "abcdefghij"), ",", "."]
    made = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return made


KINDS = {f.__name__: f for f in (byte_level, sentence_piece, word_pieces)}


@pytest.fixture(params=KINDS)
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    made = KINDS[request.param]()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json")


def pieces_of(words: Tokenizer | None, tokens: list[int]) -> list[str]:
    pieces = Pieces(words)
    found = [pieces.add(token) for token in tokens]
    assert pieces.tokens == tokens
    return [*found, pieces.rest()]


@pytest.mark.parametrize("text", TEXTS)
def test_texts(words: Tokenizer, text: str) -> None:
    tokens = words.tokens(text)
    found = pieces_of(words, tokens)
    assert "".join(found) == words.text(tokens)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)
    assert found[-1] == ""


def test_random_tokens(words: Tokenizer) -> None:
    """Also those that are no text: bytes of no letter, a first byte at the end, special tokens between. Not the tokens
    of bytes as Llama has them: of a run of such that is no text every byte is replaced, when the last one has come."""
    rng = np.random.default_rng(0)
    known = [number for word, number in words._inner.get_vocab().items() if not word.startswith("<0x")]
    for length in (0, 1, 2, 7, 31, 200):
        for _ in range(20):
            tokens = rng.choice(known, length).tolist()
            assert "".join(pieces_of(words, tokens)) == words.text(tokens)


def test_numbers_without_a_tokenizer() -> None:
    assert "".join(pieces_of(None, [5, 17, 0])) == "5 17 0"


def test_a_token_costs_the_same_at_the_end_of_a_long_text(words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole text is never decoded while tokens come."""
    pieces, tokens = Pieces(words), words.tokens("a b a, ") * 4000
    monkeypatch.setattr(words, "text", None)
    begin = time.process_time()
    for token in tokens[:2000]:
        pieces.add(token)
    first, begin = time.process_time() - begin, time.process_time()
    for token in tokens[-2000:]:
        pieces.add(token)
    assert time.process_time() - begin < 20 * first + 0.5
