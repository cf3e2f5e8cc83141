"""Numbers read by the thousand against Python's own `float`, bit for bit."""

from __future__ import annotations

import random
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompare.records.decimals import read_decimals

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text("0123456789.-+eE_ ", min_size=1, max_size=30)
TEXTS |= FLOATS.map(repr) | st.integers(-(10**20), 10**20).map(str)
TEXTS |= st.tuples(st.integers(-(10**18), 10**18), st.integers(0, 22)).map(lambda t: f"{t[0]}.{t[1]:022}")


def read(texts: list[str]) -> tuple[list[float], list[bool]]:
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"\xff".join(encoded) + b"1" * 24, np.uint8)
    sizes = np.array([len(text) for text in encoded], dtype=np.int64)
    end = np.cumsum(sizes + 1) - 1
    values, certain = read_decimals(data, end - sizes, end)
    return values.tolist(), certain.tolist()


def check(texts: list[str]) -> float:
    """Hold what is certain to `float`; returns how much of it was."""
    values, certain = read(texts)
    for text, value, is_certain in zip(texts, values, certain, strict=True):
        if is_certain:
            assert struct.pack("<d", value) == struct.pack("<d", float(text)), text
    return sum(certain) / len(texts)


@settings(max_examples=300)
@given(st.lists(TEXTS, min_size=1, max_size=30))
def test_what_is_certain_is_what_float_gives(texts):
    check(texts)


def test_numbers_as_programs_log_them_are_certain():
    chance = random.Random(0)
    texts = [repr(chance.random()) for _ in range(20_000)]
    texts += [repr(chance.uniform(-1e4, 1e4)) for _ in range(20_000)]
    texts += [f"{chance.uniform(0, 100):.{n % 16}f}" for n in range(20_000)]
    texts += [str(n) for n in range(-1000, 20_000)]
    assert check(texts) > 0.95


def test_middles_between_two_floats_and_their_neighbours_are_right_or_not_certain():
    chance = random.Random(0)
    texts = []
    for _ in range(5_000):
        middle = Fraction(2 * chance.randrange(2**52, 2**53) + 1, 2 ** chance.randrange(1, 8))
        digits = int(middle * 10**3)
        texts += [f"{number // 1000}.{number % 1000:03}" for number in (digits - 1, digits, digits + 1)]
    check([text[:19] for text in texts])
    check([str(2 * chance.randrange(2**52, 2**53) + n) for n in range(3) for _ in range(1_000)])


@pytest.mark.parametrize("text", ["", "-", ".", "-.", "1e5", "1.2.3", "--1", "+1", "1" * 19, "0" * 25, " 1"])
def test_what_is_no_plain_number_is_not_certain(text):
    assert read([text or "x", "1.5"]) == ([pytest.approx(0, abs=np.inf), 1.5], [False, True])


def test_sign_of_zero_is_kept():
    values, certain = read(["-0", "0", "-0.0"])
    assert [str(value) for value in values] == ["-0.0", "0.0", "-0.0"]
    assert all(certain)
