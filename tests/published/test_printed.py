"""A published figure is its value and the interval that its digits leave."""

from __future__ import annotations

import pytest

from ampcompare.published.printed import Printed


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("0.240", 0.24, 0.0005),
        ("-3", -3, 0.5),
        (7, 7, 0.5),
        ("1,803", 1803, 0.5),
        ("1,234,567.8", 1234567.8, 0.05),
        ("6h54min", 24840, 30),
        ("6h", 21600, 1800),
        ("12min29s", 749, 0.5),
        ("1 h 2 min 3.5s", 3723.5, 0.05),
    ],
)
def test_the_interval_is_every_number_that_is_printed_so(text: str | int, value: float, half: float):
    found = Printed.model_validate(text)
    assert (found.text, found.is_rounding) == (str(text), True)
    assert (found.value, found.low, found.high) == pytest.approx((value, value - half, value + half))


def test_a_figure_with_an_interval_of_its_own_keeps_it():
    found = Printed.model_validate({"value": 2, "low": 1, "high": 2.5, "n": 3, "confidence": 0.9})
    assert (found.value, found.low, found.high, found.n, found.confidence) == (2, 1, 2.5, 3, 0.9)
    assert not found.is_rounding
    assert Printed.model_validate({"value": 2, "low": 1, "high": 2.5}).confidence == 0.95
