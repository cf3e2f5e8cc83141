"""Gradient norms and learning rates are those of the updates, however a loop calls its optimizer.

Each expected value is computed with plain PyTorch in fp64 from the gradients that the update reads.
"""

from typing import Any

import pytest
import torch
from support.recorded_loop import InMemoryRun
from torch import Tensor

from ampcompare import Recorder, metrics

PARTS: dict[str, Any] = {"backend": "mine", "seed": 1, "batch_size": 8, "every": 1, "diagnostics": 1}


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def compute_norm(model: torch.nn.Module) -> float:
    """Compute the norm of the gradients that the parameters have now, in fp64."""
    gradients = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return float(torch.cat(gradients).norm())


@pytest.mark.parametrize(
    ("kind", "clip", "micro_batches", "every", "keyword"),
    [
        (torch.optim.SGD, None, 3, 1, True),
        (torch.optim.AdamW, 0.05, 1, 1, False),
        (torch.optim.Rprop, 0.05, 3, 2, True),
    ],
)
def test_the_norm_of_a_closure_is_that_of_its_own_step(
    tracker: InMemoryRun, kind: Any, clip: float | None, micro_batches: int, every: int, keyword: bool
):
    """The gradients are complete only within the closure, which also clips them."""
    model, norms = build_model(), {}
    optimizer = kind(model.parameters(), lr=0.05)
    with Recorder(optimizer=optimizer, model=model, **PARTS | {"diagnostics": every}) as record:
        for step in range(1, 5):
            batches = torch.randn(micro_batches, 8, 4)

            def closure(batches: Tensor = batches, step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = torch.zeros(())
                for batch in batches:
                    loss = model(batch).square().mean() / len(batches)
                    loss.backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                norms[step] = compute_norm(model)
                return loss

            loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
            optimizer.zero_grad()
            record.step(loss=loss, samples=8)
    expected = {step: norm for step, norm in norms.items() if step % every == 0}
    assert tracker.by_step(metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(expected)
    assert {*tracker.by_step(metrics.ZEROS)} == {*expected}


class HandMade:
    """An optimizer of its own, without PyTorch's hooks."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    @torch.no_grad()
    def step(self) -> None:
        """Step."""
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.1)


class TwoStep(torch.optim.SGD):
    """An optimizer whose `step` is never called."""

    second_step = HandMade.step


class Wrapper:
    """A wrapper that has parameter groups and a step, and nothing else of an optimizer."""

    def __init__(self, parameters: Any) -> None:
        self.base_optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.param_groups = self.base_optimizer.param_groups
        self.step = self.base_optimizer.step


class SharpnessAware(torch.optim.Optimizer):
    """SAM, as it is published: the weights of the second gradient are not those of the update."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = [parameter for group in self.param_groups for parameter in group["params"]]
        kept = [weight.clone() for weight in weights]
        for weight in weights:
            weight.add_(weight.grad, alpha=0.05)
        if closure is not None:
            torch.enable_grad()(closure)()
        for weight, before in zip(weights, kept, strict=True):
            weight.copy_(before)
        self.base_optimizer.step()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (HandMade, "HandMade has no hooks of torch.optim.Optimizer"),
        (TwoStep, "TwoStep.step() was not called"),
        (Wrapper, "Wrapper makes its updates with the optimizer in its attribute base_optimizer"),
        (SharpnessAware, "with the optimizer in its attribute base_optimizer; pass the optimizer inside it"),
        (torch.optim.LBFGS, "LBFGS does not run its closure once per step"),
    ],
)
def test_an_optimizer_whose_gradients_cannot_be_measured_gets_one_line(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture, kind: Any, why: str
):
    model = build_model()
    optimizer = kind(model.parameters())

    def closure() -> Tensor:
        model.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        return loss

    with Recorder(optimizer=optimizer, model=model, **PARTS) as record:
        for _ in range(3):
            closure()
            step = getattr(optimizer, "second_step", optimizer.step)
            step(*([closure] if kind is torch.optim.LBFGS else []))
            record.step(loss=0.5, samples=8)
    assert tracker.by_step(metrics.GRADIENT_NORM_AT_UPDATE) == {}
    assert len(tracker.by_step(metrics.LOSS)) == 3
    (line,) = [message for message in caplog.messages if "no gradients are measured" in message]
    assert why in line


@pytest.mark.parametrize(("as_tensor", "with_closure", "every"), [(True, False, 1), (False, True, 4)])
def test_the_learning_rate_is_that_of_the_update_also_behind_the_scheduler(
    tracker: InMemoryRun, as_tensor: bool, with_closure: bool, every: int
):
    """The scheduler halves the rate in each step: in the same tensor, and before the step is recorded."""
    model = build_model()
    start = 0.05
    rate = torch.tensor(start) if as_tensor else start
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, foreach=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def backward() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        return loss

    with Recorder(optimizer=optimizer, **PARTS | {"every": every, "diagnostics": None}) as record:
        for _ in range(6):
            loss = None if with_closure else backward()
            optimizer.step(backward if with_closure else None)
            scheduler.step()
            record.step(loss=loss if loss is not None else 0.5, samples=8)
    steps = range(1, 7) if every == 1 else (4, 6)
    expected = {step: start * 0.5 ** (step - 1) for step in steps}
    assert tracker.by_step(metrics.LEARNING_RATE) == pytest.approx(expected)


def test_a_bf16_weight_that_a_step_with_a_closure_leaves_unchanged_is_counted(tracker: InMemoryRun):
    """Weights of 1 take an update of 2**-4, and weights of 256 lose it to rounding."""
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 256.0, 256.0, 256.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4, dtype=torch.bfloat16)).sum()
        loss.backward()
        return loss

    with Recorder(optimizer=optimizer, model=model, **PARTS) as record:
        optimizer.step(closure)
        record.step(loss=0.5, samples=8)
    assert tracker.by_step(metrics.LOST_UPDATES) == {1: 0.75}


@pytest.mark.parametrize("has_scaler", [False, True])
def test_sparse_gradients_are_measured_on_their_values(tracker: InMemoryRun, has_scaler: bool):
    words = torch.nn.Embedding(12, 8, sparse=True)
    head = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=has_scaler)
    norms = {}
    with Recorder(optimizer=optimizer, scaler=scaler, **PARTS) as record:
        for step in range(1, 4):
            loss = head(words(torch.randint(0, 12, (8, 5))).mean(1)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            gradients = (p.grad.to_dense().double() for p in (words.weight, head.weight, head.bias))
            norms[step] = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            record.step(loss=loss, samples=8)
    assert tracker.by_step(metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(norms, rel=1e-5)
