"""Take one real training step, and keep the inputs, outputs and gradients of every module call.

A call can be replayed later: the module runs again in fp32 or fp64 on the same inputs. If it calls other
modules, they return their recorded outputs, so the replay is the arithmetic of the module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from ampcompare.data.batch import Batch
from ampcompare.training.trainer import Trainer

WIDER = {torch.float32: torch.complex64, torch.float64: torch.complex128}
Tree = TypeVar("Tree")
CallKey = tuple[str, int]  # name of the module, number of the call


@dataclass(eq=False)  # compared by identity: `==` of tensors is no bool
class ModuleCall:
    """One call of a module, with copies of its inputs and outputs.

    Gradients are those of the backward pass, so they include the loss scale. Their keys are indices among the
    floating-point and complex tensors of the inputs or of the output.

    Attributes:
        name: The module's name, "" for the network itself.
        number: The index of this call among the calls of this module, from 0.
        inputs: Positional and keyword arguments.
        changed: Copies of the module's weights and buffers before the call, by name, where an earlier call of
            the step has changed them.
        output: What the module returned.
        inner_calls: The calls that this module made itself, in order.
        passed: The floating-point and complex inputs of these calls.
    """

    name: str
    number: int
    inputs: Any
    changed: dict[str, Tensor]
    output: Any = None
    inner_calls: list[ModuleCall] = field(default_factory=list)
    passed: list[Tensor] = field(default_factory=list)
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def key(self) -> CallKey:
        """Name and number, which identify the call within a step."""
        return self.name, self.number


@dataclass
class TakenStep:
    """One training step with all its module calls.

    Attributes:
        calls: The calls by their key, in the order in which they ended.
        backward: The calls in the order in which the backward pass reached their outputs.
        scale: The loss scale before the step.
        skipped: Whether the optimizer step was skipped.
        gradients: The unscaled gradient of each parameter before clipping, by name.
        updates: What the step added to each parameter, by name; float64 or complex128.
    """

    calls: dict[CallKey, ModuleCall]
    backward: list[ModuleCall]
    loss: float
    scale: float
    skipped: bool
    gradients: dict[str, Tensor]
    updates: dict[str, Tensor]


def take(
    trainer: Trainer,
    batches: Sequence[Batch],
    set_random_states: Callable[[], None],
    *,
    with_calls: bool = True,
) -> TakenStep:
    """Take one optimizer step on these micro-batches.

    Each copy of a tensor's value to the host waits for the device.

    Args:
        trainer: The trainer; its model and optimizer change.
        batches: The micro-batches of the step.
        set_random_states: Sets the random generators right before the step.
        with_calls: Whether to record the calls of the modules, which a compiled step does not have.
    """
    precision = trainer.precision
    recorder = _CallRecorder(trainer.model if with_calls else nn.Module())
    gradients: dict[str, Tensor] = {}
    parameters = dict(zip(dict(trainer.model.named_parameters()), trainer.updated, strict=True))
    before = {name: _in_fp64(p).clone() for name, p in parameters.items()}
    scale = float(precision.scale_factor())  # sync: the gradients are compared without it
    own_backward, own_unscale, own_step = precision.backward, precision.unscale_, precision.step

    def backward(*args: Any, **kwargs: Any) -> None:
        recorder.is_backward = True
        own_backward(*args, **kwargs)
        recorder.is_backward = False

    def unscale(optimizer: Any) -> None:
        own_unscale(optimizer)
        if not gradients:  # later they are clipped
            known = {name: p.grad for name, p in parameters.items() if p.grad is not None}
            gradients.update({name: dense(gradient.detach()).clone() for name, gradient in known.items()})

    def step(optimizer: Any) -> Tensor | None:
        unscale(optimizer)
        return own_step(optimizer)

    precision.backward = backward  # type: ignore[method-assign]
    precision.unscale_ = unscale  # type: ignore[method-assign]
    precision.step = step  # type: ignore[method-assign]
    set_random_states()
    recording = module_calls(trainer.model, recorder.enter, recorder.leave) if with_calls else nullcontext()
    try:
        with precision.training_context(), recording:
            result = trainer.compute(batches)
    finally:
        del precision.backward, precision.unscale_, precision.step
    return TakenStep(
        calls={call.key: call for call in recorder.ended},
        backward=recorder.backward,
        loss=float(result.loss),  # sync: this is part of the result
        scale=scale,
        skipped=bool(result.skipped),  # sync: and this
        gradients=gradients,
        updates={name: _in_fp64(p) - before[name] for name, p in parameters.items()},
    )


def _in_fp64(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def numeric_tensors(tree: Any) -> list[Tensor]:
    """Return the floating-point and complex tensors in a nested structure."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and is_numeric(x)]


def is_numeric(tensor: Tensor) -> bool:
    """Return whether a tensor may have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def are_finite(tensors: Any) -> bool:
    """Return whether all numbers of the tensors in a nested structure are finite. Waits for the device."""
    return all(bool(dense(t).isfinite().all()) for t in tree_leaves(tensors) if isinstance(t, Tensor))


def are_same(a: Tensor, b: Tensor | None) -> bool:
    """Return whether two tensors, sparse or not, have the same shape and numbers. Waits for the device."""
    return b is not None and torch.equal(dense(a), dense(b))


def dense(tensor: Tensor) -> Tensor:
    """Return a sparse tensor with its zeros, and any other as it is."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


@contextmanager
def module_calls(
    model: nn.Module,
    enter: Callable[[str, nn.Module, Any], Any] | None = None,
    leave: Callable[[str, nn.Module, Any], Any] | None = None,
) -> Iterator[None]:
    """Call functions before and after each call of each module.

    Other hooks may change inputs and outputs: `enter` runs before them and `leave` after them.

    Args:
        enter: Takes the module's name, the module, and `(args, kwargs)`; returns those to use, or None.
        leave: Takes the module's name, the module, and its output; returns the output to use, or None.
    """
    handles = []

    def add(name: str, module: nn.Module) -> None:
        if enter is not None:
            before = lambda _, args, kwargs: enter(name, module, (args, kwargs))  # noqa: E731
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        if leave is not None:
            handles.append(module.register_forward_hook(lambda _, args, output: leave(name, module, output)))

    for name, module in model.named_modules():
        add(name, module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _CallRecorder:
    """Records the calls of a model's modules, as the functions of `module_calls`."""

    def __init__(self, model: nn.Module) -> None:
        self.ended: list[ModuleCall] = []
        self.backward: list[ModuleCall] = []
        # Activation checkpointing runs a forward again within the backward, and a network may differentiate
        # within its forward.
        self.is_backward = False
        self._start = {name: _copy(tensor) for name, tensor in _state_of(model)}
        self._open: list[ModuleCall] = []
        self._counts: dict[str, int] = {}

    def enter(self, name: str, module: nn.Module, inputs: Any) -> Any:
        if self.is_backward:
            return None
        number = self._counts[name] = self._counts.get(name, -1) + 1
        # Another module may get the same tensor. The gradient of a view is that of this call alone.
        inputs = map_tensors(inputs, lambda x: x.view_as(x) if x.requires_grad else x)
        changed = {
            own: _copy(tensor)
            for own, tensor in _state_of(module)
            if not are_same(tensor, self._start.get(f"{name}.{own}".removeprefix(".")))
        }
        call = ModuleCall(name, number, map_tensors(inputs, _copy), changed)
        self._store_gradients(inputs, call.input_gradients)
        if self._open:
            self._open[-1].inner_calls.append(call)
        self._open.append(call)
        return inputs

    def leave(self, name: str, module: nn.Module, output: Any) -> Any:
        if self.is_backward:
            return None
        output = map_tensors(output, _copy_if_view)
        while self._open[-1].name != name:  # the network caught an exception of this call: it has no end
            self._open.pop()
        call = self._open.pop()
        call.output = map_tensors(output, _copy)
        call.passed = numeric_tensors([inner.inputs for inner in call.inner_calls])
        self._store_gradients(output, call.output_gradients, call)
        self.ended.append(call)
        return output

    def _store_gradients(self, tree: Any, into: dict[int, Tensor], call: ModuleCall | None = None) -> None:
        """Store the gradients of these tensors in a dict when the backward pass computes them."""

        def store_at(index: int) -> Callable[[Tensor], None]:
            def hook(gradient: Tensor) -> None:
                if not self.is_backward:
                    return
                if call is not None and not into:
                    self.backward.append(call)
                into[index] = gradient.detach().clone()

            return hook

        for index, tensor in enumerate(numeric_tensors(tree)):
            if tensor.requires_grad:
                tensor.register_hook(store_at(index))


def _state_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the weights and buffers of a module under all their names."""
    names = [*module.named_parameters(remove_duplicate=False)]
    return [*names, *module.named_buffers(remove_duplicate=False)]


def map_tensors(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
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

    result: Tree = tree_map(change_once, tree)
    return result


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _copy_if_view(tensor: Tensor) -> Tensor:
    """Return a copy of a view, and any other tensor itself.

    If the next module works in place (`ReLU(inplace=True)`), autograd drops the node of a view and with it
    the view's gradient.
    """
    return tensor.clone() if tensor._is_view() and tensor.requires_grad else tensor


@dataclass
class Replay:
    """A call that ran again.

    Attributes:
        outputs: The floating-point and complex outputs.
        passed: The same of the inputs of the calls that it made itself.
        inputs: The inputs, which require a gradient.
        weights: The module's own trainable weights, by name.
    """

    outputs: list[Tensor]
    passed: list[Tensor]
    inputs: list[Tensor]
    weights: dict[str, Tensor]


def replay_call(
    call: ModuleCall,
    model: nn.Module,
    changed: dict[str, Tensor],
    dtype: torch.dtype | None,
    how: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run,
) -> Replay:
    """Call a module again with the inputs of a call. The model stays as it is.

    Args:
        model: The network, with the weights and buffers from before the step.
        changed: Weights and buffers of the module that an earlier call of the step had changed, by name.
        dtype: The dtype of the inputs, float32 or float64; None: as they were.
        how: Returns what runs in place of a function of tensors, such as the compiled function.
    """

    def convert(tensor: Tensor) -> Tensor:
        if dtype is None or not is_numeric(tensor):
            return tensor
        return tensor.to(WIDER[dtype] if tensor.is_complex() else dtype)

    module = model.get_submodule(call.name)
    state = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        value = changed.get(name, tensor)
        state[name] = (value if value.shape == tensor.shape else tensor).detach().to(tensor).clone()
    weights = {n: state[n].requires_grad_() for n, p in module.named_parameters() if p.requires_grad}
    leaves = map_tensors(call.inputs, lambda x: convert(x).detach().requires_grad_(is_numeric(x)))
    args, kwargs = map_tensors(leaves, lambda x: x.clone())  # the module may change its inputs in place
    recorded = [map_tensors(inner.output, convert) for inner in call.inner_calls]

    def run(state: dict[str, Tensor], args: Any, kwargs: Any, recorded: list[Any]) -> list[list[Tensor]]:
        passed: list[Tensor] = []
        with _returning(model, recorded, passed) if recorded else nullcontext():
            return [numeric_tensors(functional_call(module, state, args, kwargs)), passed]

    with torch.enable_grad():
        outputs, passed = how(run)(state, args, kwargs, recorded)
    own_weights = {name: weight for name, weight in weights.items() if "." not in name}
    return Replay(outputs, passed, numeric_tensors(leaves), own_weights)


@contextmanager
def _returning(model: nn.Module, recorded: Sequence[Any], passed: list[Tensor]) -> Iterator[None]:
    """Return a context in which the calls that a module makes itself return recorded outputs.

    Args:
        passed: Gets the inputs of these calls.
    """
    outputs = iter(recorded)
    depth = 0  # of the open calls: 1 for the call of the module, 2 for those that it makes itself

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        nonlocal depth
        if depth == 1:
            passed.extend(_copy(tensor) for tensor in numeric_tensors(inputs))
        depth += 1

    def leave(name: str, module: nn.Module, output: Any) -> Any:
        nonlocal depth
        depth -= 1
        if depth != 1:
            return None
        own = iter(numeric_tensors(output))

        def with_gradient(tensor: Tensor) -> Tensor:
            computed = next(own, None) if is_numeric(tensor) else None
            if computed is None or computed.shape != tensor.shape:
                return tensor.clone()  # the next module may change it in place
            result: Tensor = _Recorded.apply(computed, tensor)
            return result

        return map_tensors(next(outputs, output), with_gradient)

    with module_calls(model, enter, leave):
        yield


class _Recorded(torch.autograd.Function):
    """Replaces the values of a tensor. A network that differentiates in its forward reaches the tensor."""

    @staticmethod
    def forward(ctx: Any, computed: Tensor, recorded: Tensor) -> Tensor:
        return recorded.to(computed).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
