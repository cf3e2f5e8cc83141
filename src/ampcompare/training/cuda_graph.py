"""A whole training step as one CUDA graph.

The host's part of a step is then a copy of the batch's plan (which image, which crop), the learning rate, and
one launch. All that a step changes lives in tensors that stay where they are; the schedule's learning rates,
Python numbers that a graph would freeze, are written into tensors before each launch.

What runs as it did before: the first steps, an epoch's short last batch, the steps that look at the
gradients. They work on the same tensors and so may come between launches.

Source: PyTorch's notes on CUDA graphs (whole-network capture, and with torch.amp).
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ampcompare.data.batch import Batch
from ampcompare.system.device import is_cuda
from ampcompare.training.interval import StepResult
from ampcompare.training.timing import FIRST_STEPS
from ampcompare.training.trainer import Trainer

T = TypeVar("T")


class GraphTrainer(Trainer):
    """A Trainer whose steps are launches of one graph, on batches of `images`; shorter ones run as they are.

    `make_batch` is the loader's, from the columns of a plan.
    """

    def __init__(self, *args: Any, make_batch: Callable[[Tensor], Batch], images: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.make_batch = make_batch
        self.overflows.may_watch = False
        device = self.precision.device
        # One for every capture and for what runs without a graph: cuBLAS has a workspace for each stream and
        # thread that it worked in and keeps it (32 MiB on Hopper; `setWorkspaceForHandle` in
        # ATen/cuda/CublasHandlePool.cpp).
        self._stream = torch.cuda.Stream(device) if is_cuda(device) else None
        self._rates = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]
        self._images, self._warm_ups = images, 0
        self._replay: Callable[[], None] | None = None

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        return loader.plans(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """One optimizer step on a plan, int64 [4, B] on the device."""
        (plan,) = batches
        # The first full ones are no launches: cuDNN picks algorithms, libraries allocate, the optimizer makes
        # its state. A short one warms up other kernels.
        full = plan.shape[1] == self._images
        self._warm_ups += full
        if not full or self._warm_ups <= FIRST_STEPS or diagnose:
            with on_stream(self._stream):
                return super().step([self.make_batch(plan)], diagnose=diagnose)
        for rate, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if compiled := self._replay is None:
            # Nothing keeps the function: a method of what has the graph would keep that alive.
            self._plan = plan.clone()
            with _explained_capture_errors(), on_stream(self._stream), paused_garbage_collection():
                self._replay, self._result = capture(partial(self._step_on_device, self._plan), plan.device)
        self._plan.copy_(plan)
        self._replay()  # it fills the graph's own tensors, which the next launch writes anew
        self.scheduler.step()
        result = self._result
        diagnostics = {key: value.clone() for key, value in result.diagnostics.items()}
        classified = [(logits.clone(), classes.clone()) for logits, classes in result.classified]
        return StepResult(result.loss.clone(), plan.shape[1], classified, diagnostics, compiled)

    def _step_on_device(self, plan: Tensor) -> StepResult:
        groups = self.optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            return self.compute([self.make_batch(plan)])
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number


@contextmanager
def _explained_capture_errors() -> Iterator[None]:
    """Add to what fails a capture what may have: CUDA does not say whose it was."""
    try:
        yield
    except RuntimeError as problem:
        what = "what waits for the device, as .item() does in a loss or a metric, cannot be in one"
        problem.add_note(f"in the capture of a CUDA graph; {what}: execution=eager does without")
        raise


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run what is inside on that stream, between what came before and what comes after.

    After an error, too, the stream is the one from before: a capture that fails leaves its own
    (`torch.cuda.graph.__exit__` ends in the error of the capture's end).
    """
    if stream is None:
        yield
        return
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        yield
    here.wait_stream(stream)


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
def paused_garbage_collection() -> Iterator[None]:
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
