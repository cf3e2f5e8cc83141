"""Everything in bf16: weights, gradients, the optimizer's states and its arithmetic; no loss scale.

What Lightning calls `bf16-true`. bf16 has fp32's range, so that nothing needs scaling, and 8 significant
bits: an update below half a unit in the last place of its weight (2**-9 to 2**-8 of it) is lost. It is here
to show what that costs, and `stochastic.py` what rounding gives back.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.apex.master import convert_network
from ampcompare.precision.base import Precision
from ampcompare.precision.forward import wrap_forward


class BFloat16(Precision):
    """bf16 weights, BatchNorm's too unless kept in fp32; bf16 inputs, fp32 outputs; no loss scaling."""

    name = "bf16"
    input_dtype = torch.bfloat16

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        convert_network(model, torch.bfloat16, keep_batchnorm_fp32=bool(self.options.keep_batchnorm_fp32))
        wrap_forward(model, inputs=torch.bfloat16, outputs=torch.float32)
        return model, optimizer
