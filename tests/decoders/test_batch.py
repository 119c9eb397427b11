"""Texts of different lengths in one decoder: the tokens of each are those that it has alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.decoders.small import POSITIONS, VOCABULARY, greedy, small_decoder
from tvmopt import api
from tvmopt.errors import InputError
from tvmopt.runtime.model import Model, load

Compiled = tuple[onnx.ModelProto, Path]
LENGTHS = (1, 7, 16, 33, 2, 8, 9, 15, 17, 31, 32, 5)


@pytest.fixture(scope="module")
def model(compiled: Compiled) -> Model:
    return load(compiled[1])


def prompts(seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCABULARY, n).tolist() for n in LENGTHS]


def test_many_prompts_have_the_tokens_of_each_alone(compiled: Compiled, model: Model) -> None:
    given = prompts()
    batch = model.decoder(POSITIONS, sequences=4)
    texts: list[list[int]] = [[] for _ in given]
    order = []
    for number, token in batch.generate(given, max_new_tokens=10):
        texts[number].append(token)
        order.append(number)
    assert texts == [greedy(compiled[0], prompt, 10) for prompt in given]
    assert order[:4] == [0, 1, 2, 3] and order[4:8] == [0, 1, 2, 3]  # a step is of all that are there
    assert order.index(4) < order.index(11) and batch.free == 4


def test_texts_join_and_leave_between_steps(model: Model) -> None:
    """Slots are used again; what others had written there does no harm."""
    generator = np.random.default_rng(1)
    batch = model.decoder(40, sequences=3)
    alone = {}
    for turn in range(30):
        if batch.free and turn % 3 != 2:
            prompt = generator.integers(0, VOCABULARY, int(generator.integers(1, 30)))
            slot = batch.add(prompt)
            alone[slot] = model.decoder(40)
            np.testing.assert_allclose(batch.scores(slot), alone[slot].prefill(prompt), rtol=1e-5, atol=1e-5)
        stepping = [s for s, length in batch.lengths.items() if length < 40 and generator.random() < 0.8]
        tokens = {slot: int(generator.integers(0, VOCABULARY)) for slot in stepping}
        for slot, scores in batch.step(tokens).items():
            np.testing.assert_allclose(scores, alone[slot].step(tokens[slot]), rtol=1e-4, atol=1e-4)
        assert batch.lengths == {slot: d.length for slot, d in sorted(alone.items())}
        if turn % 4 == 3 and batch.lengths:
            slot = int(generator.choice(list(batch.lengths)))
            batch.remove(slot)
            del alone[slot]
    assert batch.lengths


def test_a_text_is_extended_and_truncated(model: Model) -> None:
    batch, alone = model.decoder(40, sequences=2), model.decoder(40)
    batch.add([4, 8])
    slot = batch.add([1, 2, 3])
    alone.prefill([1, 2, 3])
    np.testing.assert_allclose(batch.extend(slot, [5, 6, 7, 8]), alone.prefill([5, 6, 7, 8]), rtol=1e-5, atol=1e-5)
    batch.truncate(slot, 4)
    alone.truncate(4)
    with pytest.raises(InputError, match="was truncated"):
        batch.scores(slot)
    with pytest.raises(InputError, match="no text of 5 tokens"):
        batch.truncate(slot, 5)
    np.testing.assert_allclose(batch.step({slot: 9})[slot], alone.step(9), rtol=1e-5, atol=1e-5)
    batch.step()  # the token with the highest score, of every text
    assert batch.lengths == {0: 3, slot: 6}


def test_there_is_room_for_longer_texts_when_they_come(model: Model) -> None:
    batch, alone = model.decoder(3, sequences=3), model.decoder(40)
    batch.add([9])
    slot = batch.add([1, 2, 3])
    alone.prefill([1, 2, 3])
    with pytest.raises(InputError, match="max_length, 3"):
        batch.step({slot: 4})
    for room, token in ((4, 4), (40, 5), (6, 6)):
        batch.resize(room)
        assert batch.lengths == {0: 1, slot: alone.length} and batch.max_length == room
        np.testing.assert_allclose(batch.step({slot: token})[slot], alone.step(token), rtol=1e-5, atol=1e-5)
    for wrong in (5, 0, batch.longest + 1):  # fewer than there are, more than the model takes
        with pytest.raises(InputError, match=f"max_length is {wrong}"):
            batch.resize(wrong)
    batch.check([1] * batch.longest)
    with pytest.raises(InputError, match="max_length"):
        batch.check([1] * (batch.longest + 1))


def test_drawn_tokens_are_those_of_each_alone(model: Model) -> None:
    given = prompts(3)[:5]
    rules = {"max_new_tokens": 8, "temperature": 0.8, "top_k": 9, "seed": 4}
    found: list[list[int]] = [[] for _ in given]
    for number, token in model.decoder(sequences=2).generate(given, **rules):
        found[number].append(token)
    assert found == [list(model.decoder().generate(prompt, **rules)) for prompt in given]
    assert len({tuple(one) for one in found}) > 2


def test_texts_end_with_a_token_or_when_they_are_full(model: Model) -> None:
    given = prompts()[:4]
    every = [list(model.decoder(40).generate(prompt, max_new_tokens=60)) for prompt in given]
    stop = every[1][2]
    found: list[list[int]] = [[] for _ in given]
    for number, token in model.decoder(40, sequences=3).generate(given, max_new_tokens=60, stop=[stop]):
        found[number].append(token)
    assert found == [one[: one.index(stop) + 1] if stop in one else one for one in every]
    assert len(found[3]) == 8 or stop in found[3]  # 33 tokens, 7 more, and one behind them


def test_errors_leave_the_texts_as_they_were(model: Model) -> None:
    batch = model.decoder(8, sequences=2)
    batch.add([1, 2, 3])
    slot = batch.add([4] * 8)
    before = batch.scores(0).copy()
    for call, told in (
        (lambda: batch.add([1]), "room for 2 texts"),
        (lambda: batch.step({slot: 1}), "max_length, 8"),
        (lambda: batch.step({0: 1, slot: 1}), "max_length, 8"),
        (lambda: batch.step({0: VOCABULARY}), "not in the vocabulary"),
        (lambda: batch.step({5: 1}), "no text in slot 5"),
        (lambda: batch.extend(0, [1] * 6), "max_length, 8"),
        (lambda: batch.remove(7), "no text in slot 7"),
        (lambda: batch.generate([[1]]), "no slot is free"),
        (lambda: batch.generate([[1]], max_new_tokens=-1), "max_new_tokens"),
        (lambda: model.decoder(sequences=0), "room for 0 texts"),
        (lambda: model.decoder(sequences=33), "more than the 32 tokens"),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert told in error.value.told(), error.value.told()
        assert batch.lengths == {0: 3, slot: 8} and np.array_equal(batch.scores(0), before)
    batch.remove(slot)
    with pytest.raises(InputError, match="no text in slot"):
        batch.step({slot: 1})
    with pytest.raises(InputError, match="max_length, 8"):
        batch.generate([[1], [2] * 9])
    assert batch.lengths == {0: 3} and batch.add([7]) == slot


def test_a_generation_that_is_broken_off_leaves_the_slots_free(model: Model) -> None:
    batch = model.decoder(sequences=2)
    kept = batch.add([9, 9])
    for _ in batch.generate(prompts(), max_new_tokens=5):
        break
    assert list(batch.lengths) == [kept]


def test_the_command_takes_several_prompts(compiled: Compiled) -> None:
    model, path = compiled
    given = ("--tokens", "1,5,9,22", "--tokens", "3", "--tokens", "8,8,30", "--max-new-tokens", "5", "--sequences", "2")
    done = tvmopt("generate", path, *given, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = [greedy(model, prompt, 5) for prompt in ([1, 5, 9, 22], [3], [8, 8, 30])]
    assert found["tokens"] == expected and found["tokens_per_second"] > 0 and found["sequences"] == 2
    done = tvmopt("generate", path, *given)
    lines = done.stdout.splitlines()
    assert lines[:3] == [f"{i}: {' '.join(map(str, tokens))}" for i, tokens in enumerate(expected, 1)]
    assert "3 prompts, 2 at a time; 15 tokens" in " ".join(lines[3:])


def test_a_mask_that_is_not_full_is_refused(compiled: Compiled, model: Model) -> None:
    """The code reads places instead; without the pass it computes what ONNX says."""
    feeds = {
        i.name: np.ones(i.shape, i.dtype) for i in model.inputs_at({n: 4 for n in model.symbols}) if "ids" not in i.name
    }
    feeds |= {"input_ids": np.array([[1, 2, 3, 4]])}
    if "position_ids" in {i.name for i in model.inputs}:
        feeds["position_ids"] = np.array([[4, 5, 6, 8]])
        told = "positions are not 4 to 7"
    else:
        feeds["attention_mask"][0, 3] = 0
        told = "mask hides tokens"
    with pytest.raises(InputError, match=told) as error:
        model.run(feeds)
    assert "--without tvmopt.PlaceTokens" in error.value.told()


def test_models_that_read_one_text_say_so(tmp_path: Path) -> None:
    made = api.compile(small_decoder(local_window_size=5), output=tmp_path / "m.tvmopt", verify=False)
    assert not made.artifact.manifest.decoder.placed
    with pytest.raises(InputError, match="one text at a time"):
        load(tmp_path / "m.tvmopt").decoder(sequences=2)
