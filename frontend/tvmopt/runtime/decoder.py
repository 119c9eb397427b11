"""A decoder with its state: keys and values in buffers that a step makes one row longer - what `Model.decoder` gives.

    d = tvmopt.load("model.tvmopt").decoder(max_length=2048)
    logits = d.prefill([1, 15, 27])                     # many tokens at once
    logits = d.step(5)                                  # one token
    for token in d.generate([1, 15, 27], max_new_tokens=100): ...

The buffers are made once. A call hands them to the compiled code, which writes the rows of the new tokens behind those
of the past; nothing is copied and nothing grows. Of several decoders of one model each has buffers of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tvmopt.dims import Dim, Range, holds
from tvmopt.errors import InputError
from tvmopt.operators import stored
from tvmopt.runtime import sampling
from tvmopt.runtime.beside import beside, sizes_of, tensors
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.tensors import TensorInfo, aligned_empty, from_ffi, to_ffi

Array = npt.NDArray[Any]
Tokens = Sequence[int] | Array

BATCH_AXIS, LENGTH_AXIS = 0, 2
"""The axes of a cache [batch, heads, length, depth]."""


class Runs(Protocol):
    """What is needed of a :class:`tvmopt.runtime.model.Model`."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...
    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...
    @property
    def symbols(self) -> dict[str, Range]: ...
    def new_session(self) -> Any: ...
    def inputs_at(self, sizes: Mapping[str, int] | None = None) -> tuple[TensorInfo, ...]: ...
    def bind(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]: ...
    def call_in_place(
        self, session: Any, given: Mapping[str, Any], past: int, scores: int, places: Any = None, apart: bool = False
    ) -> Any: ...


class State:
    """The caches of a model's decoder for some texts, and calls that use them - what decoders of one text and of
    several have in common.

    Args:
        model: a loaded model.
        max_length: tokens of the longest text, prompt included; default: as many as the model takes.
        texts: rows of the caches; default: as many as the model is compiled for.
        given: what it looks at besides its own text, by the name of the input: see `tvmopt.runtime.beside`.

    Attributes:
        longest: tokens of the longest text that the model takes.

    Raises:
        InputError: the model is no decoder, or not one for as many tokens; `given` does not fit.
    """

    def __init__(
        self, model: Runs, max_length: int | None = None, texts: int = 0, given: Mapping[str, Any] | None = None
    ) -> None:
        roles, manifest = model.manifest.decoder, model.manifest
        self._model, self._where = model, manifest.model
        if not roles.in_place or not roles.ids or not roles.logits:
            raise InputError(
                "the model is no decoder that keeps its keys and values.",
                where=manifest.model,
                fix="export it with inputs past_key_values.* and outputs present.* whose length is open, and compile "
                "it without binding that length; `tvmopt inspect` shows the caches that were found",
            )
        infos = {info.name: info for info in (*model.inputs, *model.outputs)}
        own = {roles.ids, roles.mask, roles.positions, *(c.past for c in roles.caches)}
        self._beside = beside(model, own, given or {})
        ids, first = infos[roles.ids], infos[roles.caches[0].past]
        self._roles, self._infos = roles, infos
        self._past, self._new = str(first.shape[LENGTH_AXIS]), ids.shape[1]
        batch = ids.shape[BATCH_AXIS]
        if isinstance(batch, Dim):
            raise InputError(
                f"the number of texts is open ('{batch}').",
                where=manifest.model,
                fix=f"compile it with --shape {batch}:1",
            )
        self.batch, self.vocabulary = int(batch), int(infos[roles.logits].shape[2])
        self.longest = self._limit() + 1
        self.max_length = self.longest if max_length is None else int(max_length)
        if not 1 <= self.max_length <= self.longest:
            past = model.symbols[self._past]
            raise InputError(
                f"max_length is {max_length}; the model takes texts of 1 to {self.longest} tokens.",
                where=manifest.model,
                fix=f"give less, or compile it with --shape {self._past}:0..{max(past.max, self.max_length)}"
                if self.longest == past.max + 1
                else "give less: the model itself goes no further",
            )
        self._session = model.new_session()
        self._fixed = tensors(self._beside, infos)
        self._use(self._new_caches(texts or self.batch, self.max_length))
        self._output = [info.name for info in model.outputs].index(roles.logits)

    def _new_caches(self, texts: int, max_length: int) -> list[Array]:
        """Buffers for as many texts of so many tokens; memory is taken when rows are written."""
        kept, made = self._roles.kept, []
        for cache in self._roles.caches:
            _, heads, _, depth = self._infos[cache.past].shape
            made.append(aligned_empty((texts, heads, max_length, stored.elements(depth, kept)), stored.dtype_of(kept)))
        return made

    def _use(self, caches: list[Array]) -> None:
        """Compute with these buffers from now on."""
        self._caches = caches
        kind = stored.CARRIERS[self._roles.kept]
        self._bound = {c.past: to_ffi(a, kind) for c, a in zip(self._roles.caches, caches, strict=True)}
        self._bound |= self._fixed

    def check(self, ids: Tokens) -> None:
        """Whether a text may begin with these tokens, if there is room for it.

        Raises:
            InputError: no tokens, one that is outside of the vocabulary, or more than the model takes.
        """
        self._checked(ids, 0, self.longest)

    def _limit(self) -> int:
        """The longest past to which one token can be added."""
        known, conditions = self._model.symbols, self._model.manifest.conditions
        new = {str(self._new): 1} if isinstance(self._new, Dim) else {}
        others = {name: r.min for name, r in known.items()} | sizes_of(self._beside, self._infos)
        low, high = 0, known[self._past].max
        while low < high:  # conditions are of the kind past + new <= 2048
            middle = (low + high + 1) // 2
            fits = all(holds(c, others | new | {self._past: middle}) for c in conditions)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _checked(self, ids: Tokens, length: int, most: int = 0) -> Array:
        """Tokens [batch, new] of the model's own type, for texts of `length` tokens that become `most` (default: as
        many as there is room for) at most."""
        most = most or self.max_length
        given = np.asarray(ids)
        shaped = given.reshape(1, -1) if given.ndim < 2 and self.batch == 1 else given
        if given.dtype.kind not in "iu" and given.size:
            raise InputError(f"tokens are {given.dtype}.", where=self._where, fix="pass integers")
        if shaped.ndim != 2 or shaped.shape[0] != self.batch or shaped.shape[1] == 0:
            raise InputError(
                f"tokens have the shape {given.shape}.",
                where=self._where,
                fix=f"pass one or more for {self.batch} texts",
            )
        wrong = shaped[(shaped < 0) | (shaped >= self.vocabulary)]
        if wrong.size:
            raise InputError(
                f"the token {int(wrong[0])} is not in the vocabulary of {self.vocabulary}.",
                where=self._where,
                fix="use the model's own tokenizer",
            )
        if length + shaped.shape[1] > most:
            raise InputError(
                f"{length} tokens and {shaped.shape[1]} more are more than max_length, {most}.",
                where=self._where,
                fix="make the decoder with a larger max_length, or truncate or reset it",
            )
        return np.ascontiguousarray(shaped, self._infos[self._roles.ids].numpy_dtype)

    def _call(
        self, tokens: Array, length: int, all_scores: bool = False, places: Any = None, apart: bool = False
    ) -> Array:
        """One call of the compiled code on checked tokens behind `length`; the scores [batch, 1 or all of them,
        vocabulary]. Code whose head is no product gives all scores whatever it is asked for.

        Args:
            places, apart: see :meth:`tvmopt.runtime.model.Model.call_in_place`.
        """
        roles, count = self._roles, tokens.shape[1]
        if not isinstance(self._new, Dim) and count != self._new:
            raise InputError(
                f"the model takes {self._new} tokens at a time, and {count} are left.",
                where=self._where,
                fix="compile it without binding the number of tokens",
            )
        total, wanted = length + count, count if all_scores else 1
        given: dict[str, Any] = {roles.ids: to_ffi(tokens, self._infos[roles.ids].dtype)}
        if roles.mask:
            given[roles.mask] = self._tensor(roles.mask, np.ones((self.batch, total)))
        if roles.positions:
            stand = np.arange(length, total) if places is None else places[1]
            given[roles.positions] = self._tensor(roles.positions, np.broadcast_to(stand, tokens.shape))
        results = self._model.call_in_place(self._session, given | self._bound, length, wanted, places, apart)
        return from_ffi(results[self._output], self._infos[roles.logits])[:, -wanted:].copy()

    @property
    def piece(self) -> int:
        """How many tokens a call takes at most."""
        if self._roles.one_token and isinstance(self._new, Dim):
            return 1
        return self._model.symbols[str(self._new)].max if isinstance(self._new, Dim) else int(self._new)

    def _tensor(self, name: str, values: Array) -> Any:
        info = self._infos[name]
        return to_ffi(np.ascontiguousarray(values, info.numpy_dtype), info.dtype)


class Decoder(State):
    """The state of one text, or of a batch of texts of one length. Not for several threads at once.

    Args:
        model: a loaded model, whose `decoder` makes this.
        max_length: tokens of the longest text, prompt included; default: as many as the model takes.

    Attributes:
        length: tokens of the text so far.

    Raises:
        InputError: the model is no decoder, or not one for as many tokens; `given` does not fit.
    """

    def __init__(self, model: Runs, max_length: int | None = None, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, max_length, given=given)
        self.length = 0

    def __repr__(self) -> str:
        return f"<tvmopt decoder of {self._where}: {self.length} of {self.max_length} tokens>"

    # -- tokens in, scores out ---------------------------------------------------------------------------

    def prefill(self, ids: Tokens, *, all_scores: bool = False) -> Array:
        """Put tokens behind those that are there.

        Args:
            ids: [new], or [batch, new] for a batch of texts.
            all_scores: give the scores behind every new token, not only behind the last one: the code then multiplies
                by the head as often.

        Returns:
            The scores of the token that follows: [vocabulary], or [batch, vocabulary]; with `all_scores` those of the
            token behind each new one: [new, vocabulary], or [batch, new, vocabulary].

        Raises:
            InputError: no tokens, one that is outside of the vocabulary, or more than `max_length` in all. Nothing
                has changed then.
        """
        tokens = self._checked(ids, self.length)
        if not all_scores:
            return self._put(tokens)
        scores = self._through(tokens, all_scores=True)
        return scores if self.batch > 1 else scores[0]

    def step(self, token: int | Tokens) -> Array:
        """One token more (of each text); otherwise like :meth:`prefill`."""
        tokens = np.asarray(token)
        return self.prefill(tokens.reshape(self.batch, 1) if tokens.size == self.batch else tokens)

    def truncate(self, length: int) -> None:
        """Forget what is behind the first `length` tokens.

        Raises:
            InputError: there are fewer.
        """
        if not 0 <= length <= self.length:
            raise InputError(
                f"there is no text of {length} tokens in one of {self.length}.", fix=f"give 0 to {self.length}"
            )
        self.length = int(length)

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def fork(self) -> Decoder:
        """Another decoder with the same text, to go on with differently."""
        other = Decoder(self._model, self.max_length, self._beside)
        for mine, theirs in zip(self._caches, other._caches, strict=True):
            theirs[:, :, : self.length] = mine[:, :, : self.length]
        other.length = self.length
        return other

    def generate(
        self, ids: Tokens, *, max_new_tokens: int = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
        seed: int | None = None, stop: Collection[int] = (),
    ) -> Iterator[int]:  # fmt: skip
        """Put tokens behind those that are there, and yield those that follow, one by one as they are computed.

        It ends after `max_new_tokens`, behind a token of `stop` (which is yielded), or when the text is full. The
        last token that was yielded is not in the text yet; a caller who breaks off goes on from there.

        Args:
            temperature, top_k, top_p, seed: see :func:`tvmopt.runtime.sampling.choice`; the default takes the token
                with the highest score.

        Raises:
            InputError: see :meth:`prefill`; a number that is out of range; a batch of several texts.
        """
        if self.batch != 1:
            raise InputError(f"tokens are generated for one text, and this decoder has {self.batch}.", fix="use step")
        if max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {max_new_tokens}.", fix="give 0 or more")
        choose = sampling.choice(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return self._generated(self._checked(ids, self.length), max_new_tokens, choose, frozenset(stop))

    def _generated(self, tokens: Array, count: int, choose: sampling.Choice, stop: frozenset[int]) -> Iterator[int]:
        for left in range(count, 0, -1):
            token = choose(self._put(tokens))
            yield token
            if token in stop or left == 1 or self.length >= self.max_length:
                return
            tokens = np.full((1, 1), token, tokens.dtype)

    # -- inside ------------------------------------------------------------------------------------------

    def _put(self, tokens: Array) -> Array:
        """Run the model on checked tokens; the scores behind the last one."""
        scores = self._through(tokens)[:, -1]
        return scores if self.batch > 1 else scores[0]

    def _through(self, tokens: Array, all_scores: bool = False) -> Array:
        """Run the model on checked tokens, in pieces that it takes; scores [batch, 1 or all of them, vocabulary]."""
        piece, before = self.piece, self.length
        found: list[Array] = []
        try:
            for start in range(0, tokens.shape[1], piece):
                part = np.ascontiguousarray(tokens[:, start : start + piece])
                scores = self._call(part, self.length, all_scores)
                self.length += part.shape[1]
                found = [*found, scores] if all_scores else [scores]
        except BaseException:  # an interrupt between two pieces, too: the text is what it was
            self.length = before
            raise
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)
