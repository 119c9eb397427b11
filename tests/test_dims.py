"""Sizes as polynomials: canonical, right wherever they are evaluated, and decided only where all calls agree."""

from __future__ import annotations

import math
import random

import pytest

from tvmopt.dims import Dim, OpenSize, Range, at, equal, holds, identifier, interval, least, less, most, near, parse

NAMES = ("a", "b", "c")
SIZES = [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 7, "c": 31}, {"a": 33, "b": 16, "c": 1}, {"a": 5, "b": 9, "c": 8}]


def drawn(generator: random.Random, depth: int) -> str:
    """The text of a random size."""
    if depth == 0:
        return generator.choice([*NAMES, str(generator.randint(1, 40))])
    left, right = drawn(generator, depth - 1), drawn(generator, depth - 1)
    kind = generator.choice(["+", "+", "-", "*", "//", "%", "min", "max"])
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})"
    return f"({left}) {kind} ({generator.randint(1, 9) if kind in ('//', '%') else right})"


def value(size, sizes):
    return size.at(sizes) if isinstance(size, Dim) else size


@pytest.mark.parametrize("seed", range(200))
def test_any_expression_has_its_value_and_its_text(seed):
    text = drawn(random.Random(seed), 3)
    size = parse(text)
    for sizes in SIZES:
        expected = eval(text, {"min": min, "max": max}, dict(sizes))
        assert value(size, sizes) == expected
        low, high = interval(size, {})
        assert low <= expected <= high
    assert parse(str(size)) == size
    bound = {"b": 7}
    assert value(value(size, bound), {"a": 2, "c": 31}) == value(size, {"a": 2, "b": 7, "c": 31})


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, 32, 33])
@pytest.mark.parametrize("scale", [-9, -1, 1, 2, 7, 16])
@pytest.mark.parametrize("offset", [-33, -8, -1, 0, 1, 7, 31])
def test_floor_division_rounds_down(divisor, scale, offset):
    size = (parse("a") * scale + offset) // divisor
    for a in (1, 2, 7, 8, 9, 31, 32, 33):
        assert value(size, {"a": a}) == (a * scale + offset) // divisor


def test_equal_sizes_are_equal_texts():
    h = Dim.symbol("h")
    assert (h - 1) // 2 + 1 == (h + 1) // 2 == -(-h // 2)
    assert ((h + 1) // 2 + 1) // 2 == (h + 3) // 4
    assert (4 * h + 2) // 4 == h and (h * 768) // 768 == h and (h * h) // h == h
    assert h - h == 0 and isinstance(h - h, int)
    assert least(h, h + 1) == h and most(h, 1) == h


def test_a_sum_of_many_minima_has_bounds():
    """SSD's boxes: the best 400 of each of 90 classes. Each minimum doubled the time."""
    boxes = sum((parse(f"min(400, found{i})") for i in range(90)), 0)
    assert interval(boxes, {}) == (0, 36000)
    assert interval(parse("min(300, n) + min(7, m) - n"), {}) == (-math.inf, 7)


def test_minima_in_minima_have_bounds():
    size = parse("n")
    for i in range(16):
        size = most(least(size + i, parse(f"m{i}"), {}), 3, {})
    assert interval(size, {"n": Range(1, 9, 1)})[0] == 3


@pytest.mark.parametrize(
    "text", ["(k % n) - n + 1", "n - 1 - (k % n)", "k % (2*n + m)", "min(m, k % n) - k % n", "-k % n"]
)
@pytest.mark.parametrize("low", [1, 3])
def test_bounds_of_a_remainder_hold(text, low):
    """Of a size divided by an open one: rolls were not known to move by less than the axis has."""
    size, ranges = parse(text), {name: Range(low, 9) for name in "kmn"}
    found = [size.at({"k": k, "m": m, "n": n}) for k in range(low, 10) for m in range(low, 10) for n in range(low, 10)]
    bounds = interval(size, ranges)
    assert bounds[0] <= min(found)
    assert max(found) <= bounds[1]


def test_a_remainder_is_less_than_what_divides():
    n = parse("4*h - 4*((3*h)//4)")
    assert less(2 % n, n, {})
    assert least(n, 2 % n) == 2 % n
    assert most(0, -2 % n) == -2 % n


@pytest.mark.parametrize("seed", range(20))
def test_the_joined_form_has_the_same_values(seed):
    """TVM bounds one term after the other; what it gets is no less a size for that."""
    draw = random.Random(seed)
    d = draw.randint(2, 9)
    size = parse(f"({draw.randint(1, 3)}*n*m - m*((({draw.randint(1, d)}*n) + {draw.randint(0, 9)})//{d}))*k + m")
    for _ in range(50):
        sizes = {name: draw.randint(1, 40) for name in "kmn"}
        assert size.build(sizes.__getitem__, min, max, joined=True) == size.at(sizes)


@pytest.mark.parametrize("seed", range(20))
def test_quotients_that_make_a_whole_are_joined_without_another_value(seed):
    draw = random.Random(seed)
    d, e, few, many = draw.randint(2, 9), draw.randint(2, 30), *(draw.randint(1, 7) for _ in range(2))
    size = parse(f"{few}*n*m + {many}*m*(({d - 1}*n)//{d}) + m*((n + {d - 1})//{d}) - {many}*m*(({e - 1}*n)//{e})")
    for _ in range(50):
        sizes = {name: draw.randint(1, 40) for name in "mn"}
        assert size.build(sizes.__getitem__, min, max, joined=True) == size.at(sizes)


def test_a_picture_that_is_filled_up_twice_is_of_terms_that_can_be_bounded():
    """To whole patches of 4, and these to whole windows of 7, as DaViT does: 316 GB of memory were planned."""
    windows = parse("(h + 3)//4 + 6*h + (3*h)//4 - 7*((27*h)//28)")
    assert str(windows.build(Dim.symbol, least, most, joined=True)) == "7*((h + 27)//28)"


def test_nothing_divided_by_nothing():
    """Sizes at which an axis has no elements are tried, and found wrong; they ended in a ZeroDivisionError."""
    assert parse("n + 5//n").at({"n": 0}) == 0


def test_undecided_is_an_error_and_not_a_guess():
    a, b = parse("a"), parse("b")
    assert a + 1 > a and a >= 1 and not a < 1 and a != b
    for question in (lambda: a < b, lambda: a > 1, lambda: int(a), lambda: range(a), lambda: equal(a, b, {})):
        with pytest.raises(OpenSize):
            question()
    assert less(a, 513, {"a": Range(1, 512)}) and not less(a, 1, {})
    assert equal(a, a, {}) and not equal(a, -1, {}) and not equal(a, a + 1, {})


@pytest.mark.parametrize(
    "text", ["", "a +", "f(a)", "a.b", "1.5", "__import__('os')", "a**b", "min(a)", "9" * 9000, "[a]", "a//0"]
)
def test_texts_that_are_no_size(text):
    with pytest.raises(ValueError, match="size"):
        parse(text)


@pytest.mark.parametrize("text", ["", "0x8", "1..", "..", "..4@5", "1..2..3", "1..4@", "4..1", "-1", "1.5", "²"])
def test_texts_that_are_no_range(text):
    with pytest.raises(ValueError):
        Range.of(text)


def test_names_become_identifiers():
    for text in ("Dyn:0", "batch size", "in", "min", "7up", "", "größe"):
        assert identifier(text).isidentifier() and parse(identifier(text)).symbols() == {identifier(text)}


def test_sizes_near_those_that_break_a_condition():
    conditions = ["2*((h + 31)//32) == (h + 15)//16", "h <= 200"]
    ranges = {"h": Range(1, 200)}
    found = near({"h": 100}, ranges, conditions)
    assert all(holds(c, found) for c in conditions) and 64 <= found["h"] <= 100
    assert near({"h": 33}, ranges, conditions, up=True)["h"] > 33
    assert near({"h": 100}, {"h": Range(1, 200)}, ["h == 300"]) == {}
    assert at((3, parse("h")), {"h": 4}) == (3, 4)
