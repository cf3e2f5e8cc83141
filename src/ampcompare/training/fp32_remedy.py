"""What helps a network that a backend cannot compute, while fp32 can: found by trying it.

Some operations have no kernel for 16 bits, or refuse a mix of dtypes. Trials with new networks first show
that forward, loss and backward run in fp32. Then they find the modules that fail, and keep these in fp32.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch, map_tensors
from ampcompare.precision.base import Precision
from ampcompare.precision.keep_fp32 import OPTION
from ampcompare.system.device import autocast_name
from ampcompare.training.losses_and_metrics import call_network
from ampcompare.training.task import Task

MAX_TRIALS = 20
SAMPLES = 2
WHOLE = "*"
LOSS = "the loss"
NETWORK = ""  # the name of the network itself, as in `named_modules()`

# Returns a new network that the backend of a config has prepared, and the backend.
Build = Callable[[Config], tuple[nn.Module, Precision]]


def find_fp32_remedy(config: Config, build: Build, task: Task, load_batch: Callable[[], Batch]) -> str:
    """Return the end of a message: what to keep in fp32, so that the batch runs under the config's backend.

    Args:
        config: The options under which the batch failed.
        build: Called for each trial.
        load_batch: Returns the batch that failed, or one like it; two samples of it are used.

    Returns:
        "" if the batch fails in fp32 as well, does not fail again, or if no remedy is found.
    """
    try:
        return _Trials(config, build, task, load_batch()).find_remedy()
    except (Exception, SystemExit):  # the user's code may fail when it is called again
        return ""


class _Trials:
    """Trials of the same batch with new networks.

    Attributes:
        model: The network of the last trial.
        precision: Its backend.
        before: The modules that the config keeps in fp32.
    """

    model: nn.Module
    precision: Precision

    def __init__(self, config: Config, build: Build, task: Task, batch: Batch) -> None:
        self.config = config
        self.build = build
        self.task = task
        self.batch = batch
        self.before = [*(config.precision.keep_fp32 or ())]

    def find_remedy(self) -> str:
        """Return the end of the message, as `find_fp32_remedy`."""
        if self.run([WHOLE], casts_loss=False) is not None:
            return ""
        kept: list[str] = []
        for _ in range(MAX_TRIALS):
            place = self.run(kept)
            if place is None:
                return self._describe_modules(kept) if kept else ""
            if place in (NETWORK, LOSS):
                return self._describe_operation(place, kept)
            if any(place == name or place.startswith(f"{name}.") for name in kept):
                return ""
            kept = [name for name in kept if not name.startswith(f"{place}.")] + [place]
        return ""

    def run(self, kept: Sequence[str], *, casts_loss: bool = True) -> str | None:
        """Run forward and loss in evaluation mode, then forward, loss and backward in training mode.

        Args:
            kept: The modules that are kept in fp32, besides those of the config.
            casts_loss: Whether the loss is computed under the backend's casts.

        Returns:
            The name of the innermost module that failed, LOSS, or None if nothing failed.
        """
        options = dataclasses.replace(self.config.precision, keep_fp32=[*self.before, *kept] or None)
        model, precision = self.build(dataclasses.replace(self.config, precision=options))
        self.model, self.precision = model, precision
        inputs, targets = (
            map_tensors(field, lambda t: t[:SAMPLES].clone().to(precision.device)) for field in self.batch
        )
        calls = _Calls(model)
        try:
            with (
                precision.training_context(),
                torch.autograd.graph.saved_tensors_hooks(calls.pack, calls.unpack),
            ):
                for training in (False, True):
                    model.train(training)
                    with precision.forward_context():
                        outputs = call_network(model, inputs)
                        device = autocast_name(precision.device)
                        with nullcontext() if casts_loss else precision.casts_off(device):
                            loss = self.task.loss(outputs, targets)
                precision.backward(loss)
        except (Exception, SystemExit):
            return calls.place
        return None

    def _describe_modules(self, kept: list[str]) -> str:
        modules = dict(self.model.named_modules(remove_duplicate=False))
        classes = dict.fromkeys(type(modules[name]).__name__ for name in kept)
        label = f"module{'s' if len(kept) > 1 else ''} {', '.join(kept)} ({', '.join(classes)})"
        option = self._format_option(kept)
        return f"; backend={self.config.backend} cannot compute {label}, fp32 can: use {option}"

    def _describe_operation(self, place: str, kept: list[str]) -> str:
        """Return what to do about an operation that `precision.keep_fp32` cannot name."""
        where = "the loss" if place == LOSS else f"the network's own forward ({type(self.model).__name__})"
        device = autocast_name(self.precision.device)
        with self.precision.training_context(), self.precision.forward_context():
            has_autocast = torch.is_autocast_enabled(device)
        advice = "call .float() on the inputs of the operation"
        if has_autocast:
            advice += f' and run it inside torch.autocast("{device}", enabled=False)'
        if place == NETWORK:
            advice += f", or move it into a module of its own and name that in {OPTION}"
        if kept:
            advice = f"use {self._format_option(kept)}, and {advice}"
        return f"; backend={self.config.backend} cannot compute an operation in {where}, fp32 can: {advice}"

    def _format_option(self, kept: list[str]) -> str:
        return f"{OPTION}={','.join([*self.before, *kept])}"


class _Calls:
    """The module calls of a trial, so that a failure can be located.

    In the backward, the module of the node that runs is that in which the node saved its tensors.

    Attributes:
        place: The name of the innermost module that runs, or LOSS.
    """

    def __init__(self, model: nn.Module) -> None:
        self._stack = [LOSS]
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._make_hook(name, enters=True))
            module.register_forward_hook(self._make_hook(name, enters=False))

    @property
    def place(self) -> str:
        return self._stack[-1]

    def _make_hook(self, name: str, *, enters: bool) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            if enters:
                self._stack.append(name)
            else:  # an exception that the user's code catches leaves inner modules on the stack
                del self._stack[len(self._stack) - 1 - self._stack[::-1].index(name) :]

        return hook

    def pack(self, tensor: Tensor) -> tuple[str, Tensor]:
        """Note where a tensor is saved."""
        return self.place, tensor.detach()

    def unpack(self, saved: tuple[str, Tensor]) -> Tensor:
        """Return a saved tensor; the node that saved it runs next."""
        place, tensor = saved
        self._stack = [place]
        return tensor
