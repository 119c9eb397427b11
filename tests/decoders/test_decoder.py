"""Decoders from end to end: tokens as onnxruntime gives them, a state that stays where it is, errors that leave it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.decoders.small import POSITIONS, VOCABULARY, greedy, small_decoder
from tvmopt import api
from tvmopt.errors import InputError
from tvmopt.runtime.model import load

Compiled = tuple[onnx.ModelProto, Path]
PROMPT = [1, 5, 9, 22]


def test_greedy_tokens_are_those_of_onnxruntime(compiled: Compiled) -> None:
    model, path = compiled
    ours = list(load(path).decoder().generate(PROMPT, max_new_tokens=POSITIONS))
    assert len(set(ours)) > 5  # else it says little
    assert ours == greedy(model, PROMPT, len(ours))
    assert len(ours) == POSITIONS - len(PROMPT) + 1  # until the text is full


@pytest.mark.parametrize(
    "more", [{"local_window_size": 5}, {"softcap": 2.0, "local_window_size": 9}, {"packed_table": True}], ids=str
)
def test_windows_softcaps_and_packed_tables(more: dict[str, Any], tmp_path: Path) -> None:
    """What Gemma 2, Mistral and models with a table in 4 bits have beside Llama; without it tokens are others."""
    model = small_decoder(**more)
    made = api.compile(model, output=tmp_path / "m.tvmopt")
    assert made.artifact.manifest.accuracy["verified"]
    ours = list(load(tmp_path / "m.tvmopt").decoder().generate(PROMPT, max_new_tokens=POSITIONS))
    assert ours == greedy(model, PROMPT, len(ours)) and len(set(ours)) > 5
    assert ours != greedy(small_decoder(), PROMPT, len(ours))


def test_a_call_by_itself_is_a_function(compiled: Compiled) -> None:
    """`Model.run` neither keeps a state nor changes its inputs: caches go in and out as ONNX says."""
    import onnxruntime

    model, path = compiled
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded, generator = load(path), np.random.default_rng(0)
    past_name = next(name for name in loaded.symbols if name.startswith("past"))
    for past, new in ((0, 1), (0, 7), (1, 1), (7, 1), (8, 3), (15, 1), (16, 16), (31, 2), (17, 31)):
        feeds = {}
        for info in loaded.inputs_at({past_name: past, "sequence": new}):
            if info.name == "input_ids":
                feeds[info.name] = generator.integers(0, VOCABULARY, info.shape)
            elif info.name == "position_ids":
                feeds[info.name] = np.arange(past, past + new)[None]
            elif info.name == "attention_mask":
                feeds[info.name] = np.ones(info.shape, np.int64)
            else:
                feeds[info.name] = generator.standard_normal(info.shape).astype(np.float32)
        before = {name: array.copy() for name, array in feeds.items()}
        ours = loaded.run(feeds)
        theirs = dict(zip(ours, session.run(list(ours), feeds), strict=True))
        for name, array in ours.items():
            np.testing.assert_allclose(array, theirs[name], rtol=2e-5, atol=2e-5, err_msg=f"{name} at {past}, {new}")
        assert all(np.array_equal(before[name], feeds[name]) for name in feeds)
        again = loaded.run(feeds)
        assert all(np.array_equal(again[name], ours[name]) for name in ours)


def test_pieces_truncation_and_forks_give_the_same_scores(compiled: Compiled) -> None:
    model = load(compiled[1])
    whole = model.decoder().prefill(range(1, 21))
    d = model.decoder(max_length=40)
    d.prefill(range(1, 9))
    d.prefill(range(9, 20))
    fork = d.fork()
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(d.step(20), whole, **close)
    d.step(3)
    d.truncate(19)
    np.testing.assert_allclose(d.step(20), whole, **close)
    assert (d.length, fork.length) == (20, 19)
    np.testing.assert_allclose(fork.step(20), whole, **close)
    d.reset()
    np.testing.assert_allclose(d.prefill(range(1, 21)), whole, **close)


def test_errors_leave_the_decoder_usable(compiled: Compiled) -> None:
    model = load(compiled[1])
    d = model.decoder(max_length=8)
    d.prefill([1, 2, 3])
    for ids, told in (
        ([], "pass one or more"),
        ([VOCABULARY], f"token {VOCABULARY} is not in the vocabulary"),
        ([-1], "token -1"),
        ([0.5], "pass integers"),
        (range(6), "max_length, 8"),
    ):
        with pytest.raises(InputError) as error:
            d.prefill(ids)
        assert told in error.value.told() and d.length == 3
    for length in (-1, 4):
        with pytest.raises(InputError):
            d.truncate(length)
    for given in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_new_tokens": -1}):
        with pytest.raises(InputError):
            d.generate([1], **given)
    for length in (0, POSITIONS + 1):
        with pytest.raises(InputError, match="max_length"):
            model.decoder(max_length=length)
    assert len(list(d.generate([4], max_new_tokens=99))) == 5  # until it is full
    with pytest.raises(InputError, match="max_length"):
        d.step(1)
    d.truncate(3)
    expected = model.decoder()
    expected.prefill([1, 2, 3])
    np.testing.assert_array_equal(d.step(4), expected.step(4))


def test_a_generation_that_is_broken_off(compiled: Compiled) -> None:
    model = load(compiled[1])
    d, whole = model.decoder(), list(model.decoder().generate(PROMPT, max_new_tokens=12))
    steps = d.generate(PROMPT, max_new_tokens=12)
    first = [next(steps) for _ in range(4)]
    steps.close()
    assert d.length == len(PROMPT) + 3  # the last one is not in the text yet
    assert first + list(d.generate(first[-1:], max_new_tokens=8)) == whole


def test_sampling_follows_its_seed(compiled: Compiled) -> None:
    model = load(compiled[1])

    def drawn(seed: int, **given: float) -> list[int]:
        return list(model.decoder().generate(PROMPT, max_new_tokens=16, temperature=2.0, seed=seed, **given))

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1, top_k=1) == list(model.decoder().generate(PROMPT, max_new_tokens=16))
    stop = drawn(1)[3]
    ended = list(model.decoder().generate(PROMPT, max_new_tokens=16, temperature=2.0, seed=1, stop=[stop]))
    assert ended == drawn(1)[: drawn(1).index(stop) + 1]


WATCH = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
static long least = 1L << 60;
static long events[2];
void watch(long bytes) { least = bytes; events[0] = events[1] = 0; }
long seen(int which) { return events[which]; }
static void note(int which, size_t n) { if ((long)n >= least) __sync_fetch_and_add(&events[which], 1); }
void *__libc_malloc(size_t); void *__libc_memalign(size_t, size_t); void *__libc_calloc(size_t, size_t);
void *malloc(size_t n) { note(0, n); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { note(0, n * m); return __libc_calloc(n, m); }
void *memalign(size_t a, size_t n) { note(0, n); return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { note(0, n); return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { note(0, n); *p = __libc_memalign(a, n); return *p ? 0 : 12; }
void *memcpy(void *to, const void *from, size_t n) {
  note(1, n); void *result = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory"); return result;
}
"""

COUNT = """
import ctypes, sys
from tvmopt.runtime.model import load
watch = ctypes.CDLL(sys.argv[2])
watch.seen.restype = ctypes.c_long
d = load(sys.argv[1]).decoder()
places = [a.ctypes.data for a in d._caches]
d.prefill(range(1, 17))
for token in range(3):
    d.step(token)                                        # the pool has its blocks
row = min(a.nbytes // a.shape[2] for a in d._caches)     # of one position: all heads
watch.watch(ctypes.c_long(4 * row))                      # a copy of the 19 rows that there are would be larger
for step in range(2000):
    d.truncate(19)
    d.step(step % 7)
counted = watch.seen(0), watch.seen(1)
assert places == [a.ctypes.data for a in d._caches]
print(*counted, max(a.nbytes for a in d._caches), row)
"""


@pytest.mark.skipif(not shutil.which("cc") or sys.platform != "linux", reason="needs a C compiler and glibc")
def test_a_step_neither_allocates_nor_copies_a_cache(compiled: Compiled, tmp_path: Path) -> None:
    """Counted in the C library, over 2,000 steps."""
    source, shim = tmp_path / "watch.c", tmp_path / "watch.so"
    source.write_text(WATCH)
    subprocess.run(["cc", "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", shim, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(compiled[1]), str(shim)],
        env={**os.environ, "LD_PRELOAD": str(shim)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    allocated, copied, largest, row = map(int, done.stdout.split())
    assert largest == POSITIONS * row  # the buffers have room for the longest text
    assert copied == 0 and allocated <= 10  # Python's own arenas


def test_inspect_shows_the_caches(compiled: Compiled) -> None:
    done = tvmopt("inspect", compiled[1])
    assert "2 caches, kept in place: past_key_values.0.key -> present.0.key" in done.stdout


def test_the_command(compiled: Compiled) -> None:
    model, path = compiled
    done = tvmopt("generate", path, "--tokens", "1,5,9,22", "--max-new-tokens", "6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == greedy(model, PROMPT, 6) and found["step_tokens_per_second"] > 0
    done = tvmopt("generate", path, "--tokens", "1,5,9,22", "--max-new-tokens", "6")
    assert done.stdout.splitlines()[0] == " ".join(map(str, found["tokens"]))
    for given, told in (
        (("--tokens", "1,99"), "vocabulary"),
        (("--tokens", "1,x"), "no list of tokens"),
        (("--prompt", "x"), "--tokenizer"),
        ((), "give a prompt"),
        (("--tokens", "1", "--sequences", "33"), "more than the 32 tokens"),
        (("--tokens", "1", "--tokens", "1,99"), "vocabulary"),
        (("--tokens", "1", "--tokens", "2", "--encoder", "e.tvmopt"), "takes one prompt"),
        (("--tokens", "1", "--max-length", "99"), "max_length"),
        (("--tokens", "1", "--stop", "</s>"), "is not known"),
    ):
        done = tvmopt("generate", path, *given)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_tokenizer(compiled: Compiled, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    options = ("--tokenizer", tmp_path / "tokenizer.json", "--max-new-tokens", "4")
    done = tvmopt("generate", compiled[1], "--prompt", "w1 w5 w9 w22", *options)
    tokens = greedy(compiled[0], PROMPT, 4)
    assert done.stdout.splitlines()[0] == " ".join(f"w{t}" for t in tokens), done.stderr
    done = tvmopt("generate", compiled[1], "--prompt", "w1 w5 w9 w22", "--stop", f"w{tokens[0]}", *options, "--json")
    assert json.loads(done.stdout)["text"] == f"w{tokens[0]}"
    done = tvmopt("generate", compiled[1], "--prompt", "w1", "--tokenizer", tmp_path / "none.json")
    assert done.returncode == 2 and "cannot read the tokenizer" in done.stderr


def test_what_is_no_decoder(tmp_path: Path) -> None:
    from tests.runtime.small import small_model
    from tvmopt import api

    path = tmp_path / "small.tvmopt"
    api.compile(small_model(), output=path, verify=False)
    with pytest.raises(InputError, match="no decoder"):
        load(path).decoder()
    assert tvmopt("generate", path, "--tokens", "1").returncode == 2


@pytest.mark.parametrize("prompt", [1, 2, 7, 31])
def test_scores_of_the_last_token_and_of_all(compiled: Compiled, prompt: int) -> None:
    """The head multiplies the last token alone, or all of them where that is asked for."""
    import onnxruntime

    model, path = compiled
    loaded = load(path)
    tokens = np.random.default_rng(prompt).integers(0, VOCABULARY, prompt)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    past_name = next(name for name in loaded.symbols if name.startswith("past"))
    feeds = {}
    for info in loaded.inputs_at({past_name: 0, "sequence": prompt}):
        kinds = {"input_ids": tokens, "position_ids": np.arange(prompt), "attention_mask": np.ones(prompt)}
        value = kinds.get(info.name, np.zeros(info.shape))
        feeds[info.name] = np.asarray(value, info.numpy_dtype).reshape(info.shape)
    expected = session.run(["logits"], feeds)[0][0]
    decoder, pieces = loaded.decoder(), loaded.decoder()
    every = decoder.prefill(tokens, all_scores=True)
    assert every.shape == (prompt, VOCABULARY)
    np.testing.assert_allclose(every, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pieces.prefill(tokens), expected[-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pieces.step(3), decoder.step(3), rtol=1e-5, atol=1e-5)
    results = loaded.run(feeds)
    np.testing.assert_allclose(results["logits"][0], expected, rtol=1e-4, atol=1e-4)


def test_the_code_is_told_how_many_scores_to_give(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, ...]] = []
    loaded = load(compiled[1])
    whole = loaded.call_in_place

    def watched(*args: Any) -> Any:
        results = whole(*args)
        found.extend(tuple(r.shape) for r in results if len(r.shape) == 3)
        return results

    monkeypatch.setattr(loaded, "call_in_place", watched)
    decoder = loaded.decoder()
    decoder.prefill(PROMPT)
    decoder.step(3)
    decoder.prefill(PROMPT, all_scores=True)
    assert found == [(1, 1, VOCABULARY), (1, 1, VOCABULARY), (1, len(PROMPT), VOCABULARY)]
