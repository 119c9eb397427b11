"""Texts of different lengths that a decoder goes on with together - what `Model.decoder(sequences=8)` gives.

    batch = tvmopt.load("model.tvmopt").decoder(max_length=2048, sequences=8)
    slot = batch.add([1, 15, 27])                       # a text joins, of any length
    scores = batch.step({slot: 5, other: 9})            # one token more of each of these texts, in one call
    batch.remove(slot)                                  # and leaves; its place is free for another
    for which, token in batch.generate(prompts, max_new_tokens=100): ...

A step reads every weight once, however many texts it goes on with. The caches are buffers [sequences, heads,
max_length, depth], of which each text has a row of its own; each token of a call is told its text and its position
there, and its attention reads the rows of that text alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmopt.errors import InputError
from tvmopt.runtime import sampling
from tvmopt.runtime.decoder import Array, Runs, State, Tokens
from tvmopt.runtime.places import places


class Batch(State):
    """The state of several texts that join and leave. Not for several threads at once.

    A text is known by its `slot`, a number that :meth:`add` gives and that another text gets when it was removed.

    Args:
        model: a loaded model, whose `decoder` makes this.
        sequences: texts at a time.
        max_length: tokens of the longest text, prompt included; default: as many as the model takes.
        given: what all of them look at besides their own text: see `tvmopt.runtime.beside`.

    Raises:
        InputError: the model is no decoder, or not one for tokens of several texts, or for as many tokens.
    """

    def __init__(
        self, model: Runs, sequences: int, max_length: int | None = None, given: Mapping[str, Any] | None = None
    ) -> None:
        if sequences < 1:
            raise InputError(f"there is no room for {sequences} texts.", where="sequences", fix="give 1 or more")
        super().__init__(model, max_length, sequences, given)
        if not model.manifest.decoder.placed:
            raise InputError(
                "the code of the model takes tokens of one text at a time.",
                where=self._where,
                fix="make a decoder for each text; `tvmopt explain` tells why, at tvmopt.PlaceTokens",
            )
        if sequences > self.piece:
            raise InputError(
                f"{sequences} texts are more than the {self.piece} tokens that a call takes.",
                where=self._where,
                fix=f"give {self.piece} or less, or compile the model with a larger --shape {self._new}:1..N",
            )
        self.sequences = sequences
        self._lengths: dict[int, int] = {}
        self._scores: dict[int, Array] = {}

    def __repr__(self) -> str:
        texts = ", ".join(f"{slot}: {length}" for slot, length in sorted(self._lengths.items()))
        return f"<tvmopt decoder of {self._where}: {len(self._lengths)} of {self.sequences} texts ({texts})>"

    # -- texts -----------------------------------------------------------------------------------------------

    @property
    def lengths(self) -> dict[int, int]:
        """The number of tokens of each text, by its slot."""
        return dict(sorted(self._lengths.items()))

    @property
    def free(self) -> int:
        """How many more texts there is room for."""
        return self.sequences - len(self._lengths)

    def add(self, ids: Tokens) -> int:
        """A text more, which begins with these tokens; its slot. :meth:`scores` are those of the token that follows.

        Raises:
            InputError: there is no slot free; no tokens, one that is outside of the vocabulary, or more than
                `max_length`. Nothing has changed then.
        """
        tokens = self._checked(ids, 0)
        slot = next((s for s in range(self.sequences) if s not in self._lengths), None)
        if slot is None:
            raise InputError(
                f"there is room for {self.sequences} texts, and there are as many.",
                where=self._where,
                fix="remove one, or make the decoder for more sequences",
            )
        self._scores[slot] = self._put(slot, tokens, 0)
        self._lengths[slot] = tokens.shape[1]
        return slot

    def extend(self, slot: int, ids: Tokens) -> Array:
        """Put tokens behind those of one text; the scores [vocabulary] of the token that follows.

        Raises:
            InputError: see :meth:`add`; there is no such text.
        """
        length = self._length(slot)
        tokens = self._checked(ids, length)
        self._scores[slot] = self._put(slot, tokens, length)
        self._lengths[slot] = length + tokens.shape[1]
        return self._scores[slot]

    def scores(self, slot: int) -> Array:
        """The scores [vocabulary] of the token that follows a text.

        Raises:
            InputError: there is no such text, or it was truncated since.
        """
        self._length(slot)
        if slot not in self._scores:
            raise InputError(f"the text in slot {slot} was truncated.", where=self._where, fix="put a token behind it")
        return self._scores[slot]

    def step(self, tokens: Mapping[int, int] | None = None) -> dict[int, Array]:
        """One token more of each of these texts, all in one call.

        Args:
            tokens: by slot; texts that are not mentioned stay as they are. Default: for every text the token with the
                highest score.

        Returns:
            The scores [vocabulary] of the token that follows each of them, by slot.

        Raises:
            InputError: there is no such text, or it is full; a token is outside of the vocabulary. Nothing has changed
                then.
        """
        if tokens is None:
            tokens = {slot: int(self.scores(slot).argmax()) for slot in self._lengths}
        if not tokens:
            return {}
        slots = sorted(tokens)
        where = places(slots, [self._length(slot) for slot in slots])
        ids = [int(self._checked([tokens[slot]], self._length(slot))[0, 0]) for slot in slots]
        given = np.array([ids], self._infos[self._roles.ids].numpy_dtype)
        # the code makes room for the keys of as many rows as `past` and the tokens of the call are together
        past = max(0, int(where[1].max()) + 1 - len(slots))
        found = self._call(given, past, True, where, len(slots) > 1)[0]
        for row, slot in enumerate(slots):
            self._lengths[slot] += 1
            self._scores[slot] = found[row]
        return {slot: found[row] for row, slot in enumerate(slots)}

    def remove(self, slot: int) -> None:
        """A text leaves; its slot is free.

        Raises:
            InputError: there is no such text.
        """
        self._length(slot)
        del self._lengths[slot]
        self._scores.pop(slot, None)

    def truncate(self, slot: int, length: int) -> None:
        """Forget what is behind the first `length` tokens of a text.

        Raises:
            InputError: there is no such text, or it has fewer.
        """
        if not 0 <= length <= self._length(slot):
            raise InputError(
                f"there is no text of {length} tokens in one of {self._length(slot)}.",
                fix=f"give 0 to {self._length(slot)}",
            )
        if length < self._lengths[slot]:
            self._scores.pop(slot, None)
        self._lengths[slot] = int(length)

    def resize(self, max_length: int) -> None:
        """Have room for texts of so many tokens; those that are there are kept.

        Raises:
            InputError: one of them is longer, or the model takes fewer.
        """
        least = max(self._lengths.values(), default=1)
        if not least <= max_length <= self.longest:
            raise InputError(f"max_length is {max_length}.", where=self._where, fix=f"give {least} to {self.longest}")
        caches = self._new_caches(self.sequences, max_length)
        for old, new in zip(self._caches, caches, strict=True):
            for slot, length in self._lengths.items():
                new[slot, :, :length] = old[slot, :, :length]
        self._use(caches)
        self.max_length = max_length

    def reset(self) -> None:
        """All texts leave."""
        self._lengths.clear()
        self._scores.clear()

    # -- many prompts ----------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Tokens], *, max_new_tokens: int = 128, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int | None = None, stop: Collection[int] = (),
    ) -> Iterator[tuple[int, int]]:  # fmt: skip
        """Go on from each of these prompts; yield the number of a prompt and a token of its text, as they are computed.

        As many texts as there are free slots are computed together; the other prompts wait until one ends. A text ends
        as in :meth:`tvmopt.runtime.decoder.Decoder.generate`, whose tokens these are: with the same `seed` each prompt
        draws what it would draw alone. Texts that end, or that a caller breaks off, leave.

        Raises:
            InputError: see :meth:`add`, before anything is computed; a number that is out of range.
        """
        if max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {max_new_tokens}.", fix="give 0 or more")
        ids = [self._checked(prompt, 0) for prompt in prompts]
        rules = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        chosen = [sampling.choice(**rules) for _ in ids]  # type: ignore[arg-type]
        if ids and not self.free:
            raise InputError("no slot is free.", where=self._where, fix="remove a text")
        texts = [_Text(i, one, choose) for i, (one, choose) in enumerate(zip(ids, chosen, strict=True))]
        return self._generated(texts if max_new_tokens else [], max_new_tokens, frozenset(stop))

    def _generated(self, waiting: list[_Text], count: int, stop: frozenset[int]) -> Iterator[tuple[int, int]]:
        running: dict[int, _Text] = {}
        try:
            while waiting or running:
                if waiting and (self.free or not running):
                    slot = self.add(waiting[0].ids[0])
                    running[slot] = waiting.pop(0)
                    joined = [slot]
                else:
                    self.step({slot: text.last for slot, text in running.items()})
                    joined = list(running)
                for slot in joined:
                    yield from self._told(running, slot, count, stop)
        finally:
            for slot in running:
                if slot in self._lengths:
                    self.remove(slot)

    def _told(
        self, running: dict[int, _Text], slot: int, count: int, stop: frozenset[int]
    ) -> Iterator[tuple[int, int]]:
        """The next token of a text, which leaves if it is the last one."""
        text = running[slot]
        text.last, text.made = text.choose(self.scores(slot)), text.made + 1
        if text.made == count or text.last in stop or self._lengths[slot] >= self.max_length:
            del running[slot]
            self.remove(slot)
        yield text.number, text.last

    # -- inside ----------------------------------------------------------------------------------------------

    def _length(self, slot: int) -> int:
        if slot not in self._lengths:
            there = ", ".join(map(str, sorted(self._lengths))) or "none"
            raise InputError(
                f"there is no text in slot {slot}.", where=self._where, fix=f"texts are in these slots: {there}"
            )
        return self._lengths[slot]

    def _put(self, slot: int, tokens: Array, length: int) -> Array:
        """The scores behind checked tokens of one text, which are consecutive: in pieces that the code takes."""
        piece = self.piece
        for start in range(0, tokens.shape[1], piece):
            part = np.ascontiguousarray(tokens[:, start : start + piece])
            where = places(slot, range(length + start, length + start + part.shape[1]))
            scores = self._call(part, length + start, False, where)
        last: Array = scores[0, -1]
        return last


@dataclass
class _Text:
    """A prompt on its way: its number, its tokens, how its tokens are chosen, the last one, and how many there were."""

    number: int
    ids: Array
    choose: sampling.Choice
    last: int = -1
    made: int = 0
