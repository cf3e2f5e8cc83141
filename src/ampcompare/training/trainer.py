"""The training step, in one process or in several. No backend is named here.

The host waits for the device only where a comment says `sync:`, and never in a step (except inside the
backend with an optimizer that is not fused).
"""

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampcompare import metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.data.batch import Batch, count_samples, note_batch
from ampcompare.errors import TrainingError
from ampcompare.precision.base import Precision
from ampcompare.precision.casting import view_as_real
from ampcompare.system.device import is_cuda
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.diagnostics.activations import ActivationRecorder
from ampcompare.training.diagnostics.gradients import gradient_norm, measure_gradients
from ampcompare.training.diagnostics.updates import lost_updates, sample_weights
from ampcompare.training.interval import StepResult
from ampcompare.training.overflow_detection import BufferMonitor, OverflowDetector, OverflowSource
from ampcompare.training.task import Task
from ampcompare.training.torch_compile import CompiledForward, Forward


class Trainer:
    """Takes optimizer steps under any backend: accumulate, penalise, unscale, diagnose, clip, step.

    Args:
        model: The prepared model, in DDP for several processes.
        optimizer: The prepared optimizer.
        scheduler: The schedule of the learning rate.
        precision: The backend.
        config: The options of training.
        task: The loss, and what predictions are compared with.
        compiled: Whether forward and loss are compiled.
        world: The processes of the training.
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
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.precision, self.config, self.world = precision, config, world or DistributedContext()
        self._may_skip = type(precision).step is not Precision.step
        # The optimizer's parameters are the model's in their order, masters in their place or not.
        names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
        self._layer_groups = [name.partition(".")[0] for name in names]
        self.task = task
        self.forward = (CompiledForward if compiled else Forward)(model, self.task.loss)
        self.buffers = BufferMonitor(model, restores=config.on_nonfinite_buffers == "restore")
        self.overflows = OverflowDetector(names, precision.device, [*model.parameters()])
        # A compiled graph has no place for hooks.
        self.activations = None if compiled else ActivationRecorder(model, precision.device)

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch from number `start` on, as `step` takes them.

        With several processes each batch comes with the samples that all of them have together.
        """
        return loader.epoch(epoch, start) if self.world.size == 1 else loader.epoch_with_sizes(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """Take one optimizer step on the micro-batches, as if they were one batch. Waits for nothing.

        Args:
            batches: The micro-batches, as `feed` yields them.
            diagnose: Whether the result has `grad/norm`, underflow fractions, statistics of activations and,
                with 16-bit weights, lost updates. With clipping by norm it always has `grad/norm`.

        Raises:
            TrainingError: The batch does not fit the model; notes tell the shapes.
        """
        result = self.compute(batches, diagnose=diagnose)
        self.scheduler.step()
        return result

    def compute(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """Do what the device does in a step: all but the schedule."""
        if not self.model.training:  # after an evaluation; the walk over all modules is not for every step
            self.model.train()
        if self.world.size == 1:
            counts = [count_samples(targets) for _, targets in batches]
            samples = sum(counts)
        else:
            samples = sum([count for _, count in batches])  # of all processes
            batches = [batch for batch, _ in batches]
            counts = [count_samples(targets) for _, targets in batches]
        saved_buffers = self.buffers.save() if self.buffers.restores else None
        is_whole = len(batches) == 1 and self.world.size == 1 and self.task.weigh is None
        weights = (1.0,) if is_whole else self._loss_weights(batches, counts, samples)
        losses, classified, compiled, last = [], [], False, len(batches) - 1
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
            # Processes add up their gradients in the last micro-batch of a step alone.
            if number == last or self.world.size == 1:
                outputs, loss = self._forward_backward(batch, weight, diagnose, sync=number == last)
            else:
                with self.model.no_sync():  # type: ignore[operator]
                    outputs, loss = self._forward_backward(batch, weight, diagnose, sync=False)
            compiled |= self.forward.compiled
            losses.append(loss)
            if (pair := self.task.classify(outputs, batch[1])) is not None:
                classified.append(pair)

        overflow = None
        # On the host a skip is known at once, and its gradients are read behind it (`_step`).
        if self.overflows.on_host:
            # Looked at before the update: afterwards the weights may be NaN because the loss is.
            if not all(bool(loss.isfinite()) for loss in losses):
                overflow = self.overflows.locate(self._parameters())
        elif self.overflows.must_check(diagnose):
            overflow = self.overflows.locate(self._parameters())
        diagnostics: dict[str, Tensor] = {}
        if diagnose or self.config.clip_norm or self.config.clip_value:
            diagnostics, overflow = self._diagnose_and_clip(diagnose, overflow)
        updates, overflow = self._step(diagnose, saved_buffers, overflow)
        if diagnose:
            diagnostics |= updates
            if self.activations is not None:
                diagnostics |= self.activations.take()
        self.optimizer.zero_grad(set_to_none=True)
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).float().sum()
        return StepResult(loss, samples, classified, diagnostics, compiled, overflow)

    def _forward_backward(
        self, batch: Batch, weight: float | Tensor, diagnose: bool, *, sync: bool
    ) -> tuple[Any, Tensor]:
        """Return the outputs and the weighted loss of a micro-batch, and accumulate its gradients."""
        try:
            with self.precision.forward_context():
                if diagnose and self.activations is not None:
                    with self.activations.recording():
                        outputs, loss = self.forward(*batch)
                else:
                    outputs, loss = self.forward(*batch)
        except Exception as problem:
            if self.world.size > 1 and (line := name_unused(self.model, problem)):
                raise TrainingError(line) from None
            note_batch(problem, batch)
            raise
        if self.config.gradient_penalty:
            loss = loss.float() + self.config.gradient_penalty * self._gradient_penalty(loss)
        if isinstance(weight, Tensor) or weight != 1:
            loss = loss * weight
        try:
            self.precision.backward(loss, sync=sync)
        except RuntimeError as problem:
            line = explain_second_derivative(problem) if self.config.gradient_penalty else ""
            if line:
                raise TrainingError(
                    f"training.gradient_penalty={self.config.gradient_penalty:g}: {line}"
                ) from None
            raise
        return outputs, loss.detach()

    def _loss_weights(
        self, batches: Sequence[Batch], counts: Sequence[int], samples: int
    ) -> Sequence[float | Tensor]:
        """Return the factor on the loss of each micro-batch.

        The last one of an epoch may be short, and not all targets may count. Over processes the mean of
        gradients and losses is taken.
        """
        if self.task.weigh is None:
            return [count * self.world.size / samples for count in counts]
        weights = torch.stack([self.task.weigh(targets) for _, targets in batches]).float()
        return (weights * self.world.size / self.world.sum_(weights.sum())).unbind()

    def _diagnose_and_clip(
        self, diagnose: bool, overflow: OverflowSource | None
    ) -> tuple[dict[str, Tensor], OverflowSource | None]:
        """Clip the gradients. Return their diagnostics by metric key, and where they overflowed."""
        config, precision = self.config, self.precision
        precision.unscale_(self.optimizer)
        parameters = [p for p in self._parameters() if p.grad is not None]
        diagnostics = {}
        if diagnose or config.clip_norm:
            diagnostics[metrics.GRADIENT_NORM] = self._norm(parameters)
        if diagnose:
            diagnostics |= measure_gradients(self._by_layer(gradients=True), precision.scale_factor())
        # Clipping hides an overflow: by norm it makes all gradients nan, by value none infinite.
        # Only on the host, where asking a norm whether it is finite is no wait.
        norm = diagnostics.get(metrics.GRADIENT_NORM)
        if self.overflows.on_host and (config.clip_value or (norm is not None and not norm.isfinite())):
            overflow = self.overflows.locate(self._parameters())
        if config.clip_value:
            # PyTorch clamps no complex numbers: their real and imaginary parts are clipped.
            if real := [p for p in parameters if not p.is_complex()]:
                clip_grad_value_(real, config.clip_value)
            for gradient in (p.grad for p in parameters if p.is_complex() and p.grad is not None):
                view_as_real(gradient).clamp_(-config.clip_value, config.clip_value)
        if config.clip_norm:
            if config.clip_value or norm is None:
                norm = self._norm(parameters)
            torch.nn.utils.clip_grads_with_norm_(parameters, config.clip_norm, norm)
        return diagnostics, overflow

    def _step(
        self, diagnose: bool, saved_buffers: Any, overflow: OverflowSource | None
    ) -> tuple[dict[str, Tensor], OverflowSource | None]:
        """Take the optimizer's step, or skip it; then restore the buffers if that is asked for.

        Returns:
            With `diagnose` the updates that rounding lost, and where the gradients of a skipped step
            overflowed.
        """
        precision, on_host, half = self.precision, self.overflows.on_host, {}
        if diagnose and precision.metadata.updates_half:
            half = {name: sample_weights(group) for name, group in self._by_layer().items()}
        if not (half or saved_buffers is not None or (on_host and self._may_skip)):
            precision.step(self.optimizer)
            return {}, overflow
        before = precision.skipped_steps().clone()  # counted in place
        precision.step(self.optimizer)
        skipped = precision.skipped_steps() > before
        if saved_buffers is not None:
            self.buffers.restore(saved_buffers, skipped)
        if on_host and skipped and overflow is None:  # on the host, where there is nothing to wait for
            overflow = self.overflows.locate(self._parameters())
        return lost_updates(half, skipped), overflow

    @staticmethod
    def _norm(parameters: Sequence[Tensor]) -> Tensor:
        """Return the L2 norm of the gradients in fp32; in fp16 the norm would overflow."""
        return gradient_norm([p.grad for p in parameters if p.grad is not None])

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _by_layer(self, *, gradients: bool = False) -> dict[str, list[Tensor]]:
        """Return the parameters by layer group, or their gradients where there are any."""
        groups: dict[str, list[Tensor]] = {}
        for name, parameter in zip(self._layer_groups, self._parameters(), strict=True):
            if (tensor := parameter.grad if gradients else parameter) is not None:
                groups.setdefault(name, []).append(tensor)
        return groups

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


def name_unused(model: nn.Module, problem: Exception) -> str:
    """Return one line with the parameters that DDP misses in the loss, or "" for any other problem."""
    if "find_unused_parameters" not in str(problem):
        return ""
    names = [name.removeprefix("module.") for name, p in model.named_parameters() if p.requires_grad]
    missing = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(problem))
    unused = [names[int(index)] for index in missing[1].split()] if missing else []
    what = f"parameters that take no part in the loss: {', '.join(unused) or 'unknown'}"
    return f"{what}; freeze or remove them, or use training.find_unused_parameters=true"


def explain_second_derivative(problem: RuntimeError) -> str:
    """Return which operation has no second derivative, and what to do; "" for any other problem."""
    message = str(problem).partition("\n")[0]
    operation = re.search(r"derivative for '?([\w:.]+)'? is not implemented", message)
    if operation is None:
        is_other = "differentiate twice" in message or "double backward" in message
        return f"the network has no second derivative ({message})" if is_other else ""
    line = f"{operation[1]} has no second derivative"
    if "attention" in operation[1]:
        math = "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        return f"{line}; call the attention inside {math}, or train without the gradient penalty"
    return f"{line}; replace the operation in the network, or train without the gradient penalty"


def wrap_in_ddp(model: nn.Module, *, find_unused_parameters: bool = False) -> nn.Module:
    """Return the model in DDP, which averages the gradients of all processes during the backward pass.

    This happens before gradients are unscaled and checked, so inf and nan of one process reach all, and all
    processes skip the same steps. Buffers are not sent at each step: the statistics of BatchNorm matter in
    evaluations only (`DistributedContext.broadcast_buffers`).
    """
    device = next(model.parameters()).device
    known = inspect.signature(DistributedDataParallel).parameters
    # Renamed between PyTorch 2.11 and 2.14.
    quiet = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    ids = [device] if is_cuda(device) else None
    options: dict[str, Any] = {quiet: False, "find_unused_parameters": find_unused_parameters}
    return DistributedDataParallel(model, device_ids=ids, **options)


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
        warmup_steps: The steps of warm-up.
        total_steps: The steps of the whole run.
        milestones: Steps, for `multistep`.
        gamma: The factor of a milestone.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if name == "constant":
        return 1.0
    if name == "multistep":
        return gamma ** sum(step >= milestone for milestone in milestones)
    progress = min(1.0, (step - warmup_steps) / max(1.0, total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))
