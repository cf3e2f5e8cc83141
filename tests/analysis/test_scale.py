"""Estimates as text: the digits of the interval, which tell its ends from no change and from marks."""

import pytest

from ampcompare.analysis.scale import CHANGE, DIFFERENCE, RATIO, Scale
from ampcompare.analysis.statistics.estimate import Estimate, quantile


def estimate(value: float, half_width: float = 0.0, level: float = 0.95) -> Estimate:
    """Return an estimate with an interval of this half width; without one if it is 0."""
    error = half_width / quantile((1 + level) / 2, 4) if half_width else None
    return Estimate(value, (value, value), 5, error, df=4, level=level)


@pytest.mark.parametrize(
    ("scale", "value", "half_width", "text"),
    [
        (CHANGE, 0.59, 0.0238, "−41% (95% CI −43 to −39)"),
        (CHANGE, 0.998, 0.0009, "−0.2% (95% CI −0.3 to −0.1)"),
        (CHANGE, 1.0004, 0.0, "±0.0%"),
        (RATIO, 1.0012, 0.0002, "1.0012× (95% CI 1.0010 to 1.0014)"),
        (RATIO, 1.9, 1e-12, "1.90× (no spread)"),
        (DIFFERENCE, 0.0023, 0.0011, "+0.002 (95% CI +0.001 to +0.003)"),
    ],
)
def test_a_value_has_the_digits_of_its_interval(scale: Scale, value: float, half_width: float, text: str):
    assert scale.value_and_interval(estimate(value, half_width)) == text


def test_an_interval_has_digits_that_tell_its_ends_from_a_mark():
    near = estimate(1.52, 0.0199)
    assert RATIO.interval(near) == "1.50 to 1.54"
    assert RATIO.interval(near, [1.5]) == "1.5001 to 1.5399"
    assert DIFFERENCE.interval(estimate(0.0, 0.4996), [-0.5, 0.5]) == "−0.4996 to +0.4996"
