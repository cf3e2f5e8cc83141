"""Pure fp16: weights, activations, gradients and updates in fp16, with a static or dynamic loss scale.

What `--fp16 --loss_scaling` did in the ALCF tutorials, and (with scale 1) apex O3. No fp32 master weights: an
update smaller than half a unit in the last place of a weight is lost. It is here to show what that costs.

cuDNN's BatchNorm takes fp16 images with fp32 weights only (`_select_batch_norm_backend` in
ATen/native/Normalization.cpp); with fp16 ones PyTorch's own kernels run. For that reason apex called O3 with
`keep_batchnorm_fp32=True` the speed of light.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.master import convert_network
from ampcompare.precision.apex.scaled import ApexScaling
from ampcompare.precision.forward import wrap_forward


class Half(ApexScaling):
    """fp16 weights, BatchNorm's too unless kept in fp32; inputs cast to fp16, outputs to fp32; apex's loss
    scaling.
    """

    name = "fp16"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        convert_network(model, torch.float16, keep_batchnorm_fp32=bool(self.options.keep_batchnorm_fp32))
        wrap_forward(model, inputs=torch.float16, outputs=torch.float32)
        return super().prepare(model, optimizer)
