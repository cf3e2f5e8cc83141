"""How an error is measured: in ulps, relative, by what a type could not hold."""

from __future__ import annotations

import pytest
import torch

from ampcompare.why.diff.measures import measure

TRUTH = torch.linspace(0.1, 7.3, 1001, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_rounded_once_is_at_most_half_an_ulp_off(dtype: torch.dtype):
    found = measure([TRUTH.to(dtype)], [TRUTH], dtype)
    assert found
    assert found.ulps_most is not None
    assert 0.4 < found.ulps_most <= 0.5
    assert found.relative == pytest.approx(torch.finfo(dtype).eps / 5, rel=0.6)


def test_ulps_below_the_normal_numbers_are_the_smallest_number():
    tiny = 2.0**-24  # of fp16
    found = measure([torch.tensor([3 * tiny]).half()], [torch.tensor([tiny]).double()], torch.float16)
    assert found
    assert found.ulps == 2


def test_what_a_type_could_not_hold_is_counted_as_shares():
    found = measure(
        [torch.tensor([0.0, 0.0, 65504, float("inf"), float("nan")]).half()],
        [torch.tensor([1e-9, 0.5, 1e5, 1e6, 1.0]).double()],
        torch.float16,
    )
    assert found
    assert (found.flushed, found.saturated, found.infinite, found.nan) == (0.2, 0.2, 0.2, 0.2)
    assert found.relative is None
    assert found.size == float("inf")


def test_a_scaled_tensor_is_measured_against_the_scaled_truth():
    found = measure([TRUTH.float() * 1024], [TRUTH], torch.float32, scale=1024)
    assert found
    assert found.relative is not None
    assert found.relative < 1e-7


def test_tensors_are_measured_as_one():
    """A bias whose true gradient is next to nothing weighs nothing beside its weight."""
    small = torch.tensor([1e-12]).double()
    found = measure([TRUTH, small * 2], [TRUTH, small], torch.float32)
    assert found
    assert found.relative is not None
    assert found.relative < 1e-12
