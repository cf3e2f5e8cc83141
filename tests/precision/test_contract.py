"""What the training loop may rely on under every backend, and what their loss scales do."""

import copy
import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rehearsal.stage import stage
from torch import nn

from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import Precision

SMALL = {"init_scale": 1024.0}
BACKENDS = {
    **{name: (name, SMALL) for name, backend in REGISTRY.items() if not backend.uses_tf32},  # no CPU has it
    "native static": ("native", {"loss_scale": 512.0}),
    "apex_o1 static": ("apex_o1", {"loss_scale": 512.0}),
    "apex_o1 static one": ("apex_o1", {"loss_scale": 1.0}),
}
FP32_WEIGHTS = [kind for kind, (name, _) in BACKENDS.items() if not REGISTRY[name].half_weights]


def _build(kind: str, **options: object) -> Precision:
    name, given = BACKENDS[kind]
    return build_precision(name, **(given | options))


@pytest.mark.parametrize("kind", FP32_WEIGHTS)
def test_clipping_bounds_the_unscaled_gradients(kind):
    case = Case(kind)
    for _ in range(2):
        case.backward(100.0)
        for _ in range(2):  # the second changes nothing
            case.precision.unscale_(case.optimizer)
        assert nn.utils.clip_grad_norm_([case.weight], 0.5).item() == pytest.approx(math.sqrt(2) * 100)
        case.step()
    assert case.weight.tolist() == pytest.approx([1 - 0.25 * math.sqrt(2), 2 - 0.25 * math.sqrt(2)])


class Case:
    """One weight, [1, 2], under a backend, whose gradient is what a test says; its rate is 0.5."""

    def __init__(self, kind: str, fused: bool = False, **options: object) -> None:
        self.precision = _build(kind, **options)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5, fused=fused)
        self.precision.prepare(nn.Module(), self.optimizer)

    def backward(self, slope: float, *, sync: bool = True) -> None:
        with self.precision.forward_context():
            loss = (self.weight * slope).sum()
        self.precision.backward(loss, sync=sync)

    def step(self) -> None:
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad()

    @property
    def scale(self) -> float:
        return self.precision.scale_factor().item()

    @property
    def skipped(self) -> int:
        return self.precision.skipped_steps().item()


@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["native", "apex_o1"])
def test_overflow_skips_step_and_halves_scale(kind, fused, unscale_first):
    case = Case(kind, fused)
    for slope, skipped in ((math.inf, 1), (math.nan, 2), (1.0, 2)):
        before = case.scale
        case.backward(slope)
        if unscale_first:
            case.precision.unscale_(case.optimizer)
        assert case.scale == before  # that of the step, until it is taken
        case.step()
        assert case.weight.tolist() == ([0.5, 1.5] if slope == 1.0 else [1.0, 2.0])
        assert (case.scale, case.skipped) == (2.0 ** (10 - skipped), skipped)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("kind", "skips"), [("native", True), ("apex_o1", False)])
def test_static_scale_stays_and_only_native_still_skips(kind, skips, fused):
    case = Case(f"{kind} static", fused, growth_interval=1)
    assert not case.precision.scales_dynamically()
    case.backward(1.0)
    case.step()
    assert (case.weight.tolist(), case.scale) == ([0.5, 1.5], 512.0)
    case.backward(math.inf)
    case.step()
    assert case.weight.isfinite().all() == skips
    assert (case.scale, case.skipped) == (512.0, int(skips))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("bad", [0, 2])
def test_overflow_in_any_micro_batch_skips_the_step(bad, fused):
    case = Case("apex_o1", fused)
    for number in range(3):
        case.backward(math.inf if number == bad else 1.0, sync=number == 2)
    case.step()
    assert (case.weight.tolist(), case.skipped) == ([1.0, 2.0], 1)


@pytest.mark.parametrize("sync", [False, True])
def test_micro_batches_add_up_although_the_scale_changes(sync):
    case = Case("apex_o1", growth_interval=1)
    for slope in (1.0, 2.0, 3.0):
        case.backward(slope, sync=sync)
    case.step()
    assert case.weight.tolist() == [-2.0, -1.0]


def _schedule(
    overflows: list[bool], scale: float, window: int, floor: float | None, ceiling: float
) -> Iterator[tuple[float, int]]:
    """Yield scale and counter as apex: halve on overflow, double after `window` steps, within bounds."""
    scale, counter = min(scale, ceiling), 0
    for overflow in overflows:
        if overflow:
            scale, counter = scale / 2 if floor is None else max(floor, scale / 2), 0
        else:
            counter += 1
            if counter == window:
                scale, counter = min(ceiling, scale * 2), 0
        yield scale, counter


@settings(max_examples=60)
@given(
    overflows=st.lists(st.booleans() | st.just(False), max_size=40),
    start=st.integers(0, 24).map(lambda n: 2.0**n),
    window=st.integers(1, 6),
    floor=st.none() | st.integers(-4, 10).map(lambda n: 2.0**n),
    ceiling=st.integers(10, 24).map(lambda n: 2.0**n) | st.just(3000.0),
)
def test_apex_s_schedule_equals_the_reference(overflows, start, window, floor, ceiling):
    bounds = {"min_loss_scale": floor, "max_loss_scale": ceiling}
    case = Case("apex_o1", init_scale=start, growth_interval=window, **bounds)
    found = []
    for overflow in overflows:
        case.backward(math.inf if overflow else 1.0)
        case.step()
        found.append((case.scale, case.precision.state_dict()["loss_scaler0"]["unskipped"]))
    assert found == [*_schedule(overflows, start, window, floor, ceiling)]


def test_apex_s_schedule_moves_once_for_each_backward_not_for_each_step():
    case = Case("apex_o1", growth_interval=2)
    for slope, scale, skipped in ((1.0, 2.0**11, 0), (math.inf, 2.0**9, 1)):
        case.backward(slope)
        case.backward(slope)
        case.step()
        assert (case.scale, case.skipped) == (scale, skipped)


OPTIMIZERS = {
    "SGD": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **how),
    "SGD dampening": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, **how),
    "Adam": lambda p, **how: torch.optim.Adam(p, lr=0.1, amsgrad=True, **how),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["native", "native static", "apex_o1"])
def test_skipped_steps_have_no_effect_on_training_and_no_scheduler_warns(kind, optimizer, fused):
    """Also where the very first one is skipped, when a fused optimizer would keep uninitialised buffers."""
    precision, kinds = _build(kind), OPTIMIZERS[optimizer]
    weight, plain = (nn.Parameter(torch.linspace(-1.0, 2.0, 35)) for _ in range(2))
    held = [torch.full_like(weight, math.nan) for _ in range(20)]
    del held  # memory of its size full of nan, which the allocator hands out as it is
    ours, reference = kinds([weight], fused=fused), kinds([plain])
    precision.prepare(nn.Module(), ours)
    schedule = torch.optim.lr_scheduler.StepLR(ours, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for slope in (math.nan, math.inf, 1.0, -math.inf, 2.0, 3.0):
            before = weight.detach().clone()
            precision.backward((weight.square() * slope).sum())
            precision.step(ours)
            ours.zero_grad()
            schedule.step()
            if math.isfinite(slope):
                plain.grad = 2 * slope * plain.detach()
                reference.step()
            else:
                assert torch.equal(weight, before)
    torch.testing.assert_close(weight, plain, rtol=1e-5, atol=1e-6)
    assert precision.skipped_steps().item() == 3


@pytest.mark.parametrize("kind", FP32_WEIGHTS)
def test_state_is_plain_numbers_and_resumes_exactly(kind):
    def numbers(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(k, str) and numbers(v) for k, v in value.items())
        return type(value) in (int, float)

    case, resumed = Case(kind, growth_interval=3), Case(kind, growth_interval=3)
    slopes = (1.0, math.inf, 1.0, 1.0) if case.precision.scales_dynamically() else (1.0, 1.0)
    for slope in slopes:
        case.backward(slope)
        case.step()
    state = case.precision.state_dict()
    assert numbers(state)
    resumed.precision.load_state_dict(copy.deepcopy(state))
    for each in (case, resumed):
        each.backward(1.0)
        each.step()
    assert resumed.precision.state_dict() == case.precision.state_dict()
    assert (resumed.scale, resumed.skipped) == (case.scale, case.skipped)
    if len(slopes) > 2:
        assert (case.scale, case.skipped) == (1024.0, 1)  # halved, and doubled again


@pytest.mark.parametrize("kind", [kind for kind in FP32_WEIGHTS if REGISTRY[BACKENDS[kind][0]].scales])
def test_scaled_loss_is_fp32_for_any_dtype_of_the_loss(kind):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert _build(kind).scale(torch.ones((), dtype=dtype)).dtype is torch.float32


def test_each_built_in_backend_has_the_metadata_that_it_is_listed_with():
    with stage():
        assert {name: build_precision(name, "cuda").metadata for name in REGISTRY} == REGISTRY


def test_unknown_backends_and_options_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"backend='o1': expected one of none, tf32, native, native_bf16"):
        build_precision("o1")
    message = r"^dtype='fp16': not an option of a backend; expected one of loss_scale"
    with pytest.raises(ValueError, match=message):
        build_precision("native", dtype="fp16")
