"""The contract of a backend. The base class *is* fp32: every method is its no-op default."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.machine.device import tf32_as
from ampcompare.precision.backends import REGISTRY, BackendInfo, PrecisionOptions
from ampcompare.precision.cpu_arithmetic import compute_in_fp32


class UnsupportedModel(ValueError):
    """A backend cannot train the model. The message is one line: why, and what to use instead."""


class Precision:
    """Plain fp32, and what a backend may change of it.

    The loop calls, for each optimizer step: `forward_context` around forward and loss, `backward` once per
    micro-batch (the last with sync=True), `unscale_` if it wants to read or clip gradients, then `step`.
    Nothing here waits for the device unless it says so.
    """

    metadata: BackendInfo = REGISTRY["none"]  # a backend from elsewhere says it in its class
    kept: Sequence[str] = ()  # the modules that are kept in fp32 by `precision.keep_fp32`, once prepared
    # Whether fp32 products round to TF32 in training; None: as PyTorch's switches stand.
    tf32: bool | None = None
    input_dtype = torch.float32  # in which a convolution takes its images inside `forward_context`

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.options = PrecisionOptions() if options is None else options
        self._skipped = torch.zeros((), dtype=torch.int64, device=self.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Fit model and optimizer to the backend; once, before DDP wraps the model.

        Raises:
            UnsupportedModel: The backend cannot train this model.
        """
        return model, optimizer

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Return the context around training steps. The loop leaves it for evaluations in fp32.

        It is the backend's `session`. It also switches TF32 as `tf32` says, and on a CPU it computes the
        backend's slow 16-bit operations in fp32 (`cpu_arithmetic`). A backend overrides `session`, not this.
        """
        numerics = nullcontext() if self.tf32 is None else tf32_as(self.tf32)
        with numerics, compute_in_fp32(self.device, self.metadata.dtype), self.session():
            yield

    def session(self) -> AbstractContextManager[Any]:
        """Return the context that a backend needs around its forward contexts. A run enters it repeatedly."""
        return nullcontext()

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context of forward and loss in training."""
        return nullcontext()

    @staticmethod
    def casts_off(device_type: str) -> AbstractContextManager[Any]:
        """The context in which nothing is cast, within a forward context: of modules kept in fp32."""
        return torch.autocast(device_type, enabled=False)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale, in fp32: what gradients are taken of."""
        return loss

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """Backpropagate the scaled loss; sync=False while more micro-batches of the same step follow."""
        self.scale(loss).backward()

    def unscale_(self, optimizer: Optimizer) -> None:
        """Make `.grad` the true gradients; a second call within a step changes nothing."""

    def step(self, optimizer: Optimizer) -> None:
        """Unscale if that is still to do; step, or skip on inf/nan; move the loss scale."""
        optimizer.step()

    def scale_factor(self) -> Tensor:
        """The loss scale, 0-d fp32 on the device (1 for fp32)."""
        return torch.ones((), dtype=torch.float32, device=self.device)

    def skipped_steps(self) -> Tensor:
        """Optimizer steps skipped so far, 0-d int64 on the device."""
        return self._skipped

    def scales_dynamically(self) -> bool:
        """Whether an overflow is expected now and then and mended by a smaller scale."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """What must be kept to go on exactly: plain numbers. Waits for the device."""
        return {"skipped_steps": int(self._skipped)}  # sync: a checkpoint needs the number

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state from `state_dict`."""
        self._skipped.fill_(state["skipped_steps"])
