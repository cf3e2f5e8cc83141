"""What an overflow leaves behind: buffers that are no longer finite, and the module where it began.

Nothing here waits for the device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ampcompare.precision.casting import stored_values, view_as_real
from ampcompare.system.device import is_host

# After a skipped step on a GPU so many steps are checked: a scale that collapses does so within as many.
WATCHED_STEPS = 20
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class BufferMonitor:
    """Counts the floating buffers of a model that are no longer finite.

    A step that overflows in its forward is skipped, but by then the forward has updated BatchNorm's running
    statistics: inf or nan in them stays for good, and is in every evaluation (pytorch 90342, 115500).
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if _is_dense_float(buffer)
        ]
        self._finite_at_start = _are_finite(self._floating())  # a mask of -inf is not

    def __bool__(self) -> bool:
        return len(self._finite_at_start) > 0

    @torch.no_grad()
    def count(self) -> Tensor:
        """Return how many buffers were finite and are not, 0-d."""
        return (self._finite_at_start > _are_finite(self._floating())).sum()

    def _floating(self) -> list[Tensor]:
        # Looked up at each use: a module may replace a buffer, or remove it.
        buffers = []
        for module, name in self._places:
            buffer = module._buffers.get(name)
            if not _is_dense_float(buffer):
                buffer = self._finite_at_start.new_zeros(1, dtype=torch.float32)
            buffers.append(buffer)
        return buffers


def _is_dense_float(buffer: Tensor | None) -> TypeGuard[Tensor]:
    """Return whether torch can tell if it is finite, and it has memory of its own for each number."""
    return (
        buffer is not None
        and buffer.dtype in FLOATING
        and buffer.layout is torch.strided
        and buffer.numel() > 0
        and not any(size > 1 and step == 0 for size, step in zip(buffer.shape, buffer.stride(), strict=True))
    )


def _are_finite(tensors: list[Tensor]) -> Tensor:
    """Return for each tensor whether all of it is finite, bool [tensors]."""
    if not tensors:
        return torch.ones(0, dtype=torch.bool)
    norms = torch._foreach_norm(tensors, torch.inf)
    return torch.cat([norm.reshape(1) for norm in norms]) < torch.inf  # the dtypes may differ


@dataclass(frozen=True)
class OverflowSource:
    """The place where the gradients of one step overflowed.

    Attributes:
        first: The position of the first gradient that is not finite, 0-d on the device; -1: all are finite.
        modules: The module of each gradient, from the last of the network to the first.
        first_weight: The position of the first weight that was not finite before the step's update, 0-d on
            the device; -1: all were finite.
        weight_modules: The module of each weight, in the network's order.
    """

    first: Tensor
    modules: Sequence[str]
    first_weight: Tensor
    weight_modules: Sequence[str]


class OverflowDetector:
    """Finds the last module of the network whose gradient is not finite, and weights that are not finite.

    A gradient that is inf or nan makes those of all modules before it so. Where modules are registered in the
    order of their use, the last one is where the overflow began, or what lies between that module and the
    next. To find it, all gradients are read once more, so only a few steps are checked: on the host, where a
    skip is known at once, the skipped step itself; on a GPU, where the host learns of a skip an interval
    later, the steps after it.

    Args:
        names: The names of the model's parameters.
        parameters: What the optimizer updates, in the same order: the model's parameters, or their masters.
            None of them is named if they are not as many.
        weights: The model's own parameters, in the same order.
        device: The device of the parameters.

    Attributes:
        on_host: Whether values on the device can be read without a wait.
        may_watch: Whether the steps after a skip may be checked; not where they are launches of a CUDA graph.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        device: torch.device,
        weights: Sequence[Tensor] = (),
    ) -> None:
        modules = [name.rpartition(".")[0] or name for name in names]
        has_names = len(modules) == len(parameters)
        self._parameters = [*zip(modules, parameters, strict=True)] if has_names else []
        self._weights = [
            (module, weight)
            for module, weight in zip(modules, weights, strict=False)
            if _is_dense_float(view_as_real(weight.detach()))
        ]
        self.on_host = is_host(device)
        self._steps_to_watch = 0
        self.may_watch = True

    def watch(self) -> None:
        """Check the next steps."""
        self._steps_to_watch = WATCHED_STEPS

    def check_losses(self, losses: Sequence[Tensor], *, diagnose: bool) -> OverflowSource | None:
        """Return where the overflow behind a loss that is not finite began, if the step is checked.

        It has to be done before the update: afterwards the weights may be nan because the loss is. On a GPU
        the host does not wait for the losses, so diagnostic steps and those after a skip are checked instead.
        """
        if self.on_host:
            must_check = not all(math.isfinite(loss.item()) for loss in losses)
        else:
            is_watched = self._steps_to_watch > 0
            self._steps_to_watch -= is_watched
            must_check = diagnose or (is_watched and self.may_watch)
        return self.locate() if must_check else None

    def check_gradients(self, norm: Tensor | None, *, clips_value: bool) -> OverflowSource | None:
        """Return where unscaled gradients overflowed, before they are clipped, on the host alone.

        Clipping hides an overflow: by norm it makes all gradients nan, by value none infinite.

        Args:
            norm: Their norm; None if it was not measured.
            clips_value: Whether they are clipped by value next.
        """
        is_infinite = self.on_host and norm is not None and not norm.isfinite()
        return self.locate() if is_infinite or (self.on_host and clips_value) else None

    def check_skip(self, skipped: Tensor | None) -> OverflowSource | None:
        """Return where the gradients of a skipped step overflowed, on the host, which knows of it at once."""
        return self.locate() if self.on_host and skipped is not None and skipped else None

    @torch.no_grad()
    def locate(self) -> OverflowSource | None:
        """Return where the gradients overflowed, or None without gradients or without a sure name."""
        pairs = [(module, p.grad) for module, p in reversed(self._parameters) if p.grad is not None]
        gradients = [(module, stored_values(gradient)) for module, gradient in pairs]
        gradients = [(module, gradient) for module, gradient in gradients if gradient.numel()]
        if not gradients:
            return None
        first = _find_nonfinite([gradient for _, gradient in gradients])
        weights = [view_as_real(weight.detach()) for _, weight in self._weights]
        first_weight = _find_nonfinite(weights) if weights else torch.full_like(first, -1)
        weight_modules = [module for module, _ in self._weights]
        return OverflowSource(first, [module for module, _ in gradients], first_weight, weight_modules)


def _find_nonfinite(tensors: list[Tensor]) -> Tensor:
    """Return the position of the first tensor that is not finite, 0-d; -1: all are finite."""
    bad = ~_are_finite(tensors)
    return torch.where(bad.any(), bad.int().argmax(), -1)  # argmax: the first of several
