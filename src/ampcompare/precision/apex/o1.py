"""apex O1: listed functions run in fp16 or fp32, weights stay fp32, apex's own dynamic loss scale.

`dtype="bfloat16"` is the same lists and the same scaler with bf16 in fp16's place. NVIDIA's apex had no such
thing: what it shows is what the lists do, in a type that most CPUs of today compute in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.casts import casts, disable_casts, installed
from ampcompare.precision.apex.scaled import ApexScaling
from ampcompare.precision.apex.state import STATE
from ampcompare.precision.base import PrecisionOptions
from ampcompare.precision.forward import wrap_forward
from ampcompare.precision.together import casting_modules, weights_together


@contextmanager
def _traced_weights_together(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Cast together what the cache cannot know: parameters that, in a trace, have tensors in their place."""
    weights = (module._parameters["weight"] for module in modules)
    traced = STATE.on and not isinstance(next(weights, None), nn.Parameter | None)
    with weights_together(modules, STATE.half) if traced else nullcontext():
        yield


class ApexO1(ApexScaling):
    """The casts of the O1 lists around forward and loss, and apex's loss scaling."""

    name = "apex_o1"

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        types = {"float16": torch.float16, "bfloat16": torch.bfloat16}
        self.dtype = self.input_dtype = types[self.options.dtype]

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        wrap_forward(model, context=_traced_weights_together, modules=casting_modules(model))
        return super().prepare(model, optimizer)

    def session(self) -> AbstractContextManager[Any]:
        return installed()

    def forward_context(self) -> AbstractContextManager[Any]:
        return casts(device_type=self.device.type, allow_banned=False, half=self.dtype)

    @staticmethod
    @contextmanager
    def casts_off(device_type: str) -> Iterator[None]:
        with disable_casts(), torch.autocast(device_type, enabled=False):
            yield

    def step(self, optimizer: Optimizer) -> None:
        super().step(optimizer)
        STATE.cache.clear()
