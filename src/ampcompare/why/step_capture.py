"""One real training step with all that can be seen of it: each module's output and gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ampcompare.data.batch import Batch
from ampcompare.training.trainer import Trainer


@dataclass(eq=False)  # one is itself: tensors have no answer to `==`
class Call:
    """One call of a module, with copies of what it was given and gave. Gradients are as they were in the
    backward, times the loss scale, by place among the floating tensors.
    """

    name: str  # of the module, "" for the network itself
    number: int  # among the calls of this module, from 0
    given: Any
    output: Any = None
    inner: list[Call] = field(default_factory=list)  # what it called itself, in order
    given_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from other calls."""
        return self.name, self.number


@dataclass
class Step:
    """What a step came to. `gradients` are true ones, `updates` what it added, float64; both by the names of
    the network's parameters.
    """

    calls: dict[tuple[str, int], Call]  # in the order in which they ended
    backward: list[Call]  # in the order in which gradients of their outputs came
    loss: float
    scale: float
    skipped: bool
    gradients: dict[str, Tensor]
    updates: dict[str, Tensor]


def observe(trainer: Trainer, batches: Sequence[Batch], seed: int) -> Step:
    """Take one step on the micro-batches. Waits for the device wherever it looks."""
    precision, recorder, gradients = trainer.precision, _Recorder(), {}
    parameters = dict(zip(dict(trainer.model.named_parameters()), _updated(trainer), strict=True))
    before = {name: p.detach().to("cpu", torch.float64, copy=True) for name, p in parameters.items()}
    scale, skipped = float(precision.scale_factor()), int(precision.skipped_steps())  # sync: as said
    own_backward, own_step = precision.backward, precision.step

    def backward(*args: Any, **kwargs: Any) -> None:
        recorder.is_backward = True
        own_backward(*args, **kwargs)
        recorder.is_backward = False

    def step(optimizer: Any) -> None:
        precision.unscale_(optimizer)
        gradients.update({n: p.grad.detach().clone() for n, p in parameters.items() if p.grad is not None})
        own_step(optimizer)

    precision.backward, precision.step = backward, step  # type: ignore[method-assign]
    torch.manual_seed(seed)
    try:
        with precision.training_context(), recorder.recording(trainer.model):
            loss = float(trainer.compute(batches).loss)  # sync: as said
    finally:
        del precision.backward, precision.step
    return Step(
        {call.key: call for call in recorder.ended},
        recorder.backward,
        loss,
        scale,
        int(precision.skipped_steps()) > skipped,  # sync: as said
        gradients,
        {name: p.detach().cpu().double() - before[name] for name, p in parameters.items()},
    )


def _updated(trainer: Trainer) -> list[Tensor]:
    """What the optimizer updates, in the order of the model's parameters: them, or their masters."""
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]


def floats(tree: Any) -> list[Tensor]:
    """The floating tensors among anything."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]


class _Recorder:
    """The calls of a model, by hooks."""

    def __init__(self) -> None:
        self.ended: list[Call] = []
        self.backward: list[Call] = []
        self.is_backward = False  # a forward that is checkpointed is run again in it
        self._open: list[Call] = []
        self._counts: dict[str, int] = {}

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for name, module in model.named_modules():
            # First what was really given, and last what was really returned: others have hooks, too.
            before = module.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True)
            handles += [before, module.register_forward_hook(self._after(name), with_kwargs=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
            if self.is_backward:
                return None
            number = self._counts[name] = self._counts.get(name, -1) + 1
            # Views of its own: of what others are given too, the gradient is that of this call alone.
            given = each_once((args, kwargs), lambda x: x.view_as(x) if x.requires_grad else x)
            call = Call(name, number, each_once(given, _copy))
            self._watch(given, call.given_gradients)
            if self._open:
                self._open[-1].inner.append(call)
            self._open.append(call)
            return given

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.is_backward:
                return None
            output = each_once(output, _watchable)
            while self._open[-1].name != name:  # a call that raised, which somebody caught, has not ended
                self._open.pop()
            call = self._open.pop()
            call.output = each_once(output, _copy)
            self._watch(output, call.output_gradients, call)
            self.ended.append(call)
            return output

        return hook

    def _watch(self, tree: Any, into: dict[int, Tensor], call: Call | None = None) -> None:
        """Have the gradients of the tensors, as they are now, put into a dict."""

        def keep(place: int) -> Callable[[Tensor], None]:
            def hook(gradient: Tensor) -> None:
                if call is not None and not into:
                    self.backward.append(call)
                into[place] = gradient.detach().clone()

            return hook

        for place, tensor in enumerate(floats(tree)):
            if tensor.requires_grad:
                tensor.register_hook(keep(place))


def each_once(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with each tensor changed, one in several places into one: attention asks what is the same."""
    changed: dict[int, Tensor] = {}

    def once(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in changed:
            changed[id(value)] = change(value)
        return changed[id(value)]

    return tree_map(once, tree)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _watchable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of a view: if what comes next works in place (`ReLU(inplace=True)`), autograd
    drops a view's node, and its gradient with it.
    """
    return tensor.clone() if tensor._is_view() and tensor.requires_grad else tensor
