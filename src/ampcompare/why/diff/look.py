"""One training step under a backend, as a run would take it, with all that can be seen of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.data.batch import Batch, each
from ampcompare.train.step import Trainer
from ampcompare.why.diff.arithmetic import arithmetic
from ampcompare.why.diff.calls import Call, Recorder


@dataclass
class Look:
    """What a step came to. Gradients of parameters are true ones, those of `calls` times `scale`."""

    label: str
    trainer: Trainer
    calls: dict[tuple[str, int], Call]  # in the order in which they ended
    backward: list[Call]  # in the order of the backward
    scale: float
    loss: float
    skipped: bool
    gradients: dict[str, Tensor] = field(default_factory=dict)  # by the names of the model's parameters
    types: dict[str, torch.dtype] = field(default_factory=dict)  # of those, as the model has them
    updates: dict[str, Tensor] = field(default_factory=dict)  # what the step added, float64
    differs: set[str] = field(default_factory=set)  # ops whose random numbers are others
    modules: dict[str, str] = field(default_factory=dict)  # the class of each module, by its name


def in_double(trainer: Trainer) -> Trainer:
    """The trainer with its model in fp64, in place."""
    trainer.model.double()
    return trainer


def look_at(
    trainer: Trainer,
    label: str,
    batches: Sequence[Batch],
    seed: int,
    *,
    double: bool = False,
    before_step: Callable[[Trainer, Recorder], None] | None = None,
) -> Look:
    """Take one step on the micro-batches and say what was seen.

    `before_step` is called after the backward, when gradients are true ones and the weights still those that
    were used. Waits for the device at each tensor that is looked at.
    """
    if double:
        batches = [wide(batch) for batch in batches]
    precision, recorder = trainer.precision, Recorder(trainer.model)
    before = {n: p.detach().to(torch.float64, copy=True) for n, p in _updated(trainer).items()}
    gradients: dict[str, Tensor] = {}
    scale = float(precision.scale_factor())  # sync: a look waits wherever it looks
    own = {name: getattr(precision, name) for name in ("backward", "unscale_", "step")}

    def keep_gradients() -> None:
        if not gradients:
            now = _updated(trainer).items()
            gradients.update({n: p.grad.detach().clone() for n, p in now if p.grad is not None})

    def backward(*args: Any, **kwargs: Any) -> None:
        recorder.is_backward = True
        try:
            own["backward"](*args, **kwargs)
        finally:
            recorder.is_backward = False

    def unscale_(optimizer: Any) -> None:
        own["unscale_"](optimizer)
        keep_gradients()

    def step(optimizer: Any) -> None:
        unscale_(optimizer)
        if before_step is not None:
            with recorder.paused():
                before_step(trainer, recorder)
        own["step"](optimizer)

    torch.manual_seed(seed)
    skipped_before = int(precision.skipped_steps())  # sync: as above
    try:
        for name, stand_in in (("backward", backward), ("unscale_", unscale_), ("step", step)):
            setattr(precision, name, stand_in)
        with arithmetic(double=double) as mode, precision.session(), recorder.recording():
            result = trainer.compute(batches)
    finally:
        for name in own:
            delattr(precision, name)
    after = _updated(trainer)
    return Look(
        label,
        trainer,
        {call.key: call for call in recorder.calls},
        recorder.backward,
        scale,
        float(result.loss),  # sync: as above
        int(precision.skipped_steps()) > skipped_before,
        gradients,
        {name: p.dtype for name, p in trainer.model.named_parameters()},
        {name: after[name].detach().double() - weight for name, weight in before.items()},
        set(mode.differs),
        {n: type(m).__name__ for n, m in trainer.model.named_modules() if _has_forward(m)},
    )


def _has_forward(module: nn.Module) -> bool:
    """Whether it can be called at all: a ModuleList only holds others."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _updated(trainer: Trainer) -> dict[str, Tensor]:
    """What the optimizer updates, by the names of the model's parameters: them, or their masters."""
    named = dict(trainer.model.named_parameters())
    every = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    if len(every) == len(named):  # in the model's order, as it was built
        return dict(zip(named, every, strict=True))
    known = {id(p) for p in every}  # somebody has changed one of them since
    return {name: p for name, p in named.items() if id(p) in known}


def wide(batch: Batch) -> Batch:
    """The batch with its floating tensors in fp64."""
    inputs, targets = (each(part, lambda t: t.double() if t.is_floating_point() else t) for part in batch)
    return inputs, targets
