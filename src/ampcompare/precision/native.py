"""Native AMP: torch.autocast with torch.amp.GradScaler in fp16, torch.autocast alone in bf16."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision, UnsupportedModel
from ampcompare.precision.cpu_autocast import cast_as_cuda
from ampcompare.precision.registry import REGISTRY, PrecisionOptions
from ampcompare.precision.unscaling import create_momentum_buffers


class NativeBFloat16(Precision):
    """PyTorch's automatic mixed precision in bf16, without loss scaling since bf16 has fp32's range."""

    metadata = REGISTRY["native_bf16"]
    input_dtype = torch.bfloat16

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return `torch.autocast`."""
        return torch.autocast(self.device.type, dtype=self.input_dtype)


class Native(NativeBFloat16):
    """PyTorch's automatic mixed precision in fp16, with GradScaler.

    A static `loss_scale` never changes, but steps with inf or nan are still skipped. With `loss_scale` 1
    there is no scaler.
    """

    metadata = REGISTRY["native"]
    input_dtype = torch.float16

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Return `torch.autocast`, which casts on a CPU as on a GPU (see `cpu_autocast`)."""
        with cast_as_cuda(self.device), super().forward_context():
            yield

    def session(self) -> AbstractContextManager[Any]:
        """Return the context of these casts: checkpointed forwards run again in the backward."""
        return cast_as_cuda(self.device)

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        options = self.options
        self.static_scale = None if options.loss_scale == "dynamic" else float(options.loss_scale)
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=options.init_scale if self.static_scale is None else self.static_scale,
            growth_interval=options.growth_interval,
            enabled=self.static_scale != 1.0,
        )
        # GradScaler allocates its scale in the first call of scale(); logging may read it earlier.
        self.scaler.scale(torch.zeros((), device=self.device))
        self._unscaled = False

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Check that no trainable weight is fp16 (`precision.weights=keep`).

        Raises:
            UnsupportedModel: A trainable weight is fp16.
        """
        names = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype is torch.float16]
        if names and self.scaler.is_enabled():
            raise UnsupportedModel(
                f"backend={self.metadata.label}: PyTorch's GradScaler cannot unscale gradients in float16, "
                f"as {names[0]} has; use precision.weights=float32, or backend=fp16 for float16 weights"
            )
        return super().convert(model, optimizer)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss scaled by GradScaler, in fp32."""
        return self.scaler.scale(loss.float())

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients in place; a second call within a step changes nothing."""
        if self.scaler.is_enabled() and not self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled = True

    def step(self, optimizer: Optimizer) -> Tensor:
        """Step with GradScaler, and return whether the step was skipped.

        Waits for the device if the optimizer is not fused.
        """
        if not self.scaler.is_enabled():
            optimizer.step()
            return torch.zeros_like(self._skipped)
        create_momentum_buffers(optimizer)
        # sync: for an optimizer that is not fused, GradScaler reads found_inf on the host
        self.scaler.step(optimizer)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # skipped or not: for schedulers
        found_inf = self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        skipped = sum(f.to(self.device) for f in found_inf.values()).clamp(max=1).to(torch.int64)
        self._skipped += skipped
        self.scaler.update(self.static_scale)
        self._unscaled = False
        return skipped

    def scale_factor(self) -> Tensor:
        """Return GradScaler's scale, 0-d fp32 on the device."""
        if self.scaler.is_enabled() and self.scaler._scale is not None:
            return self.scaler._scale
        return super().scale_factor()

    def scales_dynamically(self) -> bool:
        """Return whether the loss scale is dynamic."""
        return self.scaler.is_enabled() and self.static_scale is None

    def state_dict(self) -> dict[str, Any]:
        """Return the state with that of GradScaler; waits for the device."""
        return super().state_dict() | {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        super().load_state_dict(state)
        self.scaler.load_state_dict(state["scaler"])
