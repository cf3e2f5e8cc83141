"""What the device does in a step, from the spans of its kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampcompare.bench.throughput.busy import Kernel, covered, profile_steps, summarise

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda x: (x[0], x[0] + x[1])), max_size=12
)


@given(SPANS)
def test_overlapping_kernels_count_once(spans: list[tuple[int, int]]):
    moments = {t for begin, end in spans for t in range(begin, end)}
    assert covered(spans) == len(moments)


def test_a_step_has_its_share_of_kernels_and_the_longest_come_first():
    kernels = [
        Kernel("conv", 0, 3000),
        Kernel("relu", 2000, 4000),
        Kernel("conv", 6000, 9000),
        Kernel("relu", 9000, 9500),
    ]
    found = summarise(kernels, steps=2)
    assert found["busy_ms"] == pytest.approx(3.75)
    assert found["kernels"] == 2
    assert [k["name"] for k in found["longest"]] == ["conv", "relu"]
    assert found["longest"][0] == {"name": "conv", "ms": pytest.approx(3.0), "count": 1.0}


def test_without_a_gpu_nothing_is_claimed():
    assert profile_steps(lambda: torch.ones(2) + 1, 3, torch.device("cpu")) is None
