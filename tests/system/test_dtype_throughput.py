"""The probe of rates: how much work it dares, what it leaves behind."""

import pytest
import torch

from ampcompare.system import dtype_throughput as module
from ampcompare.system.dtype_throughput import DTYPES, SIZES, measure_throughput, relative_rate

CPU = torch.device("cpu")


def _machine(monkeypatch: pytest.MonkeyPatch, gflops: dict[str, float], call: float = 1e-4) -> list:
    """Simulate a machine with these rates and this time per call; return the calls it received."""
    asked = []

    def convolution(device, dtype, size, last):
        def seconds():
            asked.append((dtype, size))
            if dtype not in gflops:
                raise RuntimeError("no kernel")
            return call + module._gflop(size) / gflops[dtype]

        return seconds

    monkeypatch.setattr(module, "_convolution", convolution)
    return asked


def _sizes(asked: list, dtype: str) -> list:
    return [size for name, size in asked if name == dtype]


def test_a_slow_dtype_is_measured_with_the_two_smallest_sizes(monkeypatch):
    asked = _machine(monkeypatch, {"float32": 100.0, "bfloat16": 500.0, "float16": 0.1})
    rates = measure_throughput(CPU)
    assert set(_sizes(asked, "float16")) == set(SIZES[:2])
    assert rates["float16"] == pytest.approx(0.1, rel=0.1)


def test_calls_that_wait_for_a_busy_machine_hide_no_rate(monkeypatch):
    _machine(monkeypatch, {"float32": 100.0, "bfloat16": 500.0, "float16": 0.5}, call=0.04)
    assert relative_rate(measure_throughput(CPU), "float16") < 0.1


def test_a_type_without_a_kernel_has_no_rate(monkeypatch):
    _machine(monkeypatch, {"float32": 100.0, "float16": 10.0})
    rates = measure_throughput(CPU)
    assert "bfloat16" not in rates
    assert relative_rate(rates, "bfloat16") == 0.0


@pytest.mark.parametrize("last", [False, True])
def test_this_machine_has_a_rate_for_fp32_and_16_bit_dtypes(last: bool):
    rates = measure_throughput(CPU, channels_last=last)
    assert set(rates) == set(DTYPES)
    assert relative_rate(rates, "float32") == 1.0


def test_threads_and_random_numbers_are_as_before():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():  # which a caller may be in
            measure_throughput(CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
