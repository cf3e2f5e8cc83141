"""What is observed of a training step: gradients, norms before clipping, overflows, lost updates.

Nothing here changes a weight or a gradient. Nothing waits for the device; on the host there is nothing to
wait for.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare import metrics
from ampcompare.precision.base import NO_CONTEXT, Precision
from ampcompare.training.diagnostics.activations import ActivationRecorder
from ampcompare.training.diagnostics.gradients import gradient_norm, measure_gradients
from ampcompare.training.diagnostics.updates import WeightSample, lost_updates, sample_weights
from ampcompare.training.overflow_detection import OverflowDetector, OverflowSource


class StepObserver:
    """Observes the steps of one trainer. `begin` returns the observation of a step.

    Args:
        model: The prepared model.
        optimizer: The prepared optimizer. Its parameters are the model's in their order, or their masters.
        compiled: Whether forward and loss are compiled. A compiled graph has no place for hooks, so nothing
            is known of activations then.

    Attributes:
        overflows: Finds where gradients overflowed.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, precision: Precision, *, compiled: bool
    ) -> None:
        names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
        self.optimizer = optimizer
        self.precision = precision
        self._layer_groups = [name.partition(".")[0] for name in names]
        self.overflows = OverflowDetector(names, precision.device, [*model.parameters()])
        self.activations = None if compiled else ActivationRecorder(model, precision.device)

    def begin(self, diagnose: bool) -> "StepObservation":
        """Begin to observe a step, before its forward.

        Args:
            diagnose: Whether to measure gradients, activations and lost updates.
        """
        return StepObservation(self, diagnose)

    def updated_parameters(self) -> list[Tensor]:
        """Return what the optimizer updates, in the order of the model's parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def locate_overflow(self) -> OverflowSource | None:
        """Return where the gradients are not finite now; None if that cannot be told."""
        return self.overflows.locate(self.updated_parameters())

    def by_layer(self, *, gradients: bool = False) -> dict[str, list[Tensor]]:
        """Return the updated parameters by layer group, or their gradients where there are any."""
        groups: dict[str, list[Tensor]] = {}
        for name, parameter in zip(self._layer_groups, self.updated_parameters(), strict=True):
            tensor = parameter.grad if gradients else parameter
            if tensor is not None:
                groups.setdefault(name, []).append(tensor)
        return groups


class StepObservation:
    """The observation of one step. Its methods are called in the order of the step.

    Attributes:
        diagnose: Whether gradients, activations and lost updates are measured.
        diagnostics: Diagnostic values so far, by metric key.
        overflow: Where gradients and weights were not finite, if the step was or may have been skipped, or if
            its loss is not finite.
        norm: The norm of the unscaled gradients before clipping, 0-d fp32; None if it was not measured.
    """

    def __init__(self, observer: StepObserver, diagnose: bool) -> None:
        self._observer = observer
        self.diagnose = diagnose
        # What is observed.
        self.diagnostics: dict[str, Tensor] = {}
        self.overflow: OverflowSource | None = None
        self.norm: Tensor | None = None
        # What is compared after the update.
        self._weights: dict[str, WeightSample] = {}

    def recording_activations(self) -> AbstractContextManager[Any]:
        """Return the context of a forward, which records activations in a diagnostic step."""
        activations = self._observer.activations
        if not self.diagnose or activations is None:
            return NO_CONTEXT
        return activations.recording()

    def see_losses(self, losses: Sequence[Tensor]) -> None:
        """Locate the overflow behind a loss that is not finite.

        It has to be done before the update: afterwards the weights may be nan because the loss is. On a GPU
        the host does not wait for the losses, so diagnostic steps and those after a skip are checked instead.
        """
        overflows = self._observer.overflows
        if overflows.on_host:
            is_in_doubt = not all(bool(loss.isfinite()) for loss in losses)
        else:
            is_in_doubt = overflows.must_check(self.diagnose)
        if is_in_doubt:
            self.overflow = self._observer.locate_overflow()

    def see_gradients(self, *, clips_norm: bool, clips_value: bool) -> None:
        """Measure the unscaled gradients before they are clipped.

        Clipping hides an overflow: by norm it makes all gradients nan, by value none infinite. So the
        overflow is located first, on the host, where asking a norm whether it is finite is no wait.
        """
        observer = self._observer
        if self.diagnose or clips_norm:
            self.norm = self.diagnostics[metrics.GRADIENT_NORM] = norm_of(observer.updated_parameters())
        if self.diagnose:
            scale = observer.precision.scale_factor()
            self.diagnostics |= measure_gradients(observer.by_layer(gradients=True), scale)
        is_infinite = observer.overflows.on_host and self.norm is not None and not self.norm.isfinite()
        if is_infinite or (observer.overflows.on_host and clips_value):
            self.overflow = observer.locate_overflow()

    def before_update(self) -> None:
        """Keep what is compared after the update: a sample of the weights."""
        observer = self._observer
        if self.diagnose and observer.precision.metadata.updates_half:
            self._weights = {name: sample_weights(group) for name, group in observer.by_layer().items()}

    def after_update(self, skipped: Tensor | None) -> None:
        """Note the overflow of a skipped step, lost updates and activations.

        Args:
            skipped: What the backend's step returned.
        """
        observer = self._observer
        # On the host a skip is known at once, and its gradients are read behind it.
        if observer.overflows.on_host and skipped is not None and skipped and self.overflow is None:
            self.overflow = observer.locate_overflow()
        if self._weights:
            was_skipped = torch.zeros((), device=observer.precision.device) if skipped is None else skipped
            self.diagnostics |= lost_updates(self._weights, was_skipped > 0)
        if self.diagnose and observer.activations is not None:
            self.diagnostics |= observer.activations.take()


def norm_of(parameters: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of the gradients, 0-d fp32 on the device; in fp16 the norm would overflow."""
    return gradient_norm([p.grad for p in parameters if p.grad is not None])
