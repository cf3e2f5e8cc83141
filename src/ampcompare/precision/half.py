"""Pure fp16: weights, activations, gradients and updates in fp16, with a static or dynamic loss scale.

What `--fp16 --loss_scaling` did in the ALCF tutorials, and (with scale 1) apex O3. No fp32 master weights: an
update smaller than half a unit in the last place of a weight is lost. It is here to show what that costs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.o1 import ApexScaling
from ampcompare.precision.forward import wrap_forward


class Half(ApexScaling):
    """fp16 weights, BatchNorm too; inputs cast to fp16, outputs to fp32; apex's loss scaling."""

    name = "fp16"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        model.half()
        wrap_forward(model, inputs=torch.float16, outputs=torch.float32)
        return super().prepare(model, optimizer)
