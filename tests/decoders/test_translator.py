"""Decoders beside an encoder: what they look at is computed and put in place once, then only read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.decoders.small import greedy as small_greedy
from tests.decoders.small import merged_decoder, small_decoder
from tests.decoders.test_decoder import WATCH
from tests.decoders.translator import (
    POSITIONS,
    caches_of,
    encoder_model,
    encoder_output,
    first_model,
    greedy,
    merged_model,
    step_model,
)
from tvmopt import api
from tvmopt.errors import ArtifactError, InputError
from tvmopt.generation import encoded
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime.artifact import read_manifest
from tvmopt.runtime.model import load

PROMPT = [1, 5, 9, 22]
LENGTHS = (1, 7, 8, 9, 17, 33)


@pytest.fixture(scope="session")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the steps alone, which verification has passed."""
    path = tmp_path_factory.mktemp("translator") / "step.tvmopt"
    made = api.compile(step_model(), output=path)
    assert made.artifact.manifest.accuracy["verified"], made.artifact.manifest.accuracy
    return path


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_tokens_are_those_of_onnxruntime(step: Path, length: int) -> None:
    """The first call of onnxruntime's is of another file: ours begins with caches of no tokens."""
    hidden = encoder_output(length, seed=length)
    decoder = load(step).decoder(**caches_of(hidden))
    ours = list(decoder.generate(PROMPT, max_new_tokens=POSITIONS))
    assert ours == greedy(hidden, PROMPT, len(ours)) and len(set(ours)) > 5
    assert len(ours) == POSITIONS - len(PROMPT) + 1


def test_what_it_looks_at_decides(step: Path) -> None:
    model, (one, other) = load(step), (encoder_output(9, seed=s) for s in (1, 2))
    tokens = [list(model.decoder(**caches_of(h)).generate(PROMPT, max_new_tokens=20)) for h in (one, other)]
    assert tokens[0] != tokens[1]
    mask = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0]])
    masked = model.decoder(**caches_of(one), encoder_attention_mask=mask)
    assert list(masked.generate(PROMPT, max_new_tokens=20)) == greedy(one, PROMPT, 20, mask) != tokens[0]


def test_forks_and_truncation_look_at_the_same(step: Path) -> None:
    model = load(step)
    caches = caches_of(encoder_output(9))
    d = model.decoder(max_length=20, **caches)
    whole = d.prefill(PROMPT)
    d.truncate(2)
    fork = d.fork()
    for one in (d, fork):
        np.testing.assert_allclose(one.prefill(PROMPT[2:]), whole, rtol=1e-5, atol=1e-5)


def test_inputs_that_do_not_fit(step: Path) -> None:
    model, caches = load(step), caches_of(encoder_output(9))
    name = "past_key_values.1.encoder.value"
    others = {n: a for n, a in caches.items() if n != name}
    for given, told in (
        ({}, 'decoder(**{"past_key_values.0.encoder.key": ...'),
        (others, name),
        ({**caches, "encoder_hidden_states": 1}, "'encoder_hidden_states'"),
        ({**others, name: caches[name][:, :, :5]}, "axis 2"),
        ({**others, name: caches[name].astype(np.float64)}, "float64"),
        ({**others, name: caches[name][0]}, "the shape is"),
        ({**caches, "encoder_attention_mask": np.ones((1, 8), np.int64)}, "axis 2"),
    ):
        with pytest.raises(InputError) as error:
            model.decoder(**given)
        assert told in error.value.told(), error.value.told()
    with pytest.raises(InputError, match="max_length"):
        model.decoder(max_length=POSITIONS + 1, **caches)


def test_arrays_that_do_not_lie_in_order_are_copied(step: Path) -> None:
    model, caches = load(step), caches_of(encoder_output(9))
    turned = {n: np.asfortranarray(a) for n, a in caches.items()}
    expected = model.decoder(**caches).prefill(PROMPT)
    np.testing.assert_array_equal(model.decoder(**turned).prefill(PROMPT), expected)


def test_a_model_that_does_not_tell_the_order_takes_one_token_at_a_time(tmp_path: Path) -> None:
    """TrOCR as optimum writes it: no mask hides later tokens from earlier ones, so several at once would be wrong."""
    path = tmp_path / "m.tvmopt"
    api.compile(step_model(causal=False), output=path)
    assert read_manifest(path).decoder.one_token
    hidden = encoder_output(9)
    decoder = load(path).decoder(**caches_of(hidden))
    assert list(decoder.generate(PROMPT, max_new_tokens=20)) == greedy(hidden, PROMPT, 20)


COUNT = """
import ctypes, sys
import numpy as np
from tvmopt.runtime.model import load
watch = ctypes.CDLL(sys.argv[2])
watch.seen.restype = ctypes.c_long
caches = dict(np.load(sys.argv[3]))
d = load(sys.argv[1]).decoder(**caches)
d.prefill(range(1, 17))
for token in range(3):
    d.step(token)                                          # the pool has its blocks
least = min(a.nbytes for a in caches.values())             # of 33 rows; the text has 20
assert least > 20 * 4 * 8 * 4
watch.watch(ctypes.c_long(20 * 4 * 8 * 4))
for step in range(1000):
    d.truncate(19)
    d.step(step % 7)
print(watch.seen(0), watch.seen(1))
"""


@pytest.mark.skipif(not shutil.which("cc") or sys.platform != "linux", reason="needs a C compiler and glibc")
def test_a_step_copies_neither_cache(step: Path, tmp_path: Path) -> None:
    """Counted in the C library, over 1,000 steps."""
    source, shim, caches = (tmp_path / name for name in ("watch.c", "watch.so", "caches.npz"))
    source.write_text(WATCH)
    np.savez(caches, **caches_of(encoder_output(33)))
    subprocess.run(["cc", "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", shim, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(step), str(shim), str(caches)],
        env={**os.environ, "LD_PRELOAD": str(shim)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    allocated, copied = map(int, done.stdout.split())
    assert copied == 0 and allocated <= 10  # Python's own arenas


def test_no_kernel_moves_a_cache(step: Path) -> None:
    """Loops of a kernel are no call of memcpy: what each of them is for is in the report."""
    names = {str(kernel["name"]) for kernel in read_manifest(step).report["kernels"]}
    assert any("attention" in name for name in names)
    assert not [name for name in names if "transpose" in name or "cached_rows" in name], names


def _feeds(hidden: np.ndarray) -> dict[str, np.ndarray]:
    return {"encoder_hidden_states": hidden}


@pytest.fixture(scope="session", params=["merged", "two files"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One artifact with the step and what it computes once, of one file with an If and of two files."""
    folder = tmp_path_factory.mktemp("translator")
    onnx.save(merged_model() if request.param == "merged" else step_model(), folder / "m.onnx")
    onnx.save(first_model(), folder / "first.onnx")
    first = () if request.param == "merged" else ("--first", folder / "first.onnx")
    done = tvmopt("compile", folder / "m.onnx", *first, "-o", folder / "m.tvmopt")
    assert done.returncode == 0, done.stderr
    assert "encoder_hidden_states" in done.stdout and "verified, too" in " ".join(done.stdout.split())
    return folder / "m.tvmopt"


@pytest.mark.parametrize("length", LENGTHS)
def test_one_file_takes_the_encoders_output(whole: Path, length: int) -> None:
    hidden = encoder_output(length, seed=length)
    d = load(whole).decoder(encoder_hidden_states=hidden)
    ours = list(d.generate(PROMPT, max_new_tokens=POSITIONS))
    assert ours == greedy(hidden, PROMPT, len(ours)) and len(set(ours)) > 5
    given = load(whole).decoder(**caches_of(hidden))  # what is there already is not computed again
    assert list(given.generate(PROMPT, max_new_tokens=POSITIONS)) == ours


def test_a_weight_is_in_one_of_the_two_programs(whole: Path) -> None:
    made = artifacts.read(whole)
    assert made.beginning is not None
    both = [{w.tobytes() for w in one.weights if w.size > 1} for one in (made, made.beginning)]
    assert both[1] and not both[0] & both[1]


def test_a_file_of_both_that_is_damaged(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        place = next(i for i in archive.infolist() if i.filename == "beginning.tvmopt")
    data[place.header_offset + 6000] ^= 1
    (tmp_path / "m.tvmopt").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"beginning\.tvmopt does not match"):
        load(tmp_path / "m.tvmopt")


def test_inputs_of_the_beginning_that_do_not_fit(whole: Path) -> None:
    model, hidden = load(whole), encoder_output(9)
    for given, told in (
        ({}, "decoder(encoder_hidden_states=...)"),
        (_feeds(hidden[:, :, :5]), "encoder_hidden_states"),
        (_feeds(hidden) | {"picture": hidden}, "no input 'picture'"),
    ):
        with pytest.raises(InputError) as error:
            model.decoder(**given)
        assert told in error.value.told(), error.value.told()


def test_the_command(whole: Path, tmp_path: Path) -> None:
    hidden = encoder_output(9)
    np.save(tmp_path / "h.npy", hidden)
    given = ("--tokens", "1,5,9,22", "--max-new-tokens", "6", "--json")
    done = tvmopt("generate", whole, *given, "-i", f"encoder_hidden_states={tmp_path / 'h.npy'}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == greedy(hidden, PROMPT, 6)
    done = tvmopt("generate", whole, *given)
    assert done.returncode == 2 and "encoder_hidden_states" in done.stderr and "Traceback" not in done.stderr
    done = tvmopt("inspect", whole)
    assert "looks at encoder_hidden_states" in " ".join(done.stdout.split())


def test_an_encoder_computes_what_it_looks_at(whole: Path, tmp_path: Path) -> None:
    onnx.save(encoder_model(), tmp_path / "encoder.onnx")
    api.compile(tmp_path / "encoder.onnx", output=tmp_path / "encoder.tvmopt")
    x = encoder_output(9, seed=3)
    np.save(tmp_path / "x.npy", x)
    done = tvmopt(
        "generate", whole, "--tokens", "1,5,9,22", "--max-new-tokens", "6", "--json",
        "--encoder", tmp_path / "encoder.tvmopt", "-i", f"features={tmp_path / 'x.npy'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == greedy(np.tanh(x), PROMPT, 6)


def test_a_first_call_that_does_not_fit(tmp_path: Path) -> None:
    onnx.save(step_model(), tmp_path / "step.onnx")
    onnx.save(first_model(layers=1), tmp_path / "first.onnx")
    done = tvmopt("compile", tmp_path / "step.onnx", "--first", tmp_path / "first.onnx")
    assert done.returncode == 2 and "past_key_values.1.encoder.key" in done.stderr
    done = tvmopt("compile", tmp_path / "first.onnx", "--first", tmp_path / "first.onnx")
    assert done.returncode == 2 and "reads no caches" in done.stderr


def test_what_two_programs_cannot_be(whole: Path, tmp_path: Path) -> None:
    onnx.save(merged_model(), tmp_path / "m.onnx")
    for options, told in (
        (("--emit", "c-archive", "-o", tmp_path / "c"), "no C archive is made"),
        (("--strip-weights",), "stay in its file"),
        (("--target", "x86-64-v3+x86-64-v4"), "one target"),
        (("--threads", "1+2"), "one target"),
        (("--target", "nvidia-h100"), "CPUs"),
    ):
        done = tvmopt("compile", tmp_path / "m.onnx", *options)
        assert done.returncode == 2 and told in " ".join(done.stderr.split()), done.stderr
    done = tvmopt("refit", whole, tmp_path / "m.onnx", "-o", tmp_path / "r.tvmopt")
    assert done.returncode == 2 and "two programs" in done.stderr


def test_an_encoder_that_computes_the_caches(step: Path) -> None:
    """As onnxruntime-genai's builder exports Whisper: what leaves as `present...` is what the step reads."""
    hidden = encoder_output(9)
    caches = {name.replace("past_key_values", "present"): a for name, a in caches_of(hidden).items()}

    class Encoder:
        inputs = ()

        def run(self, given: object) -> dict[str, np.ndarray]:
            return {**caches, "encoder_hidden_states": hidden}

    model = load(step)
    found = {name: a for name, a in encoded(Encoder(), {}).items() if name in model.looks_at}  # type: ignore[arg-type]
    tokens = list(model.decoder(**found).generate(PROMPT, max_new_tokens=9))
    assert tokens == greedy(hidden, PROMPT, 9)


def test_one_file_with_both_forms_of_a_decoder_without_an_encoder(tmp_path: Path) -> None:
    """As optimum wrote GPT-2: the step computes prompts, too."""
    onnx.save(merged_decoder(), tmp_path / "m.onnx")
    done = tvmopt("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tvmopt")
    assert done.returncode == 0 and "agrees with float64" in done.stdout, done.stderr
    tokens = list(load(tmp_path / "m.tvmopt").decoder().generate(PROMPT, max_new_tokens=20))
    assert tokens == small_greedy(small_decoder("plain"), PROMPT, 20)


def test_a_branch_that_is_chosen_is_a_function(tmp_path: Path) -> None:
    """`--value use_cache_branch=1` compiles that branch alone, caches of the encoder's output being inputs."""
    made = api.compile(merged_model(), values={"use_cache_branch": [True]}, output=tmp_path / "m.tvmopt")
    assert made.artifact.beginning is None and made.artifact.manifest.accuracy["verified"]


def test_what_looks_at_one_form_says_so(tmp_path: Path) -> None:
    onnx.save(merged_model(), tmp_path / "m.onnx")
    for word in ("compare", "tune"):
        done = tvmopt(word, tmp_path / "m.onnx")
        told = " ".join(done.stderr.split())
        assert done.returncode == 2 and "two forms of a decoder" in told, (word, told)
        assert "--value use_cache_branch=1" in told and "Traceback" not in told
    onnx.save(step_model(), tmp_path / "step.onnx")
    for name in ("step.onnx", "m.onnx"):
        done = tvmopt("bench", tmp_path / name, "--decode")
        assert done.returncode == 2 and "looks at an encoder's output" in " ".join(done.stderr.split()), done.stderr
