"""Engines as decoders: a prompt, then tokens one by one - for `tvmopt bench --decode`.

Each keeps its caches the way its users would: ours in place, onnxruntime's bound from call to call without a copy into
NumPy, onnxruntime-genai's and llama.cpp's as their own classes do it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.bench.records import Job
from tvmopt.bench.runners.base import Array, Runner, require, version
from tvmopt.bench.runners.onnxruntime import OnnxRuntime
from tvmopt.bench.runners.tvmopt import Tvmopt
from tvmopt.errors import InputError
from tvmopt.runtime.batch import Batch
from tvmopt.runtime.decoder import Decoder

PROMPT, FED = "prompt", "fed"
"""Names of the bound inputs: the prompt's tokens, and those that follow it when scores are compared."""

TEXTS = "texts"
"""The input that tells how many texts go on together in the phase of that name."""

TOGETHER = "together"
"""The phase in which a call is one token more of each of several texts."""

SCORES = "scores"
"""The output: the scores behind the prompt and behind each token that was fed, [1 + fed, vocabulary]."""


class DecoderRunner(Runner):
    """A call is a whole prompt, or one token: the one with the highest score before; or that of each of several texts,
    of which the first one's scores are told."""

    several = False
    """Whether it takes several texts together."""

    def bind(self, inputs: Mapping[str, Array]) -> None:
        self.prompt = [int(t) for t in inputs[PROMPT]]
        self.fed = [int(t) for t in inputs[FED]]
        self.texts = int(inputs[TEXTS][0]) if self.job.phase == TOGETHER else 1
        if self.texts > 1 and not self.several:
            raise InputError(
                "several texts together are not timed with it.",
                where=self.job.engine,
                fix="leave it out, or leave out --sequences",
            )
        self.ready()
        self.scores = self.begin()
        self.done = 0

    def run(self) -> None:
        if self.job.phase == "prefill":
            self.scores = self.begin()
            return
        if self.done == len(self.fed):
            self.rewind()
            self.done = 0
        self.done += 1
        self.scores = self.step(int(self.scores.argmax()))

    def outputs(self) -> dict[str, Array]:
        rows = [np.array(self.begin(), np.float32).reshape(-1)]
        rows += [np.array(self.step(token), np.float32).reshape(-1) for token in self.fed]
        self.rewind()
        self.done = 0
        return {SCORES: np.stack(rows)}

    def ready(self) -> None:
        """Make room for the prompt and all tokens behind it."""

    @abstractmethod
    def begin(self) -> Array:
        """Forget everything, take the prompt; the scores behind it."""

    @abstractmethod
    def rewind(self) -> None:
        """Forget what is behind the prompt."""

    @abstractmethod
    def step(self, token: int) -> Array:
        """Take one token; the scores behind it."""


class Together:
    """A batch of texts as a decoder of one: the first is the prompt, each other one a token shorter."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.next = batch, dict[int, int]()

    def reset(self) -> None:
        self.batch.reset()

    def prefill(self, prompt: list[int]) -> Array:
        for text in range(self.batch.sequences):
            slot = self.batch.add(prompt[: max(1, len(prompt) - text)])
            self.next[slot] = int(self.batch.scores(slot).argmax())
        return self.batch.scores(0)

    def truncate(self, length: int) -> None:
        for slot in self.batch.lengths:
            self.batch.truncate(slot, max(1, length - slot))

    def step(self, token: int) -> Array:
        found = self.batch.step(self.next | {0: token})
        self.next = {slot: int(scores.argmax()) for slot, scores in found.items()}
        return found[0]


class TvmoptDecoder(DecoderRunner):
    """:class:`tvmopt.runtime.decoder.Decoder`, or :class:`tvmopt.runtime.batch.Batch`."""

    builds, several = True, True
    options = Tvmopt.options

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.whole = Tvmopt(replace(job, shapes={}))

    def build(self, path: Path) -> None:
        self.whole.build(path)

    def load(self) -> dict[str, str]:
        return {**self.whole.load(), "transfers": "none: caches in place"}

    def ready(self) -> None:
        model, room = self.whole.model, len(self.prompt) + len(self.fed)
        self.decoder: Decoder | Together = (
            model.decoder(room) if self.texts == 1 else Together(model.decoder(room, sequences=self.texts))
        )

    def begin(self) -> Array:
        self.decoder.reset()
        scores: Array = self.decoder.prefill(self.prompt)
        return scores

    def rewind(self) -> None:
        self.decoder.truncate(len(self.prompt))

    def step(self, token: int) -> Array:
        scores: Array = self.decoder.step(token)
        return scores


class OnnxRuntimeDecoder(DecoderRunner):
    """onnxruntime's CPU provider with `io_binding`: a call's caches are the next one's inputs as they are.

    The job's shapes are those of the empty caches, which a file may leave open. Several texts are rows of one length.
    """

    several = True
    options = OnnxRuntime.options

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.whole = OnnxRuntime(replace(job, shapes={}))

    def load(self) -> dict[str, str]:
        from tvmopt.importer.decoder import find, onnx_interface

        facts = self.whole.load()
        self.roles = find(*onnx_interface(self.job.model))
        if not self.roles:
            raise InputError("the model is no decoder: no cache was found.", where=self.job.model)
        return {**facts, "transfers": "caches bound as they are returned (io_binding)"}

    def ready(self) -> None:
        self.ort = require("onnxruntime", "onnxruntime")
        self.session = self.whole.session
        self.types = {i.name: np.dtype(i.type[7:-1].replace("float", "float32")) for i in self.session.get_inputs()}
        self.kept: dict[str, Any] = {}

    def begin(self) -> Array:
        empty = {
            c.past: np.zeros((self.texts, *self.job.shapes[c.past][1:]), self.types[c.past]) for c in self.roles.caches
        }
        self.length = 0
        self.caches = {name: self.ort.OrtValue.ortvalue_from_numpy(array) for name, array in empty.items()}
        scores = self._call(self.prompt)
        self.kept = self.caches
        return scores

    def rewind(self) -> None:
        self.length, self.caches = len(self.prompt), self.kept

    def step(self, token: int) -> Array:
        return self._call([token])

    def _call(self, tokens: list[int]) -> Array:
        roles, binding = self.roles, self.session.io_binding()
        total = self.length + len(tokens)
        given = {roles.ids: [tokens], roles.mask: [[1] * total], roles.positions: [list(range(self.length, total))]}
        for name, values in given.items():
            if name:
                binding.bind_cpu_input(name, np.array(values * self.texts, self.types[name]))
        for name, value in self.caches.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(roles.logits)
        for cache in roles.caches:
            binding.bind_output(cache.present)
        self.session.run_with_iobinding(binding)
        logits, *caches = binding.get_outputs()
        self.caches = dict(zip((c.past for c in roles.caches), caches, strict=True))
        self.length = total
        scores: Array = logits.numpy()[0, -1]
        return scores


class OnnxRuntimeGenai(DecoderRunner):
    """onnxruntime-genai's `Generator` on the folder of the model, which its own builder wrote."""

    options: Mapping[str, str] = {}

    def load(self) -> dict[str, str]:
        self.genai = require("onnxruntime_genai", "onnxruntime-genai")
        folder = Path(self.job.model).parent
        if not (folder / "genai_config.json").is_file():
            raise InputError(
                "there is no genai_config.json beside the model.",
                where=str(folder),
                fix="leave onnxruntime-genai out, or write the model by its builder",
            )
        config = self.genai.Config(str(folder))
        threads = {"intra_op_num_threads": self.job.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model = self.genai.Model(config)
        return {
            "version": version("onnxruntime-genai"),
            "threads": str(self.job.threads),
            "precision": "as in the model",
            "transfers": "none: caches of its own",
        }

    def ready(self) -> None:
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(max_length=len(self.prompt) + len(self.fed) + 1, do_sample=False)
        self.generator = self.genai.Generator(self.model, params)

    def begin(self) -> Array:
        if self.generator.token_count():
            self.generator.rewind_to(0)
        return self._call(self.prompt)

    def rewind(self) -> None:
        self.generator.rewind_to(len(self.prompt))

    def step(self, token: int) -> Array:
        return self._call([token])

    def _call(self, tokens: list[int]) -> Array:
        self.generator.append_tokens(np.array(tokens, np.int32))
        scores: Array = np.asarray(self.generator.get_logits())
        last: Array = scores.reshape(-1, scores.shape[-1])[-1]
        return last


class LlamaCpp(DecoderRunner):
    """llama.cpp on a GGUF file of the same weights, which the caller names: ``llama-cpp:gguf=FILE``."""

    options: Mapping[str, str] = {"gguf": "the same model as llama.cpp reads it"}

    def load(self) -> dict[str, str]:
        self.package = require("llama_cpp", "llama-cpp-python")
        if not Path(self.job.options.get("gguf", "")).is_file():
            raise InputError(
                "there is no GGUF file.", where="llama-cpp", fix="llama-cpp:gguf=FILE names the same model as GGUF"
            )
        return {
            "version": version("llama-cpp-python"),
            "threads": str(self.job.threads),
            "precision": Path(self.job.options["gguf"]).name,
            "transfers": "none: caches of its own",
        }

    def ready(self) -> None:
        threads = {"n_threads": self.job.threads, "n_threads_batch": self.job.threads}
        room = len(self.prompt) + len(self.fed) + 1
        self.model: Any = self.package.Llama(
            self.job.options["gguf"], n_ctx=room, n_batch=len(self.prompt), verbose=False, **threads
        )

    def begin(self) -> Array:
        self.model.reset()
        return self._call(self.prompt)

    def rewind(self) -> None:
        self.model.n_tokens = len(self.prompt)  # `eval` takes what is behind out of the caches

    def step(self, token: int) -> Array:
        return self._call([token])

    def _call(self, tokens: list[int]) -> Array:
        self.model.eval(tokens)
        pointer = self.package.llama_get_logits_ith(self.model.ctx, -1)
        scores: Array = np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),)).copy()
        return scores
