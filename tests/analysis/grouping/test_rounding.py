"""The digits to which logged values were rounded."""

import numpy as np
import pytest

from ampcompare.analysis.grouping.rounding import count_decimals, relative_resolution


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([1.0, 20.0, 300.0], 0),
        ([0.5, 12.0], 1),
        ([0.25, 0.5], 2),
        ([-0.125, 3.0], 3),
        ([1.000001, 2.0], 6),
        ([1.0000001, 2.0], None),
        ([1 / 3], None),
        ([np.float32(0.1), np.float32(12.3)], 1),  # as TensorBoard stores them
        ([0.0], 0),
        ([], None),
    ],
)
def test_decimals_are_those_to_which_all_values_were_rounded(values, decimals):
    assert count_decimals(np.array(values, dtype=float)) == decimals


def test_the_resolution_of_a_speed_is_its_last_decimal_relative_to_the_median():
    assert relative_resolution(np.array([0.25, 0.5, 0.75])) == pytest.approx(0.01 / 0.5)
    assert relative_resolution(np.array([100.0, 250.0, 310.0])) == pytest.approx(1 / 250)
    # Only finite values above 0 count, so the 0.125 and the infinity say nothing of the digits.
    assert relative_resolution(np.array([-0.125, 0.0, np.inf, np.nan, 4.0])) == pytest.approx(1 / 4)
    assert relative_resolution(np.array([1 / 3, 1 / 7])) == 0
    assert relative_resolution(np.array([])) == 0


def test_the_resolution_of_a_clock_is_relative_to_its_median_difference():
    clock = np.array([0.5, 1.5, 1.5, 4.5, 9.5])
    assert relative_resolution(clock, np.diff(clock)) == pytest.approx(0.1 / 3)  # of 1, 3 and 5 seconds
    assert relative_resolution(clock, np.zeros(4)) == 0
