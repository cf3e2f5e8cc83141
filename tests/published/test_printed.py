"""A published figure is its value and the interval that its digits leave; all else is refused in a line."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ampcompare.published.printed import printed


@given(value=st.decimals(-(10**6), 10**6, places=None, allow_nan=False), places=st.integers(0, 9))
def test_the_interval_is_every_number_that_is_printed_so(value: Decimal, places: int):
    text = f"{value:.{places}f}"
    found = printed(text)
    half = Decimal(5).scaleb(-places - 1)
    assert found.value == pytest.approx(float(text))
    ends = float(Decimal(text) - half), float(Decimal(text) + half)
    assert (found.low, found.high) == pytest.approx(ends)
    assert found.text == text
    assert found.is_rounding
    assert found.low < found.high


@given(h=st.integers(0, 999), minutes=st.integers(0, 59), s=st.integers(0, 59))
def test_a_duration_is_in_seconds_and_known_to_its_last_unit(h: int, minutes: int, s: int):
    total = 3600 * h + 60 * minutes
    short = printed(f"{h}h{minutes}min")
    assert (short.text, short.value, short.low, short.high) == (
        f"{h}h{minutes}min",
        total,
        total - 30,
        total + 30,
    )
    found = printed(f"{h} h {minutes} min {s}s")
    assert (found.value, found.low, found.high) == (total + s, total + s - 0.5, total + s + 0.5)
    assert printed(f"{h}h").high == 3600 * h + 1800


@given(st.integers(0, 10**12))
def test_commas_between_thousands_are_none_of_the_number(value: int):
    assert printed(f"{value:,}").value == value
    assert printed(value).value == value


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(2, 99) | st.none())
def test_a_figure_with_an_interval_of_its_own_keeps_it(low: float, above: float, more: float, n: int | None):
    value, high = low + above, low + above + more
    found = printed({"value": value, "low": low, "high": high, "n": n, "confidence": 0.9})
    assert (found.value, found.low, found.high, found.n, found.confidence) == (value, low, high, n, 0.9)
    assert not found.is_rounding


def test_what_is_no_figure_is_refused_with_how_to_write_it(subtests: pytest.Subtests):
    texts = ["", "0,24", "1,23", "24 %", "1e3", "nan", "0x10", "--1", "1.", ".5", "6h54", "min", "9" * 41]
    for text in [*texts, True, None, [], 10**400]:
        with (
            subtests.test(text=text),
            pytest.raises(ValidationError, match=r'no figure; expected it as .* "0\.240"'),
        ):
            printed(text)


def test_an_interval_is_around_its_value(subtests: pytest.Subtests):
    for wrong in (
        {"low": 2},
        {"high": 0},
        {"n": 1},
        {"n": True},
        {"confidence": 1.0},
        {"value": float("inf")},
    ):
        with subtests.test(wrong=wrong), pytest.raises(ValidationError):
            printed({"value": 1, "low": 0, "high": 2} | wrong)
