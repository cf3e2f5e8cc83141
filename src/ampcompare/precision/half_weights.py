"""Networks whose weights are in half precision: pure fp16 and bf16, and apex O2 with fp32 masters.

*fp16* is what `--fp16 --loss_scaling` did in the ALCF tutorials, and (with scale 1) apex O3; *bf16* is what
Lightning calls `bf16-true`. cuDNN's BatchNorm takes fp16 images with fp32 weights only
(`_select_batch_norm_backend` in ATen/native/Normalization.cpp), hence `keep_batchnorm_fp32`.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision, UnsupportedModel
from ampcompare.precision.casting import convert_network, is_kept_in_fp32, save_in_fp32, wrap_forward
from ampcompare.precision.registry import REGISTRY
from ampcompare.precision.scaled_backend import ScaledPrecision


class HalfWeights(Precision):
    """The network's weights in the backend's type, BatchNorm's too unless asked otherwise; it takes that type
    and gives fp32. Where modules are kept in fp32, each takes inputs as it needs them: the first may be kept.
    """

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        asked = self.options.keep_batchnorm_fp32
        keeps = self.metadata.keeps_batchnorm if asked is None else asked
        convert_network(model, self.input_dtype, keep_batchnorm_fp32=bool(keeps))
        inputs = None if any(map(is_kept_in_fp32, model.modules())) else self.input_dtype
        wrap_forward(model, inputs=inputs, outputs=torch.float32)
        return super().convert(model, optimizer)


class BFloat16(HalfWeights):
    """bf16, without loss scaling."""

    metadata = REGISTRY["bf16"]
    input_dtype = torch.bfloat16


class Float16(HalfWeights, ScaledPrecision):
    """fp16, with apex's loss scaling."""

    metadata = REGISTRY["fp16"]
    input_dtype = torch.float16


class ApexO2(Float16):
    """fp16 weights and activations, fp32 masters and updates, fp32 BatchNorm unless asked otherwise; the
    model's `state_dict` is fp32.
    """

    metadata = REGISTRY["apex_o2"]

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        try:
            save_in_fp32(model)
        except ValueError as problem:
            todo = "use backend=native, or the model without torch.jit"
            raise UnsupportedModel(f"backend={self.metadata.label}: {problem}; {todo}") from None
        return super().convert(model, optimizer)

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
