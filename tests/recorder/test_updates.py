"""Gradient norms and learning rates are those of the updates, however a loop calls its optimizer.

Each expected value is computed with plain PyTorch in fp64 from the gradients that the update reads.
"""

from collections.abc import Callable
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


def by_step(tracker: InMemoryRun, key: str) -> dict[int, float]:
    """Return the recorded values of a metric by step."""
    return {row[metrics.STEP]: row[key] for row in tracker.rows if key in row}


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "position": lambda optimizer, closure: optimizer.step(closure),
    "keyword": lambda optimizer, closure: optimizer.step(closure=closure),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Rprop])
def test_the_norm_of_a_closure_is_that_of_its_own_step(
    tracker: InMemoryRun, kind: Any, clip: float | None, micro_batches: int, call: str
):
    """The gradients are complete only within the closure, which also clips them."""
    model, norms = build_model(), []
    optimizer = kind(model.parameters(), lr=0.05)
    with Recorder(optimizer=optimizer, model=model, **PARTS) as record:
        for _ in range(4):
            batches = torch.randn(micro_batches, 8, 4)

            def closure(batches: Tensor = batches) -> Tensor:
                optimizer.zero_grad()
                loss = torch.zeros(())
                for batch in batches:
                    loss = model(batch).square().mean() / len(batches)
                    loss.backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                norms.append(compute_norm(model))
                return loss

            loss = CALLS[call](optimizer, closure)
            record.step(loss=loss, samples=8)
    assert by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(dict(enumerate(norms, 1)))
    assert len(by_step(tracker, metrics.ZEROS)) == 4


def test_a_closure_is_measured_in_diagnostic_steps_only_and_before_gradients_are_zeroed(
    tracker: InMemoryRun,
):
    model, norms = build_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        norms.append(compute_norm(model))
        return loss

    with Recorder(optimizer=optimizer, model=model, **PARTS | {"diagnostics": 3, "every": 4}) as record:
        for _ in range(9):
            optimizer.step(closure)
            optimizer.zero_grad()
            record.step(loss=0.5, samples=8)
    expected = {step: norms[step - 1] for step in (3, 6, 9)}
    assert by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(expected)


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
        (SharpnessAware, "with the optimizer in its attribute base_optimizer; pass that one"),
    ],
)
def test_an_optimizer_whose_gradients_cannot_be_measured_gets_one_line(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture, kind: Any, why: str
):
    model = build_model()
    optimizer = kind(model.parameters())
    with Recorder(optimizer=optimizer, model=model, **PARTS) as record:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            getattr(optimizer, "second_step", optimizer.step)()
            record.step(loss=0.5, samples=8)
    assert by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE) == {}
    assert len(by_step(tracker, metrics.LOSS)) == 3
    (line,) = [message for message in caplog.messages if "no gradients are measured" in message]
    assert why in line


def test_gradients_of_lbfgs_are_not_recorded_and_one_line_says_so(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    model = build_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    with Recorder(optimizer=optimizer, model=model, **PARTS) as record:
        for _ in range(3):
            batch = torch.randn(8, 4)

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                return loss

            record.step(loss=optimizer.step(closure), samples=8)
    assert by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE) == {}
    assert len(by_step(tracker, metrics.LOSS)) == 3
    (line,) = [message for message in caplog.messages if "no gradients are measured" in message]
    assert "LBFGS does not run its closure once per step" in line


def test_a_loss_scale_that_is_too_large_at_first_is_no_reason_for_a_line(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-30)
    with Recorder(optimizer=optimizer, scaler=scaler, **PARTS) as record:
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean() * 1e3).backward()
            scaler.step(optimizer)
            scaler.update()
            record.step(loss=0.5, samples=8)
    assert 0 < len(by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE)) < 6
    assert not [message for message in caplog.messages if "no gradients" in message]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("with_closure", [False, True])
@pytest.mark.parametrize("every", [1, 4])
def test_the_learning_rate_is_that_of_the_update_also_behind_the_scheduler(
    tracker: InMemoryRun, as_tensor: bool, with_closure: bool, every: int
):
    """The scheduler halves the rate in each step: in the same tensor, and before the step is recorded."""
    model = build_model()
    start = 0.05
    rate = torch.tensor(start) if as_tensor else start
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, foreach=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with Recorder(optimizer=optimizer, **PARTS | {"every": every, "diagnostics": None}) as record:
        for _ in range(6):

            def backward() -> Tensor:
                optimizer.zero_grad()
                loss = model(torch.randn(8, 4)).square().mean()
                loss.backward()
                return loss

            if with_closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            scheduler.step()
            record.step(loss=0.5, samples=8)
    found = by_step(tracker, metrics.LEARNING_RATE)
    steps = range(1, 7) if every == 1 else (4, 6)
    assert found == pytest.approx({step: start * 0.5 ** (step - 1) for step in steps})


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
    assert by_step(tracker, metrics.LOST_UPDATES) == {1: 0.75}


class Words(torch.nn.Module):
    """A network with a sparse gradient and dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 8, sparse=True)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


@pytest.mark.parametrize("has_scaler", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_are_measured_on_their_values(tracker: InMemoryRun, kind: Any, has_scaler: bool):
    model, norms = Words(), []
    optimizer = kind(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=has_scaler)
    with Recorder(optimizer=optimizer, model=model, scaler=scaler, **PARTS) as record:
        for _ in range(3):
            loss = model(torch.randint(0, 12, (8, 5))).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            gradients = [
                p.grad.to_dense().double().flatten() for p in model.parameters() if p.grad is not None
            ]
            norms.append(float(torch.cat(gradients).norm()))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            record.step(loss=loss, samples=8)
    assert list(by_step(tracker, metrics.GRADIENT_NORM_AT_UPDATE).values()) == pytest.approx(norms, rel=1e-5)
