"""Find the module at which one of two steps departs from fp64.

The network is wrapped so that each module's inputs and outputs, and their gradients, can be read, also from a
compiled graph. A value is copied into a buffer of the wrapper. A gradient is that of a probe: a parameter of
zeros that is added to the tensor. Both are inputs of the graph, so the graph needs no hooks.

The values of a step are then read in the order in which the step computes them. The fault lies where the
first bad value was computed from good ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ampcompare.data.batch import Batch
from ampcompare.training.losses_and_metrics import call_network
from ampcompare.training.trainer import Trainer
from ampcompare.why.step_capture import CapturedStep, floating_tensors, map_tensors

CallKey = tuple[str, int]  # name of the module, number of the call
INPUT, OUTPUT, WEIGHT_GRADIENT = "input", "output", "weight gradient"
OUTPUT_GRADIENT, INPUT_GRADIENT = "output gradient", "input gradient"


class ValueKey(NamedTuple):
    """A value of a step: the kind of value, and the call to which it belongs."""

    kind: str
    call: CallKey


@dataclass
class TensorForm:
    """The form of a tensor.

    Attributes:
        like: An empty tensor of its shape, dtype and layout.
        has_gradient: Whether it requires a gradient.
    """

    like: Tensor
    has_gradient: bool


@dataclass
class CallForm:
    """The forms of a call's tensors.

    Attributes:
        parent: The call within which it is made; None for the network itself.
        inputs: The floating-point inputs, each tensor once.
        outputs: The same of the outputs.
        works_in_place: Whether it changes one of its inputs.
    """

    key: CallKey
    parent: CallKey | None
    inputs: list[TensorForm]
    outputs: list[TensorForm] = field(default_factory=list)
    works_in_place: bool = False


@dataclass
class CallOrder:
    """The calls of a forward pass.

    Attributes:
        forms: The calls in the order in which they begin.
        values: The inputs and outputs, in the order in which they are computed.
    """

    forms: dict[CallKey, CallForm] = field(default_factory=dict)
    values: list[ValueKey] = field(default_factory=list)


class _CallHooks:
    """Calls a function with each call of a module: before it with the inputs, after it with the output.

    Args:
        before: Takes key, parent and inputs, and returns the inputs to use.
        after: Takes key, inputs and output, and returns the output to use.
    """

    def __init__(
        self,
        before: Callable[[CallKey, CallKey | None, Any], Any],
        after: Callable[[CallKey, Any, Any], Any],
    ) -> None:
        self._before = before
        self._after = after
        self._counts: dict[str, int] = {}
        self._open: list[tuple[CallKey, Any]] = []

    def begin(self) -> None:
        """Begin another forward pass."""
        self._counts.clear()
        self._open.clear()

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True)
            handles += [before, module.register_forward_hook(self._leave(name))]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
            number = self._counts[name] = self._counts.get(name, -1) + 1
            parent = self._open[-1][0] if self._open else None
            inputs = self._before((name, number), parent, (args, kwargs))
            self._open.append(((name, number), inputs))
            return inputs

        return hook

    def _leave(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            while self._open[-1][0][0] != name:  # the network caught an exception of this call
                self._open.pop()
            key, inputs = self._open.pop()
            return self._after(key, inputs, output)

        return hook


def read_call_order(trainer: Trainer, batch: Batch) -> CallOrder:
    """Run a forward pass, and return its calls. Buffers of the network may change."""
    order = CallOrder()
    versions: dict[CallKey, list[int]] = {}

    def before(key: CallKey, parent: CallKey | None, inputs: Any) -> Any:
        tensors = _unique(inputs)
        versions[key] = [tensor._version for tensor in tensors]
        order.forms[key] = CallForm(key, parent, [_form_of(tensor) for tensor in tensors])
        order.values.append(ValueKey(INPUT, key))
        return inputs

    def after(key: CallKey, inputs: Any, output: Any) -> Any:
        form = order.forms[key]
        form.works_in_place = versions[key] != [tensor._version for tensor in _unique(inputs)]
        form.outputs = [_form_of(tensor) for tensor in _unique(output)]
        order.values.append(ValueKey(OUTPUT, key))
        return output

    precision = trainer.precision
    inputs, targets = batch
    if not trainer.model.training:
        trainer.model.train()
    with (
        precision.training_context(),
        precision.forward_context(),
        _CallHooks(before, after).on(trainer.model),
    ):
        trainer.task.loss(call_network(trainer.model, inputs), targets)
    return order


def _unique(tree: Any) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in floating_tensors(tree)}.values())


def _form_of(tensor: Tensor) -> TensorForm:
    return TensorForm(torch.empty_like(tensor, requires_grad=False), tensor.requires_grad)


class ProbedNetwork(nn.Module):
    """A network whose modules' inputs and outputs can be read, with their gradients.

    Args:
        order: Its calls, from `read_call_order` under the same backend.
    """

    def __init__(self, network: nn.Module, order: CallOrder) -> None:
        super().__init__()
        self.network = network
        self._names: dict[ValueKey, list[str]] = {}
        for value in order.values:
            form = order.forms[value.call]
            names = self._names[value] = []
            for tensor in form.inputs if value.kind == INPUT else form.outputs:
                name = f"{len(self._names)}_{len(names)}"
                names.append(name)
                self.register_buffer(f"value_{name}", torch.zeros_like(tensor.like))
                # A probe makes a new tensor, which a module that works in place must not get.
                if tensor.has_gradient and not (value.kind == INPUT and form.works_in_place):
                    probe = nn.Parameter(torch.zeros_like(tensor.like))
                    self.register_parameter(f"probe_{name}", probe)
        self._hooks = _CallHooks(self._change_inputs, self._change_output)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's output."""
        self._hooks.begin()
        with self._hooks.on(self.network):
            return self.network(*args, **kwargs)

    def _change_inputs(self, key: CallKey, parent: CallKey | None, inputs: Any) -> Any:
        return self._change(ValueKey(INPUT, key), inputs)

    def _change_output(self, key: CallKey, inputs: Any, output: Any) -> Any:
        return self._change(ValueKey(OUTPUT, key), output)

    def _change(self, value: ValueKey, tree: Any) -> Any:
        """Copy the tensors into the buffers, and return them with the probes added."""
        if value not in self._names:
            return tree
        names = iter(self._names[value])

        def change(tensor: Tensor) -> Tensor:
            name = next(names, None) if tensor.is_floating_point() else None
            if name is None or getattr(self, f"value_{name}").shape != tensor.shape:
                return tensor
            getattr(self, f"value_{name}").copy_(tensor.detach())
            probe = getattr(self, f"probe_{name}", None)
            return tensor if probe is None else tensor + probe

        return map_tensors(tree, change)

    def read(self, scale: float) -> dict[ValueKey, list[Tensor]]:
        """Return the values of the last step, and the gradients without the loss scale."""
        values = {}
        for value, names in self._names.items():
            values[value] = [getattr(self, f"value_{name}").detach().clone() for name in names]
            probes = (getattr(self, f"probe_{name}", None) for name in names)
            kind = INPUT_GRADIENT if value.kind == INPUT else OUTPUT_GRADIENT
            gradients = [p.grad.double() / scale for p in probes if p is not None and p.grad is not None]
            if gradients:
                values[ValueKey(kind, value.call)] = gradients
        return values

    def clear_gradients(self) -> None:
        """Forget the gradients of the last step."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("probe_"):
                parameter.grad = None


def own_gradients(step: CapturedStep, order: CallOrder) -> dict[ValueKey, list[Tensor]]:
    """Return the gradients of each module's own parameters, as values of its first call."""
    result: dict[ValueKey, list[Tensor]] = {}
    for name, gradient in step.gradients.items():
        call_key = (name.rpartition(".")[0], 0)
        if call_key in order.forms:
            result.setdefault(ValueKey(WEIGHT_GRADIENT, call_key), []).append(gradient)
    return result


def locate_fault(order: CallOrder, is_bad: Callable[[ValueKey], bool]) -> tuple[str, str] | None:
    """Return the module where the first bad value was computed from good ones, and which value that is.

    Args:
        is_bad: Returns whether a value is bad; false for a value that was not compared.
    """
    for value in order.values:
        if not is_bad(value):
            continue
        name = _name_of(value.call)
        if value.kind == OUTPUT:
            return name, "its output"
        # An input comes from the code of the module that makes the call.
        return _name_of(order.forms[value.call].parent), f"the input of {name}"
    for value in reversed(order.values):
        name = _name_of(value.call)
        if value.kind == OUTPUT:
            if is_bad(ValueKey(OUTPUT_GRADIENT, value.call)):
                consumer = _name_consumer(order, order.forms[value.call])
                return consumer, f"the gradient of the output of {name}"
            continue
        if is_bad(ValueKey(WEIGHT_GRADIENT, value.call)):
            return name, "the gradients of its weights"
        if is_bad(ValueKey(INPUT_GRADIENT, value.call)):
            return name, "the gradient of its input"
    return None


def _name_consumer(order: CallOrder, form: CallForm) -> str:
    """Return whose code uses the output of a call: that of a module without input probes, or its parent's."""
    siblings = [other for other in order.forms.values() if other.parent == form.parent]
    after = siblings[siblings.index(form) + 1 :]
    if after and after[0].works_in_place:
        return after[0].key[0]
    return _name_of(form.parent)


def _name_of(call_key: CallKey | None) -> str:
    return "" if call_key is None else call_key[0]


def pool(values: Mapping[ValueKey, Sequence[Tensor]]) -> dict[ValueKey, list[Tensor]]:
    """Return the values in fp64 on the CPU."""
    return {key: [tensor.cpu().double() for tensor in tensors] for key, tensors in values.items()}
