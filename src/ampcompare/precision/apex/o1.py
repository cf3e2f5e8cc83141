"""apex O1: listed functions run in fp16 or fp32, weights stay fp32, apex's own dynamic loss scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.casts import casts, installed
from ampcompare.precision.apex.scaled import ApexScaling
from ampcompare.precision.apex.state import STATE
from ampcompare.precision.forward import wrap_forward
from ampcompare.precision.together import casting_modules, weights_together


@contextmanager
def _traced_weights_together(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Cast together what the cache cannot know: while a step is traced, other tensors stand in for the
    parameters.
    """
    weights = (module._parameters["weight"] for module in modules)
    traced = STATE.on and not isinstance(next(weights, None), nn.Parameter | None)
    with weights_together(modules, torch.float16) if traced else nullcontext():
        yield


class ApexO1(ApexScaling):
    """The casts of the O1 lists around forward and loss, and apex's loss scaling."""

    name = "apex_o1"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        wrap_forward(model, context=_traced_weights_together, modules=casting_modules(model))
        return super().prepare(model, optimizer)

    def session(self) -> AbstractContextManager[Any]:
        return installed()

    def forward_context(self) -> AbstractContextManager[Any]:
        return casts(device_type=self.device.type, allow_banned=False)

    def step(self, optimizer: Optimizer) -> None:
        super().step(optimizer)
        STATE.cache.clear()
