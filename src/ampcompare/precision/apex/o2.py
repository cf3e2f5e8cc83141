"""apex O2: an fp16 model except for BatchNorm, fp32 master weights in the optimizer, dynamic loss scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.master import MasterGradients, convert_network, save_in_fp32
from ampcompare.precision.apex.scaled import ApexScaling
from ampcompare.precision.forward import wrap_forward


class ApexO2(ApexScaling):
    """fp16 weights and activations, fp32 masters and updates, fp32 BatchNorm unless asked otherwise.

    `state_dict` of the model is fp32.
    """

    name = "apex_o2"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        keep = self.options.keep_batchnorm_fp32 is not False
        convert_network(model, torch.float16, keep_batchnorm_fp32=keep)
        wrap_forward(model, inputs=torch.float16, outputs=torch.float32)
        save_in_fp32(model)
        self.gradients = MasterGradients(optimizer, self.device)
        return model, optimizer

    def step(self, optimizer: Optimizer) -> None:
        super().step(optimizer)
        self._masters().copy_to_model()  # after a skipped step it changes nothing

    def state_dict(self) -> dict[str, Any]:
        """With the masters, which neither the model's nor the optimizer's state holds."""
        masters = [master.detach().clone() for _, master in self._masters().pairs]
        return super().state_dict() | {"masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        masters = self._masters()
        for (_, master), value in zip(masters.pairs, state["masters"], strict=True):
            master.copy_(value)
        masters.copy_to_model()

    def _masters(self) -> MasterGradients:
        (gradients,) = self._prepared()
        assert isinstance(gradients, MasterGradients)
        return gradients
