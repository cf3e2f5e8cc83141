"""apex O2: an fp16 model except for BatchNorm, fp32 master weights in the optimizer, dynamic loss scale."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.master import MasterGradients, convert_network, fp32_state_dict
from ampcompare.precision.apex.o1 import ApexScaling
from ampcompare.precision.forward import wrap_forward


class ApexO2(ApexScaling):
    """fp16 weights and activations, fp32 BatchNorm, masters and updates. `state_dict` of the model is fp32."""

    name = "apex_o2"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        convert_network(model, torch.float16, keep_batchnorm_fp32=True)
        wrap_forward(model, inputs=torch.float16, outputs=torch.float32)
        model.register_state_dict_post_hook(fp32_state_dict)
        self.gradients = MasterGradients(optimizer, self.device)
        return model, optimizer

    def step(self, optimizer: Optimizer) -> None:
        super().step(optimizer)
        assert isinstance(self.gradients, MasterGradients)
        self.gradients.copy_to_model()  # after a skipped step it changes nothing
