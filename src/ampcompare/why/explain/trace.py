"""One training step, op by op: what ran where in which type, moved and computed what, and what it held.

A step is run on tensors without data. Modules tell by hooks where the forward is; an op of the backward
belongs where its forward was: autograd numbers its nodes as the forward makes them (`_get_sequence_nr`), and
the node that runs has its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.data.batch import Batch
from ampcompare.measure.traffic import count, is_free
from ampcompare.train.step import Trainer
from ampcompare.why.explain.calls import Call, described
from ampcompare.why.explain.held import Held
from ampcompare.why.explain.reasons import CAST, GIVEN, Functions, why
from ampcompare.why.explain.walk import Walk

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
LOSS, NETWORK, OPTIMIZER = "(loss)", "(network)", "(optimizer)"
CASTS = ("_to_copy", "copy_", "_foreach_copy_", "_foreach_copy")


@dataclass(frozen=True)
class Op:
    """An op as it ran. `function` is the Python function that led to it (`conv2d`), in the backward that of
    the forward; `dtype` the type it computed in; `cast` from which type to which, of a cast; `size` its bytes
    read and written, `flop` its arithmetic; `many` of how many tensors a cast is; `copies` the bytes that it
    makes of weights; `call` how it was called.
    """

    aten: str
    function: str
    module: str
    phase: str
    dtype: str
    size: float
    flop: float
    why: str
    cast: tuple[str, str] | None = None
    many: int = 1
    copies: int = 0
    call: Call | None = None


@dataclass
class Trace:
    """A step: its ops in order, and what it held in memory."""

    ops: list[Op]
    held: Held


class _Calls(TorchFunctionMode):
    """Knows the outermost function of PyTorch's that Python is in, and whether autocast was on there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.function: Any = None
        self.autocast = False
        self._kind = device.type

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, self.function = self.function, func
        self.autocast = torch.is_autocast_enabled(self._kind)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.function = before


class Recorder(TorchDispatchMode):
    """Notes each op inside, with where it is from."""

    def __init__(self, trainer: Trainer, device: torch.device) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.held = Held()
        self.where: list[str] = []
        self.calls = _Calls(device)
        self.functions = Functions()
        self.device = device
        self.in_forward = False
        self._made: dict[int, tuple[str, str]] = {}  # by number of autograd's node: module, function
        self._steps = trainer.optimizer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and not self.in_forward:
            return self._number(args[0])
        # A fused optimizer writes into what it is given, and knows no tensors without data.
        result = None if name.startswith("_fused_") else func(*args, **kwargs)
        phase, module, function = self._origin()
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.held.born(tensor, module)
        if not is_free(func):
            self.ops.append(self._op(func, name, args, kwargs, result, phase, module, function))
        return result

    def _origin(self) -> tuple[str, str, str]:
        """Phase, module and function of the op that runs."""
        node = torch._C._current_autograd_node() or Walk.node
        if node is not None:
            module, function = self._made.get(node._sequence_nr(), ("", ""))
            # A forward that is run again inside the backward knows its module by the hooks.
            return BACKWARD, self.where[-1] if self.where else module or NETWORK, function
        if not self.in_forward:
            return UPDATE, OPTIMIZER, ""
        module = self.where[-1] if self.where else NETWORK
        function = _name(self.calls.function)
        # The node of a differentiable op is made before the op runs; after an op that makes none the number
        # is that of the last node, which is known.
        self._made.setdefault(torch.autograd._get_sequence_nr() - 1, (module, function))
        return FORWARD, module, function

    def _op(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        result: Any,
        phase: str,
        module: str,
        function: str,
    ) -> Op:
        counted = count(func, args, kwargs, result)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        cast, many = _cast(name, args, made)
        dtype = cast[1] if cast else _computed_in(given, made)
        if cast:
            reason = CAST
        elif phase == FORWARD:
            kinds = {_word(x) for x in given if x.is_floating_point()}
            asked = (self.calls.function, name, dtype, kinds, self.device.type, self.functions)
            reason = why(*asked, self.calls.autocast)
        else:
            reason = GIVEN
        copies = sum(_bytes(x) for x in made) if cast and phase == FORWARD and self._of_weights(given) else 0
        size, flop, call = counted.sizes[0], counted.flop, described(func, args, kwargs)
        return Op(name, function, module, phase, dtype, size, flop, reason, cast, many, copies, call)

    def _of_weights(self, given: Sequence[Tensor]) -> bool:
        return bool(given) and self.held.kind(given[-1]) == "weights"

    def _number(self, tensor: Tensor) -> Any:
        """The value that an update asks for: of an optimizer's count of steps 1, else 0 (no overflow)."""
        steps = (state.get("step") for state in self._steps.state.values())
        value = float(any(step is tensor for step in steps))
        return value if tensor.is_floating_point() else int(value)


def _name(function: Any) -> str:
    return getattr(function, "__name__", "").strip("_")


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _computed_in(given: Sequence[Tensor], made: Sequence[Tensor]) -> str:
    """The type of the largest floating input, or that of the result where it is wider: a kernel that widens
    what it reads computes in what it writes.
    """
    floating = [x for x in given if x.is_floating_point()] or [x for x in made if x.is_floating_point()]
    if not floating:
        return _word(given[0]) if given else _word(made[0]) if made else ""
    largest = max(floating, key=lambda x: x.numel())
    if made and made[0].is_floating_point() and made[0].element_size() > largest.element_size():
        return _word(made[0])
    return _word(largest)


def _cast(name: str, args: Any, made: Sequence[Tensor]) -> tuple[tuple[str, str] | None, int]:
    """From which type to which an op casts, and how many tensors; None of one that casts none."""
    if name not in CASTS:
        return None, 1
    if name == "_to_copy":
        pairs = [(args[0], made[0])]
    elif name == "copy_":
        pairs = [(args[1], args[0])]
    else:
        pairs = list(zip(args[1], args[0], strict=True))
    differ = [(a, b) for a, b in pairs if _floats(a, b) and a.dtype is not b.dtype]
    if not differ:
        return None, 1
    return (_word(differ[0][0]), _word(differ[0][1])), len(differ)


def _floats(a: Tensor, b: Tensor) -> bool:
    return a.is_floating_point() and b.is_floating_point()


def trace_step(trainer: Trainer, batches: Sequence[Batch], device: torch.device) -> Trace:
    """The second step of the trainer: the first one makes the optimizer's states, and O1's cache learns."""
    first = Recorder(trainer, device)  # answers what an optimizer asks of values
    with watched(trainer, first), first:
        trainer.compute(batches)
    recorder = Recorder(trainer, device)
    held = recorder.held
    held.own("weights", (p for p in trainer.model.parameters()))
    held.own("buffers", (b for b in trainer.model.buffers()))
    held.own("masters", (p for group in trainer.optimizer.param_groups for p in group["params"]))
    held.own("states", (x for state in trainer.optimizer.state.values() for x in state.values()))
    held.own("batch", (tensor for batch in batches for part in batch for tensor in tree_leaves(part)))
    with watched(trainer, recorder), recorder.calls, recorder:
        trainer.compute(batches)
    return Trace(recorder.ops, held)


@contextmanager
def watched(trainer: Trainer, recorder: Recorder) -> Iterator[None]:
    """Hooks that tell the recorder in which module the forward is, and when it begins and ends."""
    forward, held = trainer.forward, recorder.held
    criterion = forward.criterion

    def loss(outputs: Any, targets: Any) -> Tensor:
        recorder.where.append(LOSS)
        try:
            return criterion(outputs, targets)
        finally:
            recorder.where.pop()

    class Told(type(forward)):  # type: ignore[misc]
        def __call__(self, *args: Any) -> Any:
            recorder.in_forward = True
            try:
                found = super().__call__(*args)
            finally:
                recorder.in_forward = False
            held.settle("activations")
            return found

    with ExitStack() as stack:
        for name, module in trainer.model.named_modules():
            for hook in _hooks(name, module, recorder):
                stack.callback(hook.remove)
        for parameter in trainer.model.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                hook = parameter.register_post_accumulate_grad_hook(lambda p: held.own("gradients", [p.grad]))
                stack.callback(hook.remove)
        before = trainer.optimizer.register_step_pre_hook(
            lambda *_: held.own("gradients", _gradients(trainer))
        )
        stack.callback(before.remove)
        forward.criterion, kind, forward.__class__ = loss, forward.__class__, Told
        stack.callback(setattr, forward, "__class__", kind)
        stack.callback(setattr, forward, "criterion", criterion)
        yield


def _gradients(trainer: Trainer) -> list[Tensor | None]:
    return [p.grad for group in trainer.optimizer.param_groups for p in group["params"]]


def _hooks(name: str, module: nn.Module, recorder: Recorder) -> Iterator[Any]:
    where = name or NETWORK

    def enter(module: nn.Module, args: Any) -> None:
        recorder.where.append(where)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        recorder.where.pop()

    yield module.register_forward_pre_hook(enter)
    yield module.register_forward_hook(leave, always_call=True)
