"""fp32 master weights: the optimizer updates them, the model runs on their fp16 copies.

Source: `apex/amp/_process_optimizer.py` and `apex/fp16_utils/fp16util.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ampcompare.precision.apex.scaling import ScaledGradients


def convert_network(model: nn.Module, dtype: torch.dtype, *, keep_batchnorm_fp32: bool) -> None:
    """The model's floating parameters and buffers as `dtype`, in place; affine BatchNorm stays fp32 if asked."""
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine:
            continue
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
                if tensor.grad is not None:
                    tensor.grad.data = tensor.grad.data.to(dtype)


class MasterGradients(ScaledGradients):
    """The gradients of an optimizer whose fp16 parameters were replaced by fp32 masters."""

    in_place = False

    def __init__(self, optimizer: Optimizer, device: torch.device | str) -> None:
        super().__init__(optimizer, device)
        self.pairs: list[tuple[Tensor, Tensor]] = []  # fp16 parameter of the model, its fp32 master
        self.adopt()

    def adopt(self) -> None:
        """Give every fp16 parameter in the optimizer's groups a master, also in groups that were added later."""
        for group in self.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.dtype is not torch.float16:
                    continue
                master = nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
                group["params"][index] = master
                if parameter in self.optimizer.state:
                    state = self.optimizer.state.pop(parameter)
                    self.optimizer.state[master] = {
                        k: v.float() if isinstance(v, Tensor) and v.dtype is torch.float16 else v
                        for k, v in state.items()
                    }
                self.pairs.append((parameter, master))

    def set_aside(self) -> None:
        self.adopt()
        super().set_aside()

    @torch.no_grad()
    def new_gradients(self) -> list[Tensor]:
        """The model's fp16 gradients move to the masters, where they add up in fp32, before anything is unscaled."""
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None
        return super().new_gradients()

    def abandon(self) -> None:
        self.clear_model_gradients()
        super().abandon()

    def clear_model_gradients(self) -> None:
        for parameter, _ in self.pairs:
            parameter.grad = None

    @torch.no_grad()
    def release(self) -> None:
        """Put the model's parameters back into the optimizer, with the masters' values, in fp32."""
        models = {id(master): parameter for parameter, master in self.pairs}
        for group in self.optimizer.param_groups:
            group["params"] = [models.get(id(p), p) for p in group["params"]]
        for parameter, master in self.pairs:
            parameter.grad = None
            parameter.data = master.data
            if master in self.optimizer.state:
                self.optimizer.state[parameter] = self.optimizer.state.pop(master)
        self.pairs.clear()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """The masters' values into the model's fp16 weights, one launch for all."""
        if self.pairs:
            parameters, masters = zip(*self.pairs, strict=True)
            torch._foreach_copy_(parameters, masters)


def fp32_state_dict(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
    """A state-dict hook: what is saved is fp32, so that a checkpoint loads into a plain fp32 model."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dtype is torch.float16:
            state[key] = value.float()
