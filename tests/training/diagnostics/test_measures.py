"""What is measured: memory, energy, gradients."""

import math
from types import SimpleNamespace

import pynvml
import pytest
import torch
from support.outside import Outside

from ampcompare.system.device import is_out_of_memory
from ampcompare.training.resources import EnergyCounter
from ampcompare.training.update_probe import FIRST_EXPONENT, gradient_norm, measure_gradients


def test_underflow_fraction_equals_that_of_a_cast_to_fp16():
    exponents = torch.arange(-40.0, 5.0, 0.25)
    gradient = torch.cat([2.0**exponents, -(2.0**exponents), torch.zeros(7)])
    for scale in (1.0, 1024.0):
        found = measure_gradients(
            {"a": [gradient[:50], gradient[50:100]], "b": [gradient[100:]]}, torch.tensor(scale)
        )
        for part, suffix in ((gradient, ""), (gradient[:100], "/a"), (gradient[100:], "/b")):
            nonzero = (part != 0).sum()
            for key, factor in (("underflow_fraction", scale), ("underflow_fraction_unscaled", 1.0)):
                flushed = ((part * factor).half() == 0) & (part != 0)
                assert found[f"grad/{key}{suffix}"].item() == pytest.approx((flushed.sum() / nonzero).item())
            lost = ((part * scale).half().isinf()).sum() / nonzero
            assert found[f"grad/overflow_fraction{suffix}"].item() == pytest.approx(lost.item())
            assert found[f"grad/zero_fraction{suffix}"].item() == pytest.approx(
                (part == 0).float().mean().item()
            )


def test_overflow_begins_where_fp16_rounds_to_infinity_and_exponents_are_counted_in_their_bins():
    edge = torch.tensor([65519.996, 65520.0, math.inf, math.nan, 0.0, 1.0, -1.5, 2.0**-60])
    assert edge.half().isfinite().tolist() == [True, False, False, False] + [True] * 4
    found = measure_gradients({"all": [edge]}, torch.tensor(1.0))
    assert found["grad/overflow_fraction"].item() == pytest.approx(3 / 7)
    histogram = found["grad/exponents"]
    assert histogram[-FIRST_EXPONENT] == 2  # 1 and -1.5
    assert (histogram[0], histogram[15 - FIRST_EXPONENT], histogram.sum()) == (1, 2, 5)


def test_gradient_norm_equals_the_norm_of_all_elements_in_fp32():
    gradients = [torch.full((3,), 300.0, dtype=torch.float16), torch.full((4,), 400.0)]
    expected = math.sqrt(3 * 300**2 + 4 * 400**2)  # the half part alone would overflow in fp16
    assert gradient_norm(gradients).item() == pytest.approx(expected)


@pytest.fixture
def counts(outside: Outside) -> list[int]:
    """Return the next values (mJ) of the energy counter of NVML's only GPU; behind them the GPU is lost."""
    values: list[int] = []

    def read(handle: object) -> int:
        if not values:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return values.pop(0)

    outside.replace(pynvml, "nvmlInit", lambda: None)
    outside.replace(pynvml, "nvmlDeviceGetHandleByUUID", lambda name: object())
    outside.replace(pynvml, "nvmlDeviceGetTotalEnergyConsumption", read)
    outside.replace(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0"))
    return values


def test_energy_is_the_difference_of_two_counts(counts: list[int]):
    counts += [0, 1000, 4500]
    meter = EnergyCounter(torch.device("cuda"))
    meter.start()
    assert meter.joules() == 3.5


def test_a_failing_energy_counter_is_given_up_with_one_warning(
    counts: list[int], caplog: pytest.LogCaptureFixture
):
    counts += [0, 1000]
    meter = EnergyCounter(torch.device("cuda"))
    for _ in range(2):
        meter.start()
        assert meter.joules() is None
    (message,) = caplog.messages
    assert "energy counter failed (GPU is lost)" in message


OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def behind(first: BaseException, second: BaseException) -> BaseException:
    second.__cause__ = first
    return second


@pytest.mark.parametrize(
    ("problem", "is_one"),
    [
        (OUT, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (behind(OUT, RuntimeError("backend='inductor' raised")), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (UserWarning("out of memory"), False),
    ],
)
def test_out_of_memory_is_recognised_in_an_error_and_its_causes(problem: BaseException, is_one: bool):
    assert is_out_of_memory(problem) is is_one
