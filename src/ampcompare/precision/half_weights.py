"""Backends with 16-bit weights: pure fp16, pure bf16, and apex O2 with fp32 masters.

*fp16* corresponds to `--fp16 --loss_scaling` in the ALCF tutorials and, with scale 1, to apex O3. *bf16* is
Lightning's `bf16-true`. cuDNN's BatchNorm accepts fp16 images only with fp32 weights
(`_select_batch_norm_backend` in ATen/native/Normalization.cpp); therefore there is `keep_batchnorm_fp32`.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision, UnsupportedModel
from ampcompare.precision.casting import convert_network, is_kept_in_fp32, save_in_fp32, wrap_forward
from ampcompare.precision.registry import REGISTRY
from ampcompare.precision.scaled_backend import ScaledPrecision
from ampcompare.precision.weight_dtypes import has_mixed_dtypes


class HalfWeights(Precision):
    """A backend whose networks have weights in `input_dtype`.

    The network casts its inputs to this dtype and its outputs to fp32. If modules are kept in fp32, or frozen
    parts have another dtype, the first module may be one of them; then every module casts its own inputs
    instead.
    """

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Convert the weights; BatchNorm stays in fp32 if the option or the backend's default says so."""
        option = self.options.keep_batchnorm_fp32
        keeps_batchnorm = self.metadata.keeps_batchnorm if option is None else option
        convert_network(model, self.input_dtype, keep_batchnorm_fp32=bool(keeps_batchnorm))
        has_own_casts = any(map(is_kept_in_fp32, model.modules())) or has_mixed_dtypes(model)
        inputs = None if has_own_casts else self.input_dtype
        wrap_forward(model, inputs=inputs, outputs=torch.float32)
        return super().convert(model, optimizer)


class BFloat16(HalfWeights):
    """bf16 weights, without loss scaling."""

    metadata = REGISTRY["bf16"]
    input_dtype = torch.bfloat16


class Float16(HalfWeights, ScaledPrecision):
    """fp16 weights, with apex's loss scaling."""

    metadata = REGISTRY["fp16"]
    input_dtype = torch.float16


class ApexO2(Float16):
    """apex O2: fp16 weights and activations, fp32 masters and BatchNorm.

    The optimizer updates the masters. The model's `state_dict` is fp32.
    """

    metadata = REGISTRY["apex_o2"]

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Convert the weights, create the masters, and make the model's `state_dict` fp32.

        Raises:
            UnsupportedModel: torch.jit compiled the model.
        """
        try:
            save_in_fp32(model)
        except ValueError as problem:
            raise UnsupportedModel(
                f"backend={self.metadata.label}: {problem}; "
                "use backend=native, or the model without torch.jit"
            ) from None
        return super().convert(model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the masters, which neither the model nor the optimizer saves."""
        masters = [master.detach().clone() for master in self.gradients.masters.values()]
        return super().state_dict() | {"masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`, and copy the masters into the model."""
        super().load_state_dict(state)
        for master, value in zip(self.gradients.masters.values(), state["masters"], strict=True):
            master.copy_(value)
        self.gradients.copy_to_model()
