"""The training step, of one process or of one among several. No backend is named here.

The host waits for the device where a comment says `sync:` and nowhere else, never in a step (but for an
optimizer that is not fused, inside the backend).
"""

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from ampcompare.data.batch import Batch, count_samples
from ampcompare.machine.device import is_cuda
from ampcompare.machine.world import World
from ampcompare.precision.base import Precision
from ampcompare.precision.casting import as_real
from ampcompare.train.compiled import CompiledForward, Forward
from ampcompare.train.errors import TrainingError, note_batch
from ampcompare.train.measure.activations import Activations
from ampcompare.train.measure.gradients import gradient_norm, look_at_gradients
from ampcompare.train.measure.updates import lost_updates, sampled
from ampcompare.train.meter import Result
from ampcompare.train.overflows import Buffers, Found, Overflows
from ampcompare.train.task import Task

NOTHING = nullcontext()  # one for all steps


class Trainer:
    """One optimizer step under any backend: accumulate, penalise, unscale, look, clip, step."""

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
        world: World | None = None,
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.precision, self.config, self.world = precision, config, world or World()
        self._may_skip = type(precision).step is not Precision.step
        # The optimizer's parameters are the model's in their order, masters in their place or not.
        names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
        self._layer_groups = [name.partition(".")[0] for name in names]
        self.task = task
        self.forward = (CompiledForward if compiled else Forward)(model, self.task.loss)
        self.buffers = Buffers(model, restores=config.on_nonfinite_buffers == "restore")
        self.overflows = Overflows(names, precision.device)
        # A compiled graph has no place for hooks.
        self.activations = None if compiled else Activations(model, precision.device)

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from number `start` on, as `step` takes them: of several processes with the
        samples that they have together.
        """
        return loader.epoch(epoch, start) if self.world.size == 1 else loader.shares(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> Result:
        """One optimizer step on the micro-batches, as if they were one batch. No host sync of its own.

        With `diagnose` it has `grad/norm`, underflow fractions, what there is of activations and, of half
        weights, lost updates; with clipping by norm, `grad/norm`. What a batch unlike the first one brings
        about has their shapes as a note.
        """
        result = self.compute(batches, diagnose=diagnose)
        self.scheduler.step()
        return result

    def compute(self, given: Sequence[Any], *, diagnose: bool = False) -> Result:
        """What the device does in a step: all but the schedule."""
        precision, config = self.precision, self.config
        if not self.model.training:  # after an evaluation; the walk over all modules is not for every step
            self.model.train()
        if self.world.size == 1:
            batches: Sequence[Batch] = given
            samples = sum([count_samples(targets) for _, targets in batches])
        else:
            batches, samples = [batch for batch, _ in given], sum(count for _, count in given)
        kept = self.buffers.keep() if self.buffers.restores else None
        losses, right, cold, judge = [], [], False, self.task.judge
        shares = self._shares(batches, samples)
        for number, (inputs, targets) in enumerate(batches, 1):
            last, share = number == len(batches), shares[number - 1]
            # In a step's last one alone processes add up their gradients.
            with NOTHING if last or self.world.size == 1 else self.model.no_sync():  # type: ignore[operator]
                try:
                    with precision.forward_context(), self._looking(diagnose):
                        outputs, loss = self.forward(inputs, targets)
                except Exception as problem:
                    if self.world.size > 1 and (line := name_unused(self.model, problem)):
                        raise TrainingError(line) from None
                    note_batch(problem, (inputs, targets))
                    raise
                cold |= self.forward.cold
                if config.gradient_penalty:
                    loss = loss.float() + config.gradient_penalty * self._gradient_penalty(loss)
                if isinstance(share, Tensor) or share != 1:
                    loss = loss * share
                precision.backward(loss, sync=last)
            losses.append(loss.detach())
            if judge is not None and (found := judge(outputs, targets)) is not None:
                right.append(found)

        suspect = self.overflows.look(self._parameters()) if self.overflows.suspects(diagnose) else None
        looks, suspect = self._look_and_clip(diagnose, suspect)
        updates, overflow = self._step(diagnose, kept, suspect)
        looks |= updates
        if diagnose and self.activations is not None:
            looks |= self.activations.take()
        self.optimizer.zero_grad(set_to_none=True)
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).float().sum()
        return Result(loss, samples, right, looks, cold, overflow)

    def _shares(self, batches: Sequence[Batch], samples: int) -> Sequence[float | Tensor]:
        """The factor on each micro-batch's loss: the last one of an epoch may be short, and of others not all
        targets may count. Over processes the mean is taken of gradients and losses.
        """
        if self.task.weigh is None:
            return [count_samples(targets) * self.world.size / samples for _, targets in batches]
        weights = torch.stack([self.task.weigh(targets) for _, targets in batches]).float()
        return (weights * self.world.size / self.world.sum_(weights.sum())).unbind()

    def _looking(self, diagnose: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch's forward: its activations may be looked at."""
        return self.activations.looking() if diagnose and self.activations is not None else NOTHING

    def _look_and_clip(self, diagnose: bool, suspect: Found | None) -> tuple[dict[str, Tensor], Found | None]:
        config, precision = self.config, self.precision
        if not (diagnose or config.clip_norm or config.clip_value):
            return {}, suspect
        precision.unscale_(self.optimizer)
        parameters = [p for p in self._parameters() if p.grad is not None]
        found: dict[str, Tensor] = {}
        if diagnose or config.clip_norm:
            found[metrics.GRADIENT_NORM] = self._norm(parameters)
        if diagnose:
            found |= look_at_gradients(self._by_layer(gradients=True), precision.scale_factor())
        # Clipping hides an overflow: by norm it makes all gradients nan, by value none infinite.
        # Only on the host, where to ask a norm whether it is finite is no wait.
        if self.overflows.on_host and (config.clip_value or not found[metrics.GRADIENT_NORM].isfinite()):
            suspect = self.overflows.look(self._parameters())
        if config.clip_value:
            # PyTorch clamps no complex numbers: their real and imaginary parts are clipped.
            if real := [p for p in parameters if not p.is_complex()]:
                clip_grad_value_(real, config.clip_value)
            for gradient in (p.grad for p in parameters if p.is_complex() and p.grad is not None):
                as_real(gradient).clamp_(-config.clip_value, config.clip_value)
        if config.clip_norm:
            norm = self._norm(parameters) if config.clip_value else found[metrics.GRADIENT_NORM]
            torch.nn.utils.clip_grads_with_norm_(parameters, config.clip_norm, norm)
        return found, suspect

    def _step(
        self, diagnose: bool, kept: Any, suspect: Found | None
    ) -> tuple[dict[str, Tensor], Found | None]:
        """The optimizer's step, or the skip, after which buffers may have to be put back as `kept`.

        Returns, with `diagnose`, which updates were lost to rounding, and of a skip where it overflowed.
        """
        precision, on_host, half = self.precision, self.overflows.on_host, {}
        if diagnose and precision.metadata.updates_half:
            half = {name: sampled(group) for name, group in self._by_layer().items()}
        if not (half or kept is not None or (on_host and self._may_skip)):
            precision.step(self.optimizer)
            return {}, suspect
        before = precision.skipped_steps().clone()  # counted in place
        precision.step(self.optimizer)
        skipped = precision.skipped_steps() > before
        if kept is not None:
            self.buffers.put_back(kept, skipped)
        if on_host and skipped and suspect is None:  # on the host, where there is nothing to wait for
            suspect = self.overflows.look(self._parameters())
        return lost_updates(half, skipped), suspect

    @staticmethod
    def _norm(parameters: Sequence[Tensor]) -> Tensor:
        """In fp32: the norm of fp16 gradients, taken in fp16, overflows."""
        return gradient_norm([p.grad for p in parameters if p.grad is not None])

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _by_layer(self, *, gradients: bool = False) -> dict[str, list[Tensor]]:
        """The parameters by layer group, or their gradients, where there are any."""
        groups: dict[str, list[Tensor]] = {}
        for name, parameter in zip(self._layer_groups, self._parameters(), strict=True):
            if (tensor := parameter.grad if gradients else parameter) is not None:
                groups.setdefault(name, []).append(tensor)
        return groups

    def _gradient_penalty(self, loss: Tensor) -> Tensor:
        """L2 norm of the true gradients, differentiable; scaled first, as in PyTorch's AMP examples."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        scaled = torch.autograd.grad(self.precision.scale(loss), parameters, create_graph=True)
        inverse = 1.0 / self.precision.scale_factor().detach()
        square = torch.stack([(as_real(g).float() * inverse).square().sum() for g in scaled]).sum()
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


def wrap(model: nn.Module, *, find_unused_parameters: bool = False) -> nn.Module:
    """The model in DDP, which adds up the gradients of all processes while they are computed: before they
    are unscaled and looked at, so that inf and nan of one process are in all, and all skip the same steps.

    Buffers are not sent at each step: BatchNorm's statistics count in evaluations alone (`share_buffers`).
    """
    device = next(model.parameters()).device
    known = inspect.signature(DistributedDataParallel).parameters
    # Renamed between PyTorch 2.11 and 2.14.
    quiet = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    ids = [device] if is_cuda(device) else None
    options: dict[str, Any] = {quiet: False, "find_unused_parameters": find_unused_parameters}
    return DistributedDataParallel(model, device_ids=ids, **options)


def micro_batches(batches: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """Lists of up to `count` batches: the micro-batches of one optimizer step."""
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
    """The factor on the peak learning rate at a step: linear warm-up, then constant, half a cosine to 0, or
    `gamma` times as much from each of the `milestones` (steps) on.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if name == "constant":
        return 1.0
    if name == "multistep":
        return gamma ** sum(step >= milestone for milestone in milestones)
    progress = min(1.0, (step - warmup_steps) / max(1.0, total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))
