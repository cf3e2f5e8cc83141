"""Networks whose weights are in half precision: pure fp16 and bf16, and apex O2 with fp32 masters.

*fp16* is what `--fp16 --loss_scaling` did in the ALCF tutorials, and (with scale 1) apex O3. Without masters
an update smaller than half a unit in the last place of a weight is lost; of bf16, with 8 significant bits,
that is 2**-9 to 2**-8 of it. Both are here to show what that costs, and `stochastic.py` what rounding gives
back. *bf16* is what Lightning calls `bf16-true`.

cuDNN's BatchNorm takes fp16 images with fp32 weights only (`_select_batch_norm_backend` in
ATen/native/Normalization.cpp); with fp16 ones PyTorch's own kernels run. For that reason apex called O3 with
`keep_batchnorm_fp32=True` the speed of light.

Source of O2's masters: `apex/amp/_process_optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision
from ampcompare.precision.casting import (
    HALF_TYPES,
    as_fp32,
    convert_network,
    copy_all,
    is_kept,
    replace_parameters,
    save_in_fp32,
    wrap_forward,
)
from ampcompare.precision.scaled import Gradients, Scaled


def _halve(precision: Precision, model: nn.Module, *, keeps_batchnorm: bool = False) -> None:
    """The network's weights in the backend's type; it takes that type and gives fp32.

    Where modules are kept in fp32, what comes first may be one of them: each takes inputs as it needs them.
    """
    asked = precision.options.keep_batchnorm_fp32
    convert_network(
        model, precision.input_dtype, keep_batchnorm_fp32=keeps_batchnorm if asked is None else asked
    )
    inputs = None if any(map(is_kept, model.modules())) else precision.input_dtype
    wrap_forward(model, inputs=inputs, outputs=torch.float32)


class BFloat16(Precision):
    """bf16 weights, BatchNorm's too unless kept in fp32; bf16 inputs, fp32 outputs; no loss scaling."""

    input_dtype = torch.bfloat16

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        _halve(self, model)
        return model, optimizer


class Half(Scaled):
    """fp16 weights, BatchNorm's too unless kept in fp32; fp16 inputs, fp32 outputs; apex's loss scaling."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        _halve(self, model)
        return super().prepare(model, optimizer)


class ApexO2(Scaled):
    """fp16 weights and activations, fp32 masters and updates, fp32 BatchNorm unless asked otherwise.

    `state_dict` of the model is fp32.
    """

    gradients: MasterGradients

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        _halve(self, model, keeps_batchnorm=True)
        save_in_fp32(model)
        self.gradients = MasterGradients(optimizer, self.device)
        return model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """With the masters, which neither the model's nor the optimizer's state holds."""
        masters = [master.detach().clone() for master in self.gradients.masters.values()]
        return super().state_dict() | {"masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for master, value in zip(self.gradients.masters.values(), state["masters"], strict=True):
            master.copy_(value)
        self.gradients.copy_to_model()


class MasterGradients(Gradients):
    """The gradients of an optimizer whose half parameters were replaced by fp32 masters."""

    in_place = False

    def __init__(self, optimizer: Optimizer, device: torch.device | str) -> None:
        super().__init__(optimizer, device)
        self.masters: dict[Tensor, Tensor] = {}  # by the model's half parameter
        self._versions: list[int] = []  # of the model's parameters, when they and their masters last agreed
        self.ready()

    @torch.no_grad()
    def ready(self) -> None:
        """Make optimizer and model agree, whatever happened between two steps.

        Half parameters in groups added since get masters. Weights that were edited in the model (a checkpoint
        loaded, DDP's broadcast from rank 0) are taken over, which the original missed; those that came back
        as they were (averaged ones swapped in and out for an evaluation) keep masters that are finer than
        they are. Gradients that no scaled backward left are true ones.
        """
        for (half, wide), version in zip(self.masters.items(), self._versions, strict=True):
            # sync: after an edit only
            if half._version != version and not torch.equal(half, wide.to(half.dtype)):
                wide.copy_(half)
        if added := [p for p in self.parameters() if p.dtype in HALF_TYPES]:
            masters = [nn.Parameter(p.detach().float(), p.requires_grad) for p in added]
            replace_parameters(self.optimizer, added, masters)
            self.masters |= zip(added, masters, strict=True)
        self._versions = [half._version for half in self.masters]
        if not self.scaled:
            self._collect()

    @torch.no_grad()
    def _collect(self) -> None:
        """Move the model's gradients to the masters, in fp32."""
        given = {half: half.grad for half in self.masters if half.grad is not None}
        for half, gradient in zip(given, as_fp32(given.values()), strict=True):
            master = self.masters[half]
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            half.grad = None

    def sources(self) -> list[Tensor]:
        return [*self.masters, *self.parameters()]

    def set_aside(self) -> None:
        self.ready()
        super().set_aside()

    def new(self) -> list[Tensor]:
        """Those of the masters, where the model's add up in fp32 before anything is unscaled.

        Until then they stay in the model: DDP reduces the sum of a step's micro-batches there.
        """
        self._collect()
        return super().new()

    def step(self, step: Callable[[], Any], *, dynamic: bool) -> Any:
        self.ready()
        result = super().step(step, dynamic=dynamic)
        self.copy_to_model()  # after a skipped step it changes nothing
        for master in self.masters.values():  # `model.zero_grad()` would not reach them
            master.grad = None
        return result

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """The masters' values into the model's half weights."""
        copy_all(self.masters, self.masters.values())
        self._versions = [half._version for half in self.masters]

    def release(self) -> None:
        """Put the model's parameters back into the optimizer, with the masters' values, in fp32."""
        self.ready()
        replace_parameters(self.optimizer, self.masters.values(), self.masters)
        for half, master in self.masters.items():
            half.data = master.data
