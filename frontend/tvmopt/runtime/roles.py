"""What the inputs and outputs of a decoder are - for the importer, the manifest and the decoder at run time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cache:
    """A tensor [batch, heads, length, depth] that a call makes longer: the input that it is, and the output."""

    past: str
    present: str


@dataclass(frozen=True)
class Roles:
    """A decoder's inputs and outputs, by role; "" where it has none. A model without caches is no decoder.

    Attributes:
        caches: those that grow.
        ids: the tokens [batch, new]. mask: 1 for each token that counts [batch, past + new].
        positions: where the tokens stand [batch, new].
        logits: the scores of the next token, for each new one: [batch, new, vocabulary].
        in_place: the code takes the caches as buffers of any length, and behind the inputs how many rows are filled.
        kept: how the buffers store their numbers: see `tvmopt.operators.stored`.
        placed: the code is told each token's text, a row of the caches, and its position there, behind those numbers:
            a call may have tokens of several texts.
        one_token: the model does not tell the order of new tokens, and is right for one of them at a time.
    """

    caches: tuple[Cache, ...] = ()
    ids: str = ""
    mask: str = ""
    positions: str = ""
    logits: str = ""
    in_place: bool = False
    kept: str = "float32"
    placed: bool = False
    one_token: bool = False

    def __bool__(self) -> bool:
        return bool(self.caches)
