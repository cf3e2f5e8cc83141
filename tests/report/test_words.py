from __future__ import annotations

import pytest

from ampcompare.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1.9, "1.90"),
        (0.3061, "0.306"),
        (9.999, "10.0"),
        (36.54, "36.5"),
        (999.6, "1,000"),
        (1204.4, "1,204"),
        (0.0123, "0.0123"),
        (1e-6, "1.00e-06"),
        (-0.5, "-0.500"),
    ],
)
def test_number_keeps_three_digits(value, text):
    assert words.number(value) == text


def test_signs_are_those_of_the_rounded_figure():
    assert [words.change(v) for v in (0.59, 1.0004, 1.032, None)] == ["−41 %", "±0.0 %", "+3.2 %", "–"]
    assert [words.signed(v) for v in (-1.234, 0.0, 2)] == ["−1.23", "±0.00", "+2.00"]


def test_durations_and_lists():
    assert [words.duration(s) for s in (None, 3.21, 48.4, 725, 7380)] == [
        "–",
        "3.2 s",
        "48 s",
        "12 min 5 s",
        "2 h 3 min",
    ]
    assert [words.listed(x) for x in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert (words.plural(1, "run"), words.plural(2, "run")) == ("1 run", "2 runs")


def test_printable_takes_terminal_escapes_out():
    assert words.printable("a\x1b[31mb\nc\u202ed") == "a\ufffd[31mb\ufffdc\ufffdd"


def test_an_interval_that_varied_is_never_without_spread():
    assert words.interval(1.88, 1.92, words.number) == "1.88 to 1.92"
    assert words.interval(1.8996, 1.9004, words.number) == "±0.0004"
    assert words.interval(0.5869, 0.5871, words.change) == "±0.01 %"
    assert words.interval(1.9, 1.9, words.number) == "no spread"
    assert words.interval(None, None, words.number) == ""


def test_slow_is_said_as_slow_and_durations_as_times():
    assert [words.speed(v) for v in (1.9, 0.97, 0.0446, None)] == ["1.90×", "0.970×", "22× slower", "–"]
    assert [words.of_time(v) for v in (0.5, 0.526, 1.0, 1.9, 0.333)] == [
        "half the time",
        "53 % of the time",
        "the same time",
        "1.90× the time",
        "a third of the time",
    ]


def test_levels_keep_what_tells_them_apart():
    assert [words.level(v) for v in (0.95, 0.975, 1 - 0.05 / 3, 1 - 2 * 0.0204)] == [
        "95 %",
        "97.5 %",
        "98.33 %",
        "95.92 %",
    ]


def test_what_no_number_can_hold_is_infinite_in_words():
    endless = float("inf")
    assert (words.number(endless), words.count(endless), words.duration(endless)) == ("∞", "∞", "∞ s")
