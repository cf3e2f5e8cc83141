"""Every call of every module in a step: what it was given, what it gave, and the gradients of both.

Tensors are copied as they are at that moment: `ReLU(inplace=True)` changes what the module before it gave. A
gradient is kept as it is in the backward, times the loss scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ampcompare.why.diff.trees import changed, is_number, tensors_of


@dataclass(eq=False)  # one is itself: tensors have no answer to `==`
class Call:
    """One call of a module. Gradients are by place among the tensors of `given` or `output`."""

    name: str  # of the module, "" for the network itself
    number: int  # among the calls of this module, from 0
    given: tuple[Any, dict[str, Any]]  # arguments, by place and by name
    output: Any = None
    ended: int | None = None  # the order in which calls came to their end in the forward
    inner: list[Call] = field(default_factory=list)  # what it called itself, in order
    output_gradients: dict[int, Tensor] = field(default_factory=dict)
    given_gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number


class Recorder:
    """The calls of a model, by hooks; in `calls` in the order in which they ended: what is called before who
    calls it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[Call] = []
        self.backward: list[Call] = []  # in the order in which gradients of outputs came
        self.is_backward = False
        self._on = False
        self._open: list[Call] = []
        self._counts: dict[str, int] = {}
        self._copies: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The context of the step that is recorded."""
        handles = []
        for name, module in self.model.named_modules():
            before, after = self._before(name), self._after(name)
            # First what was really given, and last what was really returned: others have hooks, too.
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(after, with_kwargs=True))
        self._on = True
        try:
            yield
        finally:
            self._on = False
            self._copies.clear()
            for handle in handles:
                handle.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded inside."""
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before

    def _records(self) -> bool:
        # In the backward a forward that is checkpointed is run again.
        return self._on and not self.is_backward

    def _before(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            if not self._records():
                return
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
            call = Call(name, number, changed((tuple(args), dict(kwargs)), self._copy))
            for place, tensor in enumerate(tensors_of((args, kwargs))):
                self._watch(tensor, call.given_gradients, place)
            if self._open:
                self._open[-1].inner.append(call)
            self._open.append(call)

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not self._records():
                return None
            output = changed(output, lambda tensor: _watchable(tensor, (args, kwargs)))
            # A call that raised, which somebody caught, has not ended.
            while self._open and self._open[-1].name != name:
                self._open.pop()
            call = self._open.pop()
            call.output, call.ended = changed(output, self._copy), len(self.calls)
            for place, tensor in enumerate(tensors_of(output)):
                self._watch(tensor, call.output_gradients, place, call)
            self.calls.append(call)
            return output

        return hook

    def _copy(self, tensor: Tensor) -> Tensor:
        """A copy of the values, one for all who see the same: what a module gives the next is given."""
        key = (id(tensor), tensor._version)
        if key not in self._copies:
            self._copies[key] = (tensor, tensor.detach().clone())  # with it, so that its id stays its own
        return self._copies[key][1]

    def _watch(self, tensor: Tensor, into: dict[int, Tensor], place: int, call: Call | None = None) -> None:
        """Have the gradient of the tensor, as it is now, put into a dict."""
        if not (tensor.requires_grad and is_number(tensor)):
            return

        def hook(gradient: Tensor) -> None:
            if self._on and self.is_backward:
                if call is not None and not into:
                    self.backward.append(call)
                into[place] = self._copy(gradient)

        tensor.register_hook(hook)


def _watchable(tensor: Tensor, given: Any) -> Tensor:
    """The tensor, or a copy of it, if it is a view that nobody else has: of what a Linear gives to tokens. If
    what comes next works in place (`ReLU(inplace=True)`), autograd drops a view's node, and its gradient with
    it (`CopySlices`).
    """
    if not (tensor._is_view() and tensor.requires_grad and is_number(tensor)):
        return tensor
    memory = tensor.untyped_storage().data_ptr()
    is_anothers = any(other.untyped_storage().data_ptr() == memory for other in tensors_of(given))
    return tensor if is_anothers else tensor.clone()
