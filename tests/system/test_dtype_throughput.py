"""The probe of rates: how much work it dares, what it leaves behind."""

import pytest
import torch
from support.outside import Outside

from ampcompare.system.dtype_throughput import DTYPES, SIZES, measure_throughput, relative_rate

CPU = torch.device("cpu")


def test_a_slow_dtype_is_measured_with_the_two_smallest_sizes(outside: Outside):
    calls = outside.set_convolution_rates({"float32": 100.0, "bfloat16": 500.0, "float16": 0.1})
    rates = measure_throughput(CPU)
    smallest = {images * channels * side**2 for images, channels, side in SIZES[:2]}
    assert {values for dtype, values in calls if dtype == "float16"} == smallest
    assert rates["float16"] == pytest.approx(0.1, rel=0.1)


def test_calls_that_wait_for_a_busy_machine_hide_no_rate(outside: Outside):
    outside.set_convolution_rates({"float32": 100.0, "bfloat16": 500.0, "float16": 0.5}, call=0.04)
    assert relative_rate(measure_throughput(CPU), "float16") < 0.1


def test_a_type_without_a_kernel_has_no_rate(outside: Outside):
    outside.set_convolution_rates({"float32": 100.0, "float16": 10.0})
    rates = measure_throughput(CPU)
    assert "bfloat16" not in rates
    assert relative_rate(rates, "bfloat16") == 0.0


@pytest.mark.slow
def test_this_machine_has_a_rate_for_fp32_and_16_bit_dtypes():
    rates = measure_throughput(CPU)
    assert set(rates) == set(DTYPES)
    assert relative_rate(rates, "float32") == 1.0


def test_threads_and_random_numbers_are_as_before(outside: Outside):
    outside.set_convolution_rates(dict.fromkeys(DTYPES, 100.0))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():  # which a caller may be in
            measure_throughput(CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
