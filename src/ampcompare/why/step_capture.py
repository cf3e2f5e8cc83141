"""Capture one real training step: the inputs, outputs and gradients of every module call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ampcompare.data.batch import Batch
from ampcompare.training.trainer import Trainer


@dataclass(eq=False)  # compared by identity: `==` of tensors is no bool
class ModuleCall:
    """One call of a module, with copies of its inputs and outputs.

    Gradients are those of the backward pass, so they include the loss scale. Their keys are indices among the
    floating-point tensors of the inputs or of the output.

    Attributes:
        name: The module's name, "" for the network itself.
        number: The index of this call among the calls of this module, from 0.
        inputs: Positional and keyword arguments.
        buffers: Copies of the module's buffers before the call, by name: a module may count its calls.
        output: What the module returned.
        inner_calls: The calls that this module made itself, in order.
    """

    name: str
    number: int
    inputs: Any
    buffers: dict[str, Tensor] = field(default_factory=dict)
    output: Any = None
    inner_calls: list[ModuleCall] = field(default_factory=list)
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """Name and number, which identify the call within a step."""
        return self.name, self.number


@dataclass
class CapturedStep:
    """One training step with all its module calls.

    Attributes:
        calls: The calls by their key, in the order in which they ended.
        backward: The calls in the order in which the backward pass reached their outputs.
        scale: The loss scale before the step.
        skipped: Whether the optimizer step was skipped.
        gradients: The unscaled gradient of each parameter, by name.
        updates: What the step added to each parameter, by name; float64.
    """

    calls: dict[tuple[str, int], ModuleCall]
    backward: list[ModuleCall]
    loss: float
    scale: float
    skipped: bool
    gradients: dict[str, Tensor]
    updates: dict[str, Tensor]


def capture_step(
    trainer: Trainer,
    batches: Sequence[Batch],
    set_random_states: Callable[[], None],
    *,
    with_calls: bool = True,
) -> CapturedStep:
    """Take one optimizer step on these micro-batches and capture it.

    Each copy of a tensor's value to the host waits for the device.

    Args:
        trainer: The trainer; its model and optimizer change.
        batches: The micro-batches of the step.
        set_random_states: Sets the random generators right before the step.
        with_calls: Whether to record the calls of the modules, which a compiled step does not have.
    """
    precision = trainer.precision
    recorder = _CallRecorder()
    gradients: dict[str, Tensor] = {}
    parameters = dict(zip(dict(trainer.model.named_parameters()), _updated_parameters(trainer), strict=True))
    before = {name: p.detach().to("cpu", torch.float64, copy=True) for name, p in parameters.items()}
    # sync: the step is compared with these
    scale = float(precision.scale_factor())
    own_backward = precision.backward
    own_step = precision.step

    def backward(*args: Any, **kwargs: Any) -> None:
        recorder.is_backward = True
        own_backward(*args, **kwargs)
        recorder.is_backward = False

    def step(optimizer: Any) -> Tensor | None:
        precision.unscale_(optimizer)
        gradients.update({n: p.grad.detach().clone() for n, p in parameters.items() if p.grad is not None})
        return own_step(optimizer)

    precision.backward = backward  # type: ignore[method-assign]
    precision.step = step  # type: ignore[method-assign]
    set_random_states()
    try:
        recording = recorder.recording(trainer.model) if with_calls else nullcontext()
        with precision.training_context(), recording:
            result = trainer.compute(batches)
    finally:
        del precision.backward, precision.step
    return CapturedStep(
        calls={call.key: call for call in recorder.ended},
        backward=recorder.backward,
        loss=float(result.loss),  # sync: this is part of the result
        scale=scale,
        skipped=bool(result.skipped),  # sync: and this
        gradients=gradients,
        updates={name: p.detach().cpu().double() - before[name] for name, p in parameters.items()},
    )


def _updated_parameters(trainer: Trainer) -> list[Tensor]:
    """Return what the optimizer updates, in the order of the model's parameters: these, or master weights."""
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]


def floating_tensors(tree: Any) -> list[Tensor]:
    """Return the floating-point tensors in a nested structure."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]


class _CallRecorder:
    """Records the calls of a model's modules by hooks."""

    def __init__(self) -> None:
        self.ended: list[ModuleCall] = []
        self.backward: list[ModuleCall] = []
        self.is_backward = False  # activation checkpointing runs a forward again within the backward
        self._open: list[ModuleCall] = []
        self._counts: dict[str, int] = {}

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for name, module in model.named_modules():
            # Other hooks may change inputs and outputs: this one runs first before a call and last after it.
            before = module.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True)
            handles += [before, module.register_forward_hook(self._after(name), with_kwargs=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if self.is_backward:
                return None
            number = self._counts[name] = self._counts.get(name, -1) + 1
            # Another module may get the same tensor. The gradient of a view is that of this call alone.
            inputs = map_tensors((args, kwargs), lambda x: x.view_as(x) if x.requires_grad else x)
            buffers = {key: _copy(buffer) for key, buffer in module.named_buffers()}
            call = ModuleCall(name, number, map_tensors(inputs, _copy), buffers)
            self._store_gradients(inputs, call.input_gradients)
            if self._open:
                self._open[-1].inner_calls.append(call)
            self._open.append(call)
            return inputs

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.is_backward:
                return None
            output = map_tensors(output, _copy_if_view)
            while self._open[-1].name != name:  # the network caught an exception of this call: it has no end
                self._open.pop()
            call = self._open.pop()
            call.output = map_tensors(output, _copy)
            self._store_gradients(output, call.output_gradients, call)
            self.ended.append(call)
            return output

        return hook

    def _store_gradients(self, tree: Any, into: dict[int, Tensor], call: ModuleCall | None = None) -> None:
        """Store the gradients of these tensors in a dict when the backward pass computes them."""

        def store_at(index: int) -> Callable[[Tensor], None]:
            def hook(gradient: Tensor) -> None:
                if call is not None and not into:
                    self.backward.append(call)
                into[index] = gradient.detach().clone()

            return hook

        for index, tensor in enumerate(floating_tensors(tree)):
            if tensor.requires_grad:
                tensor.register_hook(store_at(index))


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the structure with each tensor changed.

    A tensor that occurs several times becomes one new tensor: attention tests its inputs for identity.
    """
    changed: dict[int, Tensor] = {}

    def change_once(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in changed:
            changed[id(value)] = change(value)
        return changed[id(value)]

    return tree_map(change_once, tree)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _copy_if_view(tensor: Tensor) -> Tensor:
    """Return a copy of a view, and any other tensor itself.

    If the next module works in place (`ReLU(inplace=True)`), autograd drops the node of a view and with it
    the view's gradient.
    """
    return tensor.clone() if tensor._is_view() and tensor.requires_grad else tensor
