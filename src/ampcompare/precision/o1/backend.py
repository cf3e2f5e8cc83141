"""apex O1: listed functions run in half or fp32, weights stay fp32, apex's own dynamic loss scale."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.base import UnsupportedModel
from ampcompare.precision.casting import find_scripted
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.patches import casts, disable_casts, install_wrappers
from ampcompare.precision.registry import REGISTRY
from ampcompare.precision.scaled_backend import ScaledPrecision

NOT_CAST = "O1 casts Python functions, which code compiled by torch.jit does not call:"


class ApexO1(ScaledPrecision):
    """The casts of the O1 lists around forward and loss, and apex's loss scaling."""

    metadata = REGISTRY["apex_o1"]

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Refuse TorchScript, which calls no Python function, so that nothing would be cast."""
        if names := find_scripted(model):
            what = f"{NOT_CAST} {', '.join(name or 'the network' for name in names)}"
            todo = "use the module without torch.jit, or backend=native"
            raise UnsupportedModel(f"backend={self.metadata.label}: {what}; {todo}")
        return super().convert(model, optimizer)

    def session(self) -> AbstractContextManager[Any]:
        return install_wrappers()

    def forward_context(self) -> AbstractContextManager[Any]:
        return casts(device_type=self.device.type, allow_banned=False, half=self.input_dtype)

    @staticmethod
    @contextmanager
    def casts_off(device_type: str) -> Iterator[None]:
        with disable_casts(), torch.autocast(device_type, enabled=False):
            yield

    def step(self, optimizer: Optimizer) -> None:
        super().step(optimizer)
        STATE.copies.clear()


class ApexO1BFloat16(ApexO1):
    """The same lists and the same scaler with bf16 in fp16's place.

    NVIDIA's apex had no such thing: what it shows is what the lists do, in a type that most CPUs of today
    compute in.
    """

    metadata = REGISTRY["apex_o1_bf16"]
    input_dtype = torch.bfloat16
