"""The contract of a backend. The base class *is* fp32: every method is its no-op default."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES
from ampcompare.precision.cpu_arithmetic import compute_in_fp32
from ampcompare.precision.keep_fp32 import cast_inputs_to_weights, keep_in_fp32
from ampcompare.precision.registry import (
    KEEP_WEIGHTS,
    REGISTRY,
    BackendInfo,
    PrecisionOptions,
    complete_metadata,
)
from ampcompare.precision.weight_dtypes import (
    ONCE,
    convert_to_fp32,
    describe_conversion,
    describe_frozen_parts,
    find_complex_weights,
    find_lazy_modules,
    has_mixed_dtypes,
    mark_frozen_parts,
)
from ampcompare.system.device import tf32_as

log = logging.getLogger(__name__)

NO_CONTEXT = nullcontext()  # one object for all steps


class UnsupportedModel(ValueError):
    """A backend cannot train the model.

    The message is one line with the reason and an alternative.
    """


class Precision:
    """Plain fp32, and the base class of all backends.

    The loop calls `prepare` once. For each optimizer step it calls `forward_context` around forward and loss,
    `backward` once per micro-batch (the last with sync=True), `unscale_` if it reads or clips gradients, and
    `step`. No method waits for the device unless its docstring says so.

    `prepare` and `training_context` are the same for every backend. A backend overrides the hooks that they
    call, `convert` and `session`, and any other method.

    Attributes:
        metadata: The metadata of the class. The constructor completes it (see `complete_metadata`).
        input_dtype: The dtype of the images that a convolution gets inside `forward_context`.
        fp32_modules: Names of the modules that `precision.keep_fp32` keeps in fp32, set by `prepare`.
        converted_weights: The number of weights that `prepare` converted to fp32, by their dtype before.
        tf32: Whether fp32 products round to TF32 in training; None leaves PyTorch's switches as they are.
    """

    metadata: BackendInfo = REGISTRY["none"]
    input_dtype = torch.float32
    fp32_modules: Sequence[str] = ()
    converted_weights: Mapping[str, int] = MappingProxyType({})
    tf32: bool | None = None

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.options = PrecisionOptions() if options is None else options
        self.metadata = complete_metadata(type(self), Precision)
        self.tf32 = True if self.metadata.uses_tf32 else self.options.tf32
        self._skipped = torch.zeros((), dtype=torch.int64, device=self.device)

    @final
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Prepare model and optimizer for the backend; call it once, before DDP wraps the model.

        Keeps the modules of `precision.keep_fp32` in fp32, converts trainable weights in another dtype to
        fp32 (unless `precision.weights` is "keep"), and calls `convert`, which a backend may override.

        Raises:
            KeepFp32Error: A pattern of `keep_fp32` matches no module, or the module cannot be kept in fp32.
            UnsupportedModel: The backend cannot train this model.
        """
        kept = self._keep_in_fp32(model)
        self._check_lazy(model)
        self._check_complex(model)
        mark_frozen_parts(model)
        if self.options.weights != KEEP_WEIGHTS:
            self.converted_weights = self._convert_to_fp32(model, optimizer)
        prepared = self.convert(model, optimizer)
        has_half_weights = self.metadata.half_weights
        if (self.converted_weights or has_half_weights) and has_mixed_dtypes(model):
            cast_inputs_to_weights(model, (*SIXTEEN_BIT_DTYPES, torch.float32))
        elif kept and has_half_weights:
            cast_inputs_to_weights(model)
        self.fp32_modules = kept
        return prepared

    def _keep_in_fp32(self, model: nn.Module) -> list[str]:
        """Keep the modules of `precision.keep_fp32` in fp32, and return their names."""
        patterns = self.options.keep_fp32
        if self.metadata.is_fp32 or not patterns:
            return []
        return keep_in_fp32(
            model,
            patterns,
            half_weights=self.metadata.half_weights,
            casts_off=self.casts_off,
            device_type=self.device.type,
        )

    def _convert_to_fp32(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, int]:
        """Convert trainable weights to fp32, log that, and return their number by former dtype."""
        converted = convert_to_fp32(model)
        if converted:
            log.warning(describe_conversion(converted, describe_frozen_parts(model)), extra=ONCE)
            optimizer.load_state_dict(optimizer.state_dict())  # casts momentum that was there already
        return converted

    def _check_lazy(self, model: nn.Module) -> None:
        """Raise UnsupportedModel if weights have to be converted that do not exist yet."""
        names = find_lazy_modules(model)
        are_fp32 = all(p.dtype is torch.float32 for p in model.parameters() if is_lazy(p))
        if names and (self.metadata.half_weights or not are_fp32):
            raise UnsupportedModel(
                f"backend={self.metadata.label}: the weights of lazy layers do not exist before the first "
                f"forward: {', '.join(names[:3])}; run the network once before it is prepared"
            )

    def _check_complex(self, model: nn.Module) -> None:
        """Raise UnsupportedModel if the gradients of complex weights would have to be unscaled."""
        names = find_complex_weights(model)
        if names and self.metadata.scales and self.options.loss_scale != 1:
            raise UnsupportedModel(
                f"backend={self.metadata.label}: PyTorch cannot unscale gradients of complex weights, "
                f"as {names[0]} has; use backend=none or native_bf16, or precision.loss_scale=1"
            )

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Convert model and optimizer for the backend, in place or as new ones, and return both.

        It must leave modules alone for which `casting.is_kept_in_fp32` is true. `casting.convert_network`
        does so.

        Raises:
            UnsupportedModel: The backend cannot train this model.
        """
        return model, optimizer

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Return the context around training steps, which the loop leaves for evaluations in fp32.

        It contains the backend's `session`, which a backend may override. It also sets PyTorch's TF32
        switches to `tf32`, and on a CPU it computes slow 16-bit operations in fp32 (`cpu_arithmetic`).
        """
        numerics = nullcontext() if self.tf32 is None else tf32_as(self.tf32)
        with numerics, compute_in_fp32(self.device, self.metadata.dtype), self.session():
            yield

    def session(self) -> AbstractContextManager[Any]:
        """Return a context that the backend needs around its forward contexts; a run enters it repeatedly."""
        return nullcontext()

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context around forward and loss in training."""
        return NO_CONTEXT

    @staticmethod
    def casts_off(device_type: str) -> AbstractContextManager[Any]:
        """Return a context, for modules kept in fp32, that turns off the casts of the forward context."""
        return torch.autocast(device_type, enabled=False)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the loss scale, in fp32."""
        return loss

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """Backpropagate the scaled loss.

        Args:
            loss: The unscaled loss of a micro-batch.
            sync: False if more micro-batches of the same step follow.
        """
        self.scale(loss).backward()

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients in place; a second call within a step changes nothing."""

    def step(self, optimizer: Optimizer) -> Tensor | None:
        """Unscale if needed, step or skip the step on inf or nan, and update the loss scale.

        Returns:
            Whether the step was skipped: 1 or 0, 0-d on the device. None from a backend that skips no step.
            A backend whose `metadata.scales` is true must not return None.
        """
        optimizer.step()
        return None

    def scale_factor(self) -> Tensor:
        """Return the loss scale, 0-d fp32 on the device (1 for fp32)."""
        return torch.ones((), dtype=torch.float32, device=self.device)

    def skipped_steps(self) -> Tensor:
        """Return the number of optimizer steps skipped so far, 0-d int64 on the device."""
        return self._skipped

    def scales_dynamically(self) -> bool:
        """Return whether the backend expects overflows and reacts with a smaller loss scale."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state for an exact resume, as plain numbers; waits for the device."""
        return {"skipped_steps": int(self._skipped)}  # sync: a checkpoint needs the number

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._skipped.fill_(state["skipped_steps"])


class TF32(Precision):
    """fp32 tensors, with TF32 in convolutions and matrix products."""

    metadata = REGISTRY["tf32"]
