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
