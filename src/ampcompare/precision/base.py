"""The contract of a backend. The base class *is* fp32: every method is its no-op default."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare import plugins
from ampcompare.precision.cpu_arithmetic import compute_in_fp32
from ampcompare.precision.keep_fp32 import cast_inputs_to_weights, keep_in_fp32
from ampcompare.precision.registry import MAX_DESCRIPTION, REGISTRY, BackendInfo, PrecisionOptions
from ampcompare.system.device import tf32_as

NO_CONTEXT = nullcontext()  # one object for all steps


class UnsupportedModel(ValueError):
    """A backend cannot train the model. The message is one line: why, and what to use instead."""


class Precision:
    """Plain fp32, and what a backend may change of it.

    The loop calls `prepare` once. For each optimizer step it calls `forward_context` around forward and loss,
    `backward` once per micro-batch (the last with sync=True), `unscale_` if it wants to read or clip
    gradients, then `step`. Nothing here waits for the device unless it says so.

    `prepare` and `training_context` are the same for every backend. A backend overrides the hooks that they
    call, `convert` and `session`, and any other method.

    Attributes:
        metadata: What a class states of itself. An instance completes it: see `get_metadata`.
        input_dtype: The dtype of the images that a convolution gets inside `forward_context`.
        kept: The modules that `precision.keep_fp32` keeps in fp32, known after `prepare`.
        tf32: Whether fp32 products round to TF32 in training; None leaves PyTorch's switches as they are.
    """

    metadata: BackendInfo = REGISTRY["none"]
    input_dtype = torch.float32
    fp32_modules: Sequence[str] = ()
    tf32: bool | None = None

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.options = PrecisionOptions() if options is None else options
        self.metadata = get_metadata(type(self))
        self.tf32 = True if self.metadata.uses_tf32 else self.options.tf32
        self._skipped = torch.zeros((), dtype=torch.int64, device=self.device)

    @final
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Fit model and optimizer to the backend; once, before DDP wraps the model.

        The modules of `precision.keep_fp32` are kept in fp32, the rest is the backend's `convert`. A backend
        overrides `convert`, not this.

        Raises:
            KeepFp32Error: A pattern of `keep_fp32` matches no module, or the module cannot be kept in fp32.
            UnsupportedModel: The backend cannot train this model.
        """
        patterns = self.options.keep_fp32
        if not patterns or self.metadata.is_fp32:
            return self.convert(model, optimizer)
        kept = keep_in_fp32(
            model,
            patterns,
            half_weights=self.metadata.half_weights,
            casts_off=self.casts_off,
            device_type=self.device.type,
        )
        prepared = self.convert(model, optimizer)
        if self.metadata.half_weights:
            cast_inputs_to_weights(model)
        self.fp32_modules = kept
        return prepared

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Convert model and optimizer for the backend, in place or as new ones, and return both.

        Modules that `casting.is_kept_in_fp32` names stay in fp32; `casting.convert_network` leaves them alone.

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
        return NO_CONTEXT

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


class TF32(Precision):
    """fp32 tensors; convolutions and matrix products round to TF32."""

    metadata = REGISTRY["tf32"]


def get_metadata(cls: type[Precision]) -> BackendInfo:
    """Return the metadata of a backend's class.

    A class that states none has its own name as label, the first line of its docstring as description and
    `input_dtype` as dtype. The rest is that of the built-in class that it inherits from. Of a plug-in the
    metadata has the hash of its file.

    Raises:
        ValueError: The name of the class is no label, or the docstring cannot be shown.
    """
    metadata = cls.metadata
    if "metadata" not in vars(cls) and metadata in REGISTRY.values():
        metadata = _default_metadata(cls)
    source = plugins.get_source_hash(cls)
    return replace(metadata, source=source) if source else metadata


def _default_metadata(cls: type[Precision]) -> BackendInfo:
    description = (cls.__doc__ or "").strip().partition("\n")[0].strip()
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 3].rstrip()}..."
    dtype = str(cls.input_dtype).removeprefix("torch.")
    own: dict[str, Any] = {"label": cls.__name__, "description": description or cls.__name__}
    if cls.metadata is Precision.metadata:  # not fp32 like `none`: nobody knows what the class computes in
        return BackendInfo(**own, dtype=dtype, scales=cls.scale is not Precision.scale)
    return replace(cls.metadata, **own, dtype=dtype, target="")
