"""A whole training step as one CUDA graph.

In such a step the host copies the plan of the batch (which images, which crops), writes the learning rate,
and launches the graph. Everything that a step changes lives in tensors that stay in place. The graph would
freeze the learning rates of the schedule, which are Python numbers, so they are written into tensors before
each launch.

The first steps, the short last batch of an epoch and diagnostic steps run without the graph. They work on the
same tensors, so they may come between launches.

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
    """A Trainer whose steps are launches of one graph; shorter batches run without it.

    Args:
        args: As for `Trainer`.
        make_batch: Makes a batch from the columns of a plan, as the loader does.
        images: The images of a full batch.
        kwargs: As for `Trainer`.
    """

    def __init__(self, *args: Any, make_batch: Callable[[Tensor], Batch], images: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.make_batch = make_batch
        self.overflows.may_watch = False
        device = self.precision.device
        # One stream for captures and for steps without a graph: cuBLAS keeps a workspace for each stream and
        # thread (32 MiB on Hopper; `setWorkspaceForHandle` in ATen/cuda/CublasHandlePool.cpp).
        self._stream = torch.cuda.Stream(device) if is_cuda(device) else None
        self._rates = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]
        self._images = images
        self._warm_ups = 0
        self._replay: Callable[[], None] | None = None

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the plans of an epoch from number `start` on."""
        return loader.plans(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        """Take one optimizer step on a plan, int64 [4, B] on the device."""
        (plan,) = batches
        # The first full steps run without a graph: cuDNN chooses algorithms, libraries allocate memory, the
        # optimizer makes its state. A short step warms up other kernels.
        full = plan.shape[1] == self._images
        self._warm_ups += full
        if not full or self._warm_ups <= FIRST_STEPS or diagnose:
            with on_stream(self._stream):
                return super().step([self.make_batch(plan)], diagnose=diagnose)
        for rate, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        must_capture = self._replay is None
        if must_capture:
            self._plan = plan.clone()
            with _explained_capture_errors(), on_stream(self._stream), paused_garbage_collection():
                # The function is not stored: a bound method of the owner would keep the owner alive.
                self._replay, self._result = capture(partial(self._step_on_device, self._plan), plan.device)
        assert self._replay is not None
        self._plan.copy_(plan)
        self._replay()  # overwrites the graph's own tensors, so the results are cloned below
        self.scheduler.step()
        result = self._result
        return StepResult(
            result.loss.clone(),
            samples=plan.shape[1],
            classified=[(logits.clone(), classes.clone()) for logits, classes in result.classified],
            diagnostics={key: value.clone() for key, value in result.diagnostics.items()},
            compiled=must_capture,
            skipped=None if result.skipped is None else result.skipped.clone(),
        )

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
    """Add a note on likely causes to an error of the capture; CUDA does not name the culprit."""
    try:
        yield
    except RuntimeError as problem:
        problem.add_note(
            "while capturing a CUDA graph; "
            "code that waits for the GPU, such as .item() in a loss or a metric, cannot be captured; "
            "execution=eager needs no capture"
        )
        raise


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run the body on the stream, after the work queued before and before the work queued later.

    The current stream is restored after an error too: a capture that fails leaves its own stream
    (`torch.cuda.graph.__exit__` raises the error of the capture's end).
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
    """Record what `step` queues, without running it, on the current stream.

    The current stream must not be the default one.

    Returns:
        The function that launches the graph, and the result of `step`, whose tensors each launch overwrites.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    # sync: once, when the capture begins
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=stream):
        result = step()
    return graph.replay, result


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Collect garbage first, and none while the body runs.

    If an older graph is destroyed during a capture, the capture fails. The same holds for any object whose
    destructor calls CUDA. Trainers that are dropped are freed at once, but torch.compile leaves graphs and
    model in cycles, and a caller may have cycles too. PyTorch collects only before a capture, and only if
    told to (`torch.compiler.config.force_cudagraph_gc`).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        gc.collect()
        yield
    finally:
        if was_on:
            gc.enable()
