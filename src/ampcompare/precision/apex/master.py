"""fp32 master weights: the optimizer updates them, the model runs on their fp16 copies.

Source: `apex/amp/_process_optimizer.py` and `apex/fp16_utils/fp16util.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ampcompare.precision.apex.scaling import ScaledGradients
from ampcompare.precision.keep import is_kept
from ampcompare.precision.together import copy_together

HALF_TYPES = (torch.float16, torch.bfloat16)


def convert_network(model: nn.Module, dtype: torch.dtype, *, keep_batchnorm_fp32: bool) -> None:
    """Floating parameters and buffers as `dtype`, in place; affine BatchNorm stays fp32 if asked, and so do
    modules that are kept (`keep.py`).
    """
    for module in model.modules():
        if is_kept(module):
            continue
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine:
            continue
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
                if tensor.grad is not None:
                    tensor.grad.data = tensor.grad.data.to(dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants the weights in one piece of memory


class MasterGradients(ScaledGradients):
    """The gradients of an optimizer whose fp16 parameters were replaced by fp32 masters."""

    in_place = False

    def __init__(self, optimizer: Optimizer, device: torch.device | str) -> None:
        super().__init__(optimizer, device)
        self.pairs: list[tuple[Tensor, Tensor]] = []  # fp16 parameter of the model, its fp32 master
        self._versions: list[int] = []  # of the model's parameters, when they and their masters last agreed
        self.adopt()

    def adopt(self) -> None:
        """Give every half parameter in the optimizer's groups a master, also in groups added later."""
        for group in self.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.dtype not in HALF_TYPES:
                    continue
                master = nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
                group["params"][index] = master
                if parameter in self.optimizer.state:
                    state = self.optimizer.state.pop(parameter)
                    self.optimizer.state[master] = {
                        k: v.float() if isinstance(v, Tensor) and v.dtype in HALF_TYPES else v
                        for k, v in state.items()
                    }
                self.pairs.append((parameter, master))
                self._versions.append(parameter._version)
        self._follow_model()

    @torch.no_grad()
    def _follow_model(self) -> None:
        """Take over weights that were edited in the model: a checkpoint loaded, DDP's broadcast from rank 0.

        The original missed such edits once masters were there. Weights that came back as they were (averaged
        ones swapped in and out for an evaluation) keep masters that are finer than they are.
        """
        for index, (parameter, master) in enumerate(self.pairs):
            if parameter._version == self._versions[index]:
                continue
            self._versions[index] = parameter._version
            if not torch.equal(parameter, master.to(parameter.dtype)):  # sync: after an edit only
                master.copy_(parameter)

    def ready(self) -> None:
        """Make optimizer and model agree. Gradients that no scaled backward left are true and move, too."""
        self.adopt()
        if not self.scaled:
            self._collect()

    def set_aside(self) -> None:
        self.ready()
        super().set_aside()

    def has_new(self) -> bool:
        return super().has_new() or any(parameter.grad is not None for parameter, _ in self.pairs)

    def new_gradients(self) -> list[Tensor]:
        """Those of the masters, where the model's add up in fp32 before anything is unscaled.

        Until then they stay in the model: DDP reduces the sum of a step's micro-batches there.
        """
        self._collect()
        return super().new_gradients()

    @torch.no_grad()
    def _collect(self) -> None:
        new = [(parameter, master) for parameter, master in self.pairs if parameter.grad is not None]
        gradients = copy_together([p.grad for p, _ in new if p.grad is not None], torch.float32)
        for (parameter, master), gradient in zip(new, gradients, strict=True):
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def abandon(self) -> None:
        if not self.scaled:
            self.clear_model_gradients()
        super().abandon()

    def clear_model_gradients(self) -> None:
        for parameter, _ in self.pairs:
            parameter.grad = None

    def clear_master_gradients(self) -> None:
        """After a step: `model.zero_grad()` would not reach them."""
        for _, master in self.pairs:
            master.grad = None

    @torch.no_grad()
    def release(self) -> None:
        """Put the model's parameters back into the optimizer, with the masters' values, in fp32."""
        self._follow_model()
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
            self._versions = [parameter._version for parameter in parameters]


def save_in_fp32(model: nn.Module) -> list[RemovableHandle]:
    """Make `state_dict` of the model and of its parts fp32, so that a checkpoint loads into a plain model."""
    return [module.register_state_dict_post_hook(_to_fp32) for module in model.modules()]


def _to_fp32(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
    for key, value in state.items():
        if key.startswith(prefix) and isinstance(value, Tensor) and value.dtype in HALF_TYPES:
            state[key] = value.float()
