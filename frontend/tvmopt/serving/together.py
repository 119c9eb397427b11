"""Texts of one model that are computed together, as they join and leave - for the batcher's threads.

    join -> [waiting] -> a slot, its prompt piece by piece -> a token at every turn -> its end, or the client went away

A turn of a :class:`Group` is one piece of one prompt and then one step, which gives every text that has its prompt
behind it a token; turns stand in the model's queue beside other requests. A step reads the weights once for all texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from tvmopt.errors import InputError
from tvmopt.generation import encoded
from tvmopt.runtime.decoder import Array, Decoder
from tvmopt.runtime.model import Model
from tvmopt.runtime.sampling import Choice
from tvmopt.serving.refusals import Refused

PIECE = 256
"""Tokens of a prompt that are computed in one turn: other texts wait no longer than these take for their next token."""

AHEAD = 16
"""Tokens that are computed before the client has taken them; a text that nobody reads waits."""

END = object()
"""What a text is told behind its last token."""


@dataclass(eq=False)
class Text:
    """A text on its way.

    Attributes:
        ids: its prompt. most: tokens that it gets at most. stop: tokens that end it. choose: from scores to a token.
        given: the inputs of the encoder, where one belongs to the model.
        tell: takes each token, then :data:`END`, or a :class:`Refused` instead; called from the model's threads.
        taken: tokens that the client has taken, which it counts itself. gone: nobody wants the rest.
    """

    ids: list[int]
    most: int
    stop: Collection[int]
    choose: Choice
    tell: Callable[[Any], None]
    given: Mapping[str, Array] = field(default_factory=dict)
    taken: int = 0
    gone: bool = False
    checked: bool = False
    slot: int = -1
    begun: int = 0
    made: int = 0
    last: int = -1

    @property
    def reads(self) -> bool:
        """Whether some of its prompt is still to be computed."""
        return self.begun < len(self.ids)

    @property
    def ready(self) -> bool:
        """Whether a step may go on with it."""
        return not self.gone and self.slot >= 0 and not self.reads and self.made - self.taken < AHEAD


class Slots(Protocol):
    """Where texts are computed: :class:`Together`, :class:`Apart` or :class:`Beside`."""

    def check(self, ids: list[int]) -> None: ...
    def begin(self, ids: list[int], room: int, given: Mapping[str, Array]) -> int: ...
    def extend(self, slot: int, ids: list[int]) -> Array: ...
    def scores(self, slot: int) -> Array: ...
    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Array]: ...
    def is_full(self, slot: int) -> bool: ...
    def remove(self, slot: int) -> None: ...


class Together:
    """Slots of one `tvmopt.runtime.batch.Batch`; there is room for texts as long as the longest one may become."""

    def __init__(self, model: Model, slots: int) -> None:
        self._batch = model.decoder(1, sequences=slots)
        self.check = self._batch.check
        self.extend, self.scores, self.step = self._batch.extend, self._batch.scores, self._batch.step

    def begin(self, ids: list[int], room: int, given: Mapping[str, Array]) -> int:
        room = min(room, self._batch.longest)
        if room > self._batch.max_length:
            self._batch.resize(room)
        return self._batch.add(ids)

    def is_full(self, slot: int) -> bool:
        return self._batch.lengths[slot] >= self._batch.longest

    def remove(self, slot: int) -> None:
        self._batch.remove(slot)
        if not self._batch.lengths:
            self._batch.resize(1)  # memory that a long text took is given back


class Apart:
    """A decoder for each text, where the model's code takes tokens of one text at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._decoders: dict[int, Decoder] = {}
        self._scores: dict[int, Array] = {}

    def check(self, ids: list[int]) -> None:
        self._first.check(ids)

    @cached_property
    def _first(self) -> Decoder:
        """One without room, which knows what the model takes."""
        return _of_one_text(self._model.decoder(1))

    def _decoder(self, room: int, given: Mapping[str, Array]) -> Decoder:
        return self._model.decoder(min(room, self._first.longest))

    def begin(self, ids: list[int], room: int, given: Mapping[str, Array]) -> int:
        slot = next(n for n in range(len(self._decoders) + 1) if n not in self._decoders)
        decoder = self._decoder(room, given)
        self._scores[slot] = decoder.prefill(ids)
        self._decoders[slot] = decoder
        return slot

    def extend(self, slot: int, ids: list[int]) -> Array:
        self._scores[slot] = self._decoders[slot].prefill(ids)
        return self._scores[slot]

    def scores(self, slot: int) -> Array:
        return self._scores[slot]

    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        self._scores |= {slot: self._decoders[slot].step(token) for slot, token in tokens.items()}
        return self._scores

    def is_full(self, slot: int) -> bool:
        return self._decoders[slot].length >= self._decoders[slot].longest

    def remove(self, slot: int) -> None:
        del self._decoders[slot], self._scores[slot]


class Beside(Apart):
    """A decoder for each text beside what the encoder gives for it. What a decoder takes is known with the encoder's
    output only, so a text is checked when it begins."""

    def __init__(self, model: Model, encoder: Model) -> None:
        super().__init__(model)
        self._encoder = encoder

    def check(self, ids: list[int]) -> None:
        pass

    def _decoder(self, room: int, given: Mapping[str, Array]) -> Decoder:
        # room for the longest text: a buffer takes memory when rows are written
        return _of_one_text(self._model.decoder(**encoded(self._encoder, given)))


def _of_one_text(decoder: Decoder) -> Decoder:
    if decoder.batch != 1:
        raise InputError(f"the model is compiled for {decoder.batch} texts at a time.", fix="compile it for one")
    return decoder


def slots_of(model: Model, most: int, encoder: Model | None = None) -> tuple[Slots, int]:
    """Slots for `most` texts, or for fewer where a call takes fewer tokens; and how many.

    Raises:
        InputError: the model is no decoder, or one that looks at more than a text and has no encoder.
    """
    if encoder is not None:
        return Beside(model, encoder), most
    takes = model.decoder(1).piece if model.manifest.decoder.placed and most > 1 else 1
    return (Together(model, min(most, takes)), min(most, takes)) if takes > 1 else (Apart(model), most)


class Group:
    """Texts that take their turns in one call of the model at a time.

    Args:
        most: texts that are computed at a time; others wait.
        put: puts a turn into the model's queue.
        encoder: computes what the texts of the model look at.
    """

    def __init__(
        self, model: Model, most: int, put: Callable[[Callable[[], int]], None], encoder: Model | None = None
    ) -> None:
        self._model, self._most, self._put, self._encoder = model, most, put, encoder
        self._lock = threading.Lock()
        self._texts: list[Text] = []  # in the order in which they came
        self._sleeps = True
        self._slots: Slots | None = None

    @property
    def count(self) -> int:
        """Texts that have joined and not left."""
        return len(self._texts)

    def join(self, text: Text) -> None:
        """A text more; it is told tokens, and an end or why it has none."""
        with self._lock:
            self._texts.append(text)
        self.wake()

    def leave(self, text: Text) -> None:
        """Nothing more is computed of it."""
        text.gone = True
        self.wake()

    def wake(self) -> None:
        """Take a turn if there is something to do: a text has joined, left, or taken a token."""
        with self._lock:
            if not self._sleeps or not self._has_work():
                return
            self._sleeps = False
        self._put(self.turn)

    def _has_work(self) -> bool:
        free = self._most - sum(text.slot >= 0 for text in self._texts)
        return any(
            text.gone or not text.checked or text.ready or (text.reads and (text.slot >= 0 or free))
            for text in self._texts
        )

    # -- in the model's threads, one turn at a time --------------------------------------------------------------------

    def turn(self) -> int:
        """Compute what is next; the number of texts in the step."""
        try:
            return self._turn()
        finally:
            with self._lock:
                self._sleeps = not self._has_work()
            if not self._sleeps:
                self._put(self.turn)

    def _turn(self) -> int:
        with self._lock:
            texts = list(self._texts)
        for text in texts:
            if text.gone:
                self._end(text)
            elif not text.checked:
                self._try([text], self._check)
        texts = [text for text in texts if text in self._texts]
        free = self._most - sum(text.slot >= 0 for text in texts)
        reading = next((text for text in texts if text.reads and (text.slot >= 0 or free)), None)
        if reading is not None:
            self._try([reading], self._read)
        stepping = [text for text in texts if text.ready and text in self._texts]
        if stepping:
            self._try(stepping, self._step)
        return len(stepping)

    def _check(self, texts: list[Text]) -> None:
        (text,) = texts
        if self._slots is None:
            self._slots, self._most = slots_of(self._model, self._most, self._encoder)
        self._slots.check(text.ids)
        text.checked = True
        if text.most == 0:
            self._end(text, END)

    def _read(self, texts: list[Text]) -> None:
        """A piece of a prompt; the first token behind the last one."""
        assert self._slots is not None
        (text,) = texts
        piece = text.ids[text.begun : text.begun + PIECE]
        if text.slot < 0:
            text.slot = self._slots.begin(piece, len(text.ids) + text.most, text.given)
        else:
            self._slots.extend(text.slot, piece)
        text.begun += len(piece)
        if not text.reads:
            self._tell(text, self._slots.scores(text.slot))

    def _step(self, texts: list[Text]) -> None:
        """The next token of each of these."""
        assert self._slots is not None
        found = self._slots.step({text.slot: text.last for text in texts})
        for text in texts:
            self._tell(text, found[text.slot])

    def _tell(self, text: Text, scores: Array) -> None:
        assert self._slots is not None
        text.last = text.choose(scores)
        text.made += 1
        text.tell(text.last)
        if text.made >= text.most or text.last in text.stop or self._slots.is_full(text.slot):
            self._end(text, END)

    def _end(self, text: Text, told: Any = None) -> None:
        """A text leaves, and its slot is free."""
        with self._lock:
            self._texts.remove(text)
        if text.slot >= 0 and self._slots is not None:
            self._slots.remove(text.slot)
        if told is not None:
            text.tell(told)

    def _try(self, texts: list[Text], work: Callable[[list[Text]], None]) -> None:
        """Do something for texts; where it fails they end, and are told why."""
        try:
            work(texts)
        except Exception as error:
            refused = Refused(500, f"the model failed: {type(error).__name__}: {error}")
            refused = Refused(400, error.what) if isinstance(error, InputError) else refused
            for text in texts:
                if text in self._texts:
                    self._end(text, refused)
