"""apex's loss scale: its schedule against a few-line reference, its bounds, its state."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompare.precision.backends import PrecisionOptions
from ampcompare.precision.scaler import LossScaler


def _reference(
    overflows: list[bool], scale: float, window: int, floor: float | None, ceiling: float
) -> list[tuple]:
    """The schedule in words: halve on overflow, double after `window` good ones, within the bounds."""
    scale, counter, trace = min(scale, ceiling), 0, []
    for overflow in overflows:
        if overflow:
            scale, counter = scale / 2 if floor is None else max(floor, scale / 2), 0
        else:
            counter += 1
            if counter == window:
                scale, counter = min(ceiling, scale * 2), 0
        trace.append((scale, counter))
    return trace


def _scaler(**options) -> LossScaler:
    return LossScaler(PrecisionOptions(**options))


def _run(scaler: LossScaler, overflows: list[bool]) -> list[tuple]:
    trace = []
    for overflow in overflows:
        scaler.found_inf.zero_()
        scaler.unscale_([torch.ones(2), torch.tensor([1.0, math.inf if overflow else 1.0])])
        scaler.update()
        trace.append((scaler.scale.item(), scaler.unskipped.item()))
    return trace


powers = st.integers(0, 24).map(lambda n: 2.0**n)


@settings(max_examples=150)
@given(
    overflows=st.lists(st.booleans() | st.just(False), max_size=40),
    start=powers,
    window=st.integers(1, 6),
    floor=st.none() | st.integers(-4, 10).map(lambda n: 2.0**n),
    ceiling=st.integers(10, 24).map(lambda n: 2.0**n) | st.just(3000.0),
)
def test_schedule_is_that_of_the_reference(overflows, start, window, floor, ceiling):
    scaler = _scaler(init_scale=start, growth_interval=window, min_loss_scale=floor, max_loss_scale=ceiling)
    assert _run(scaler, overflows) == _reference(overflows, start, window, floor, ceiling)


def test_static_one_does_nothing_and_loading_another_scale_ends_that():
    scaler = _scaler(loss_scale=1.0)
    assert scaler.does_nothing
    gradient = torch.ones(1)
    scaler.load_state_dict({"loss_scale": 4.0, "unskipped": 3})
    scaler.unscale_([gradient])
    assert gradient.item() == 0.25
    scaler.load_state_dict({"loss_scale": 1.0, "unskipped": 3})
    assert scaler.does_nothing
    assert not _scaler(init_scale=1.0).does_nothing  # dynamic: it checks
