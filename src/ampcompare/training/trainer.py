"""The training step, in one process or in several. No backend is named here.

The host waits for the device only where a comment says `sync:`, and never in a step (except inside the
backend with an optimizer that is not fused).
"""

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampcompare import metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.data.batch import Batch, count_samples, note_batch
from ampcompare.errors import TrainingError
from ampcompare.precision.base import NO_CONTEXT, Precision
from ampcompare.precision.casting import stored_values, view_as_real
from ampcompare.system.device import is_cuda
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.diagnostics.activations import ActivationRecorder
from ampcompare.training.interval import StepResult
from ampcompare.training.overflow_detection import OverflowDetector
from ampcompare.training.task import Forward, Task
from ampcompare.training.torch_compile import CompiledForward
from ampcompare.training.update_probe import UpdateProbe, gradient_norm


class Trainer:
    """Takes optimizer steps under any backend: accumulate, penalise, unscale, diagnose, clip, step.

    Args:
        model: The prepared model, in DDP for several processes.
        scheduler: It is advanced once a step.
        precision: The backend that prepared model and optimizer.
        task: The loss, and what predictions are compared with.
        compiled: Whether forward and loss are compiled.
        world: The processes of the training; None: this process alone.

    Attributes:
        updated: What the optimizer updates, in the order of the model's parameters: these, or their masters.
        overflows: Finds where gradients overflowed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        precision: Precision,
        config: TrainingConfig,
        task: Task,
        *,
        compiled: bool = False,
        world: DistributedContext | None = None,
    ) -> None:
        # What is trained, and how.
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.precision = precision
        self.config = config
        self.task = task
        self.world = world or DistributedContext()

        self._is_compiled = compiled
        self.forward = self.build_forward(model)

        # What is observed of a step. A compiled graph has no place for the hooks on activations.
        names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
        self.updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._probe = UpdateProbe(group_by_layer(names, self.updated), metrics.GRADIENT_NORM)
        self._activations = None if compiled else ActivationRecorder(model, precision.device)
        self.overflows = OverflowDetector(names, self.updated, precision.device, [*model.parameters()])

    def build_forward(self, model: nn.Module) -> Forward:
        """Return the forward of a step with this model, which may wrap that of the trainer."""
        if self._is_compiled:
            return CompiledForward(model, self.task.loss, self.precision)
        return Forward(model, self.task.loss)

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch from number `start` on, as `step` takes them.

        With several processes each batch comes with the samples that all of them have together.
        """
        if self.world.size == 1:
            return loader.epoch(epoch, start)
        return loader.epoch_with_sizes(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """Take one optimizer step on the micro-batches, as if they were one batch. Waits for nothing.

        Args:
            batches: The micro-batches, as `feed` yields them.
            diagnose: Whether the result has `grad/norm`, underflow fractions, statistics of activations and,
                with 16-bit weights, lost updates. With clipping by norm it always has `grad/norm`.

        Raises:
            TrainingError: The batch does not fit the model; notes tell the shapes. Or the backend scales the
                loss and does not tell whether it skipped the step.
        """
        result = self.compute(batches, diagnose=diagnose)
        self.scheduler.step()
        return result

    def compute(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """Do what the device does in a step: all but the schedule."""
        if not self.model.training:  # after an evaluation; the walk over all modules is not for every step
            self.model.train()
        clips_norm = bool(self.config.clip_norm)
        clips_value = bool(self.config.clip_value)
        batches, weights, samples = self._weigh(batches)
        losses, classified, compiled = self._forward_backward(batches, weights, diagnose=diagnose)
        overflow = self.overflows.check_losses(losses, diagnose=diagnose)
        diagnostics: dict[str, Tensor] = {}
        if diagnose or clips_norm or clips_value:
            self.precision.unscale_(self.optimizer)
            if diagnose:
                diagnostics = self._probe.before_update(self.precision.scale_factor())
            elif clips_norm:
                diagnostics = self._probe.measure_norm()
            norm = diagnostics.get(metrics.GRADIENT_NORM)
            overflow = self.overflows.check_gradients(norm, clips_value=clips_value) or overflow
            self._clip(norm)
        skipped = self.precision.step(self.optimizer)
        if skipped is None and self.precision.metadata.scales:
            raise TrainingError(
                f"backend={self.precision.metadata.label}: step() returned None, but a backend that scales "
                "the loss (metadata.scales) must return whether the step was skipped, 1 or 0 as a 0-d "
                "tensor; `return super().step(optimizer)` does"
            )
        overflow = overflow or self.overflows.check_skip(skipped)
        if diagnose:
            diagnostics |= self._probe.after_update(skipped)
            diagnostics |= {} if self._activations is None else self._activations.take()
        self.optimizer.zero_grad(set_to_none=True)
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).float().sum()
        return StepResult(loss, samples, classified, diagnostics, compiled, overflow, skipped)

    def _weigh(self, batches: Sequence[Any]) -> tuple[Sequence[Batch], Sequence[float | Tensor], int]:
        """Return the micro-batches, the factor on the loss of each, and the samples of all processes.

        The last micro-batch of an epoch may be short, and not all targets may count. Over processes the mean
        of gradients and losses is taken.
        """
        processes = self.world.size
        if processes == 1:
            counts = [count_samples(targets) for _, targets in batches]
            samples = sum(counts)
        else:
            samples = sum([count for _, count in batches])
            batches = [batch for batch, _ in batches]
            counts = [count_samples(targets) for _, targets in batches]
        if self.task.weigh is None:
            is_whole = len(batches) == 1 and processes == 1
            factors = [1.0] if is_whole else [count * processes / samples for count in counts]
            return batches, factors, samples
        weights = torch.stack([self.task.weigh(targets) for _, targets in batches]).float()
        return batches, (weights * processes / self.world.sum_(weights.sum())).unbind(), samples

    def _forward_backward(
        self, batches: Sequence[Batch], weights: Sequence[float | Tensor], *, diagnose: bool
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]], bool]:
        """Accumulate the gradients of the micro-batches.

        Returns:
            The weighted loss of each, what is classified (`StepResult`), and whether something was compiled.
        """
        losses = []
        classified = []
        compiled = False
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), 1):
            is_last = number == len(batches)
            with self._gradient_sync(is_last=is_last):
                outputs, loss = self._forward(batch, diagnose=diagnose)
                loss = self._backward(loss, weight, sync=is_last)
            compiled |= self.forward.compiled
            losses.append(loss)
            _, targets = batch
            pair = self.task.classify(outputs, targets)
            if pair is not None:
                classified.append(pair)
        return losses, classified, compiled

    def _gradient_sync(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch: processes add up their gradients in the last one alone."""
        if is_last or self.world.size == 1:
            return NO_CONTEXT
        return self.model.no_sync()  # type: ignore[operator]

    def _forward(self, batch: Batch, *, diagnose: bool) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a micro-batch."""
        recording = self._activations.recording() if diagnose and self._activations else NO_CONTEXT
        try:
            with self.precision.forward_context(), recording:
                return self.forward(*batch)
        except Exception as problem:
            unused = explain_unused_parameters(self.model, problem) if self.world.size > 1 else ""
            if unused:
                raise TrainingError(unused) from None
            note_batch(problem, batch)
            raise

    def _backward(self, loss: Tensor, weight: float | Tensor, *, sync: bool) -> Tensor:
        """Accumulate the gradients of a micro-batch, and return its loss with penalty and weight."""
        penalty = self.config.gradient_penalty
        if penalty:
            loss = loss.float() + penalty * self._gradient_penalty(loss)
        if isinstance(weight, Tensor) or weight != 1:
            loss = loss * weight
        try:
            self.precision.backward(loss, sync=sync)
        except RuntimeError as problem:
            cause = explain_second_derivative(problem) if penalty else ""
            if cause:
                raise TrainingError(f"training.gradient_penalty={penalty:g}: {cause}") from None
            raise
        return loss.detach()

    def _clip(self, norm: Tensor | None) -> None:
        """Clip the unscaled gradients, by value first.

        Args:
            norm: Their norm; None if it was not measured.
        """
        max_value = self.config.clip_value
        max_norm = self.config.clip_norm
        parameters = [p for p in self.updated if p.grad is not None]
        if max_value and parameters:
            values = []
            for parameter in parameters:
                gradient = parameter.grad
                assert gradient is not None
                if gradient.is_sparse:
                    parameter.grad = gradient = gradient.coalesce()  # its values are clipped in place
                values.append(stored_values(gradient))
            torch._foreach_clamp_min_(values, -max_value)
            torch._foreach_clamp_max_(values, max_value)
        if max_norm:
            if max_value or norm is None:
                norm = gradient_norm([p.grad for p in parameters if p.grad is not None])
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)

    def _gradient_penalty(self, loss: Tensor) -> Tensor:
        """Return the L2 norm of the true gradients, differentiable; a weight that the loss lacks counts 0.

        The loss is scaled first, as in PyTorch's AMP examples.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        scaled_loss = self.precision.scale(loss)
        scaled = torch.autograd.grad(scaled_loss, parameters, create_graph=True, allow_unused=True)
        inverse = 1.0 / self.precision.scale_factor().detach()
        used = [view_as_real(g).float() * inverse for g in scaled if g is not None]
        square = torch.stack([gradient.square().sum() for gradient in used]).sum()
        return square.clamp(min=torch.finfo(torch.float32).tiny).sqrt()  # the root has no slope at zero


def group_by_layer(names: Sequence[str], parameters: Sequence[Tensor]) -> Mapping[str, list[Tensor]]:
    """Return the parameters by the top-level module in the name of each.

    They are one group without a name where an optimizer updates another number of parameters.
    """
    if len(names) != len(parameters):
        return {"": [*parameters]}
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in zip(names, parameters, strict=True):
        groups.setdefault(name.partition(".")[0], []).append(parameter)
    return groups


def explain_unused_parameters(model: nn.Module, problem: Exception) -> str:
    """Return one line with the parameters that DDP misses in the loss, or "" for any other problem."""
    if "find_unused_parameters" not in str(problem):
        return ""
    names = [name.removeprefix("module.") for name, p in model.named_parameters() if p.requires_grad]
    missing = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(problem))
    unused = [names[int(index)] for index in missing[1].split()] if missing else []
    return (
        f"parameters that take no part in the loss: {', '.join(unused) or 'unknown'}; "
        "freeze or remove them, or use training.find_unused_parameters=true"
    )


def explain_second_derivative(problem: RuntimeError) -> str:
    """Return which operation has no second derivative, and what to do; "" for any other problem."""
    message = str(problem).partition("\n")[0]
    match = re.search(r"derivative for '?([\w:.]+)'? is not implemented", message)
    if match is None:
        if "differentiate twice" in message or "double backward" in message:
            return f"the network has no second derivative ({message})"
        return ""
    advice = "replace the operation in the network"
    if "attention" in match[1]:
        advice = "call the attention inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    return f"{match[1]} has no second derivative; {advice}, or train without the gradient penalty"


def wrap_in_ddp(model: nn.Module, *, find_unused_parameters: bool = False) -> nn.Module:
    """Return the model in DDP, which averages the gradients of all processes during the backward pass.

    This happens before gradients are unscaled and checked, so inf and nan of one process reach all, and all
    processes skip the same steps. Buffers are not sent at each step: the statistics of BatchNorm matter in
    evaluations only (`DistributedContext.broadcast_buffers`).
    """
    device = next(model.parameters()).device
    known = inspect.signature(DistributedDataParallel).parameters
    # Renamed between PyTorch 2.11 and 2.14.
    sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {sync_buffers: False, "find_unused_parameters": find_unused_parameters}
    return DistributedDataParallel(model, device_ids=[device] if is_cuda(device) else None, **options)


def micro_batches(batches: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """Yield lists of up to `count` batches, the micro-batches of one optimizer step."""
    while group := list(islice(batches, count)):
        yield group


def learning_rate_factor(
    step: int,
    *,
    name: str,
    warmup_steps: float,
    total_steps: int,
    milestones: Sequence[float] = (),
    gamma: float = 0.1,
) -> float:
    """Return the factor on the peak learning rate at a step.

    Linear warm-up comes first. Then the factor is constant, falls to 0 along half a cosine, or is multiplied
    by `gamma` at each milestone.

    Args:
        step: The number of the step, from 0.
        name: `constant`, `cosine` or `multistep`.
        warmup_steps: May have a fraction, because the warm-up is given in epochs.
        total_steps: The steps of the whole run; the cosine ends there.
        milestones: Steps, for `multistep`.
        gamma: The factor at each milestone.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if name == "constant":
        return 1.0
    if name == "multistep":
        return gamma ** sum(step >= milestone for milestone in milestones)
    progress = min(1.0, (step - warmup_steps) / max(1.0, total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))
