"""apex O1: listed functions run in 16 bits or fp32, weights stay fp32, with apex's dynamic loss scale."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import UnsupportedModel
from ampcompare.precision.casting import find_scripted
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.patches import casts, disable_casts, install_wrappers
from ampcompare.precision.registry import REGISTRY
from ampcompare.precision.scaled_backend import ScaledPrecision

NOT_CAST = "O1 casts Python functions, which code compiled by torch.jit does not call:"


class ApexO1(ScaledPrecision):
    """apex O1: the casts of the O1 lists around forward and loss, and apex's loss scaling."""

    metadata = REGISTRY["apex_o1"]

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Check that torch.jit compiled no module: compiled code would bypass the casts.

        Raises:
            UnsupportedModel: torch.jit compiled the model or a part of it.
        """
        names = find_scripted(model)
        if names:
            shown = ", ".join(name or "the network" for name in names)
            raise UnsupportedModel(
                f"backend={self.metadata.label}: {NOT_CAST} {shown}; "
                "use the module without torch.jit, or backend=native"
            )
        return super().convert(model, optimizer)

    def session(self) -> AbstractContextManager[Any]:
        """Return the context in which the wrappers are installed."""
        return install_wrappers()

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context in which the casts are active."""
        return casts(device_type=self.device.type, allow_banned=False, half=self.input_dtype)

    @staticmethod
    @contextmanager
    def casts_off(device_type: str) -> Iterator[None]:
        """Return a context, for modules kept in fp32, that turns off the casts."""
        with disable_casts(), torch.autocast(device_type, enabled=False):
            yield

    def step(self, optimizer: Optimizer) -> Tensor:
        """Step, and drop the cached 16-bit copies of the weights."""
        skipped = super().step(optimizer)
        STATE.copies.clear()
        return skipped


class ApexO1BFloat16(ApexO1):
    """apex O1 with bf16 in place of fp16: the same lists and the same scaler.

    NVIDIA's apex had no such level. It shows the effect of the lists in a dtype that many CPUs support.
    """

    metadata = REGISTRY["apex_o1_bf16"]
    input_dtype = torch.bfloat16
