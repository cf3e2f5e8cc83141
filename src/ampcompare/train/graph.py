"""A whole training step as one CUDA graph: augmentation, forward, backward, unscale, optimizer, loss scale.

The host's part of a step is a copy of the batch's plan (which image, which crop), the learning rate, and one
launch. All that a step changes lives in tensors that stay where they are; the schedule's learning rates,
Python numbers that a graph would freeze, are written into tensors before each launch.

What runs as it did before: the first steps, an epoch's short last batch, the steps that look at the
gradients. They work on the same tensors and so may come between launches. The full batches of an evaluation
are a graph of their own.

Source: PyTorch's notes on CUDA graphs (whole-network capture, and with torch.amp).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ampcompare.errors import reason
from ampcompare.machine.device import Memory, is_cuda, is_out_of_memory
from ampcompare.precision.base import Precision
from ampcompare.train.errors import TrainingError
from ampcompare.train.evaluation import Evaluation, Loader
from ampcompare.train.task import Task
from ampcompare.train.trainer import Batch, StepResult, Trainer

T = TypeVar("T")

# Real steps before the capture: cuDNN picks algorithms, libraries allocate, the optimizer makes its state.
WARM_UP_STEPS = 3


class GraphTrainer(Trainer):
    """A Trainer whose steps are launches of one graph, on batches of `images`; shorter ones run as they are.

    `make_batch` is the loader's, from the columns of a plan.
    """

    def __init__(self, *args: Any, make_batch: Callable[[Tensor], Batch], images: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.make_batch, self.images = make_batch, images
        self._warm_ups = 0
        self.overflows.may_watch = False
        self.captures = Captures(self.precision.device, self.memory)
        self._replay: Callable[[], None] | None = None

    def evaluation(self, loader: Loader, *, autocast: bool = False) -> Evaluation:
        captures = self.captures
        return GraphEvaluation(
            self.model, loader, self.precision, captures, task=self.task, autocast=autocast
        )

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        return loader.plans(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """One optimizer step on a plan, int64 [4, B] on the device."""
        (plan,) = batches
        full = plan.shape[1] == self.images
        if diagnose or not full or self._warm_ups < WARM_UP_STEPS:
            self._warm_ups += full  # a short batch warms up other kernels, and compiles another graph
            return self._step_without(plan, diagnose)
        cold = self._replay is None
        if self._replay is None:
            self._replay = self._capture(plan)
        self._plan.copy_(plan)
        for rate, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self._replay()
        self.scheduler.step()
        result = self._result
        # Copies: the tensors are the graph's own, and the next launch writes them anew.
        gradients = {key: value.clone() for key, value in result.gradients.items()}
        outputs = [(logits.clone(), labels.clone()) for logits, labels in result.outputs]
        return StepResult(result.loss.clone(), outputs, plan.shape[1], gradients, cold)

    def _step_without(self, plan: Tensor, diagnose: bool) -> StepResult:
        """A step as without a graph, on the stream of the capture, as that demands of steps before it."""
        with self.captures.aside():
            return super().step([self.make_batch(plan)], diagnose=diagnose)

    def _capture(self, plan: Tensor) -> Callable[[], None]:
        """Capture the step. Nothing is computed yet; the launch that follows is the step itself."""
        device = self.precision.device
        self._plan = plan.clone()
        rate = torch.zeros((), dtype=torch.float32, device=device)
        self._rates = [rate.clone() for _ in self.optimizer.param_groups]
        with capturing(self.task):
            replay, self._result = self.captures.capture(self._step_on_device)
        return replay

    def _step_on_device(self) -> StepResult:
        groups = self.optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            return self.compute([self.make_batch(self._plan)])
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number


class GraphEvaluation(Evaluation):
    """An Evaluation whose full batches, but for the first ones, are launches of one graph.

    The graph holds what was in force when it was captured: the casts of `autocast`, TF32.
    """

    def __init__(
        self, model: nn.Module, loader: Any, precision: Precision, captures: Captures, **options: Any
    ) -> None:
        super().__init__(model, loader, precision, **options)
        self._captures = captures
        self._plans, self._make_batch = loader.plans, loader.batch
        self._images = min(loader.batch_size, loader.sample_count)
        self._warm_ups = 0
        self._replay: Callable[[], None] | None = None

    def batches(self) -> Iterator[Any]:
        return self._plans(0)

    def add(self, batch: Any) -> Tensor | None:
        """Add the batch of a plan, int64 [4, B] on the device. Returns the classes given, [B], if any are."""
        full = batch.shape[1] == self._images
        if not full or self._warm_ups < WARM_UP_STEPS:
            self._warm_ups += full
            with self._captures.aside():
                return self._add_plan(batch)
        if self._replay is None:
            self._plan = batch.clone()
            with capturing(self.task):
                self._replay, self._given = self._captures.capture(self._add_captured)
        self._plan.copy_(batch)
        self._replay()
        # The tensor is the graph's own, and the next launch writes it anew.
        return None if self._given is None else self._given.clone()

    def _add_captured(self) -> Tensor | None:
        return self._add_plan(self._plan)

    def _add_plan(self, plan: Tensor) -> Tensor | None:
        return super().add(self._make_batch(plan))


@contextmanager
def capturing(task: Task) -> Iterator[None]:
    """Raise TrainingError where a capture fails and loss or metrics are not ours: one that waits for the
    device cannot be in a graph, and CUDA does not say whose it was.
    """
    try:
        yield
    except RuntimeError as problem:
        if not task.sources or is_out_of_memory(problem):
            raise
        names = ", ".join(key.removeprefix("task_").removesuffix("_source") for key in task.sources)
        why = f"the capture of a graph failed ({reason(problem)})"
        todo = (
            f"does what task.* names ({names}) wait for the device, as .item() does? Or use execution=eager"
        )
        raise TrainingError(f"{why}; {todo}") from problem


class Captures:
    """What the graphs of a training share: the stream of their captures, the count of the memory they keep.

    One stream for every capture and for what runs without a graph: cuBLAS has a workspace for each stream and
    thread that it worked in and keeps it (32 MiB on Hopper; `setWorkspaceForHandle` in
    ATen/cuda/CublasHandlePool.cpp).
    """

    def __init__(self, device: torch.device, memory: Memory) -> None:
        self._device, self._memory = device, memory
        self.stream = torch.cuda.Stream(device) if is_cuda(device) else None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run what is inside on the other stream, between what came before and what comes after.

        After an error, too, the stream is the one from before: a capture that fails leaves its own
        (`torch.cuda.graph.__exit__` ends in the error of the capture's end).
        """
        if self.stream is None:
            yield
            return
        here = torch.cuda.current_stream(self._device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            yield
        here.wait_stream(self.stream)

    def capture(self, step: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """As `capture` below, on that stream and without garbage."""
        with self.aside(), collector_at_rest(), self._memory.keeping():
            return capture(step, self._device)


def capture(step: Callable[[], T], device: torch.device) -> tuple[Callable[[], None], T]:
    """Record what `step` queues, without running it: its launch, and its result, which each launch fills.

    On the current stream, which must not be the default one.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    # sync: once, when the capture begins
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=stream):
        result = step()
    return graph.replay, result


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Collect garbage now and none inside.

    An older graph that is destroyed within a capture fails it, as may anything else that dies with a call to
    CUDA. Trainings that are dropped are freed at once, but torch.compile leaves its graphs and the model in
    cycles, and a caller may have made some of its own. PyTorch collects only before a capture, and only if it
    is told to (`torch.compiler.config.force_cudagraph_gc`).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        gc.collect()
        yield
    finally:
        if was_on:
            gc.enable()
