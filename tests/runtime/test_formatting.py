"""Figures in words: three digits, signs of what is shown, spreads that vary, and no number without end."""

import math

import pytest

from ampcompare.runtime import formatting

# What is shown of each value, by the function that shows it.
SHOWN = {
    formatting.number: {0.3061: "0.306", 9.999: "10.0", 999.6: "1,000", 1e-6: "1.00e-06", 5.7e21: "5.70e+21"},
    formatting.signed: {-1.234: "−1.23", 0.0: "±0.00", 2: "+2.00", -7e-15: "±0.00"},
    formatting.duration: {3.21: "3.2 s", 48.4: "48 s", 725: "12 min 5 s", 7380: "2 h 3 min", math.inf: "∞ s"},
    formatting.level: {0.95: "95%", 0.975: "97.5%", 1 - 0.05 / 3: "98.33%", 1 - 2 * 0.0204: "95.92%"},
}


def test_a_value_is_shown_so(subtests: pytest.Subtests):
    for shows, table in SHOWN.items():
        for value, text in table.items():
            with subtests.test(shows=shows.__name__, value=value):
                assert shows(value) == text


def test_an_interval_that_varied_is_never_without_spread():
    assert formatting.interval(1.88, 1.92, formatting.number) == "1.88 to 1.92"
    assert formatting.interval(1.8996, 1.9004, formatting.number) == "1.90 to 1.90"
    assert formatting.interval(1.9, 1.9, formatting.number) == "no spread"
    assert formatting.interval(None, None, formatting.number) == ""


@pytest.mark.parametrize(
    ("ends", "least", "decimals"),
    [
        ((-0.31, 0.30), 2, 2),
        ((-8.2, 30.1), 0, 0),
        ((0.0012, 0.0034), 2, 3),
        ((-27.7, -0.4), 0, 1),  # "±0" would look as if the interval held no change
        ((-math.inf, 3.0), 2, 2),
    ],
)
def test_decimals_follow_the_width_of_an_interval(ends, least, decimals):
    assert formatting.decimals_of_interval(ends, (0.0,), least) == decimals


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((9.7e-9, 1.0e-8), ["+9.7e-09", "+1.0e-08"]),
        ((9.7e-6, 1.0e-5), ["+0.0000097", "+0.0000100"]),
        ((-0.31, 0.30), ["−0.31", "+0.30"]),
    ],
)
def test_the_ends_of_a_tiny_interval_are_not_shown_as_zero(ends, shown):
    decimals = formatting.decimals_of_interval(ends, (0.0,), 2)
    assert [formatting.signed_fixed(end, decimals) for end in ends] == shown
