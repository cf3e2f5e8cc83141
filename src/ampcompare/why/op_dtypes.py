"""Trace the ops of a forward pass in a real step: the dtypes in which they run, and why.

Above autocast, a PyTorch function gets the tensors that the network passes. Below autocast, the op gets the
tensors that it computes with. The difference between the two is the observed reason. O1 casts before PyTorch
is called, so its reason is the rule of its cast lists.
"""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampcompare.data.batch import Batch, list_tensors
from ampcompare.precision.casting import name_dtype
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.cast_lists import list_entries
from ampcompare.system.device import seed_process
from ampcompare.training.losses_and_metrics import call_network
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import module_calls, numeric_tensors
from ampcompare.why.nonfinite import NETWORK

LOSS = "(loss)"
# Reasons for a dtype. The first four compare the dtypes above and below autocast.
AS_INPUT = "dtype of its inputs"
CAST_DOWN = "inputs cast to a smaller dtype"
CAST_UP = "computed in a larger dtype"
WIDEST = "widest dtype of its inputs"
O1_HALF, O1_FP32, O1_PROMOTE = "O1's 16-bit list", "O1's fp32 list", "O1's list of promotions"
O1_REASONS = {
    "half": O1_HALF,
    "attention": O1_HALF,
    "recurrent": O1_HALF,
    "float": O1_FP32,
    "banned": O1_FP32,
    "refuse_16_bit_target": O1_FP32,
    "promote": O1_PROMOTE,
    "cast_to_target_dtype": O1_PROMOTE,
}
ATTENTION = "scaled_dot_product_attention"
COMPOSITES = ("multi_head_attention_forward",)  # functions that call many ops, which are traced one by one
WITHOUT_WORK = ("empty", "empty_like", "empty_strided", "detach", "new_empty")  # allocate, and write nothing
# Kernels that have another name than the function that calls them.
FUNCTION_NAMES = {"convolution": "conv2d", "addmm": "linear", "mm": "matmul", "bmm": "matmul"}


@dataclass(frozen=True)
class Op:
    """An op of the forward pass.

    Attributes:
        name: The PyTorch function that was called, such as `conv2d`.
        module: The module that called it.
        dtype: The dtype in which it computed.
        why: The reason for the dtype.
    """

    name: str
    module: str
    dtype: str
    why: str


@dataclass
class ForwardTrace:
    """A traced forward pass.

    Attributes:
        model: The network.
        ops: The ops, in order.
        casts: Number of tensors that were cast.
        cast_bytes: Bytes of the tensors that casts created.
        saved: Bytes that autograd keeps for the backward pass, by module; each storage counts once.
        copies: The part of these bytes that is weights, cast to another dtype.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Batch
    ops: list[Op] = field(default_factory=list)
    casts: int = 0
    cast_bytes: int = 0
    saved: Counter[str] = field(default_factory=Counter)
    copies: int = 0


def trace_forward(trainer: Trainer, batch: Batch) -> ForwardTrace:
    """Trace forward pass and loss of a real step on a batch, which is on the trainer's device."""
    seed_process(0)  # a network that leaves out layers at random has the same layers under each backend
    model = trainer.model.train()
    precision = trainer.precision
    trace = ForwardTrace(model, trainer.optimizer, batch)
    tracer = _OpTracer(trace, _o1_rules())
    with ExitStack() as stack:
        for context in (
            module_calls(model, tracer.enter, tracer.leave),
            precision.training_context(),
            precision.forward_context(),
            saved_tensors_hooks(tracer.save, lambda tensor: tensor),
            tracer.function_tracer,
            tracer,
        ):
            stack.enter_context(context)
        inputs, targets = batch
        outputs = call_network(model, inputs)
        tracer.module_stack.append(LOSS)
        trainer.task.loss(outputs, targets)
    return trace


class _OpTracer(TorchDispatchMode):
    """Notes each op below autocast, with the PyTorch function above autocast that called it."""

    def __init__(self, trace: ForwardTrace, rules: dict[int | str, str]) -> None:
        super().__init__()
        self.trace = trace
        self.rules = rules
        self.function_tracer = _FunctionTracer()
        self.module_stack = [NETWORK]
        self._weights = {_storage(p) for p in trace.model.parameters()}
        # These are in memory anyway, so they do not count as saved for the backward pass.
        persistent = [*trace.model.parameters(), *trace.model.buffers(), *_tensors_of(trace.batch)]
        self._known = {_storage(tensor): tensor for tensor in persistent}
        self._weight_copies: dict[int, Tensor] = {}

    def enter(self, name: str, module: nn.Module, inputs: Any) -> None:
        self.module_stack.append(name or NETWORK)

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        while self.module_stack.pop() != (name or NETWORK):  # the network caught an exception of a call
            pass

    def save(self, tensor: Tensor) -> Tensor:
        """Count the storage of a tensor that autograd keeps, the first time."""
        key = _storage(tensor)
        if key not in self._known:
            self._known[key] = tensor  # a reference, so that no other storage gets this key
            size = _stored_values(tensor).untyped_storage().nbytes()
            self.trace.saved[self.module_stack[-1]] += size
            if key in self._weight_copies:
                self.trace.copies += size
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = floating_tensors((args, kwargs))
        outputs = floating_tensors(result)
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            if inputs and outputs:
                self._note_cast(inputs[0], outputs[0])
        elif not is_without_work(func) and (inputs or outputs):
            self._note_op(name, inputs, outputs)
        return result

    def _note_cast(self, source: Tensor, result: Tensor) -> None:
        """Count a copy that changes the dtype."""
        if source.dtype is result.dtype:
            return
        self.trace.casts += 1
        self.trace.cast_bytes += result.numel() * result.element_size()
        if _storage(source) in self._weights:
            self._weight_copies[_storage(result)] = result

    def _note_op(self, kernel: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Note an op once for each dtype in which the kernels of one function compute."""
        caller = self.function_tracer
        function = getattr(caller.function, "__name__", "").strip("_")
        if function in COMPOSITES:
            function = ""
        largest = max(inputs or outputs, key=lambda tensor: tensor.numel())
        is_wider = bool(outputs) and outputs[0].element_size() > largest.element_size()
        dtype = outputs[0].dtype if is_wider else largest.dtype
        if function and dtype in caller.noted:  # another kernel of the same call
            return
        caller.noted.add(dtype)
        name = function or _function_of_kernel(kernel)
        below = {dtype} if is_wider else {tensor.dtype for tensor in inputs}
        reason = self._reason(below, name)
        self.trace.ops.append(Op(name, self.module_stack[-1], name_dtype(dtype), reason))

    def _reason(self, below: set[torch.dtype], name: str) -> str:
        """Return why an op computes in its dtype.

        Args:
            below: Dtypes of its inputs below autocast.
            name: The function that was called.
        """
        above = self.function_tracer.dtypes
        if STATE.on:
            function = self.function_tracer.function
            rule = self.rules.get(id(getattr(function, "__wrapped__", function)), "")
            if not rule and (name == ATTENTION or getattr(function, "__name__", "") in COMPOSITES):
                rule = self.rules.get(name, "")
            return O1_REASONS.get(rule, AS_INPUT)
        if not above or not below or above == below:
            return AS_INPUT
        widest_above = max(dtype.itemsize for dtype in above)
        widest_below = max(dtype.itemsize for dtype in below)
        if widest_below < widest_above:
            return CAST_DOWN
        if widest_below > widest_above:
            return CAST_UP
        return WIDEST


class _FunctionTracer(TorchFunctionMode):
    """Notes the PyTorch function that was called last, and the dtypes of its inputs."""

    function: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()
        self.noted: set[torch.dtype] = set()  # dtypes of the ops that this call has led to

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.function = func
        self.noted = set()
        self.dtypes = {tensor.dtype for tensor in floating_tensors((args, kwargs))}
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.function = None


def _function_of_kernel(kernel: str) -> str:
    """Return the PyTorch function that a kernel computes, by the kernel's name."""
    name = kernel.strip("_").removeprefix("native_").removesuffix("_forward")
    if name.startswith("scaled_dot_product"):
        return ATTENTION
    return FUNCTION_NAMES.get(name, name)


def _o1_rules() -> dict[int | str, str]:
    """Return the rules of O1's cast lists, by the identity of the function and by its name."""
    rules: dict[int | str, str] = {}
    for namespace, name, rule in list_entries():
        function = getattr(namespace, name)
        rules.setdefault(id(getattr(function, "__wrapped__", function)), rule)
        rules.setdefault(name, rule)
    return rules


def _tensors_of(batch: Batch) -> list[Tensor]:
    return [tensor for part in batch for tensor in list_tensors(part)]


def _storage(tensor: Tensor) -> int:
    return _stored_values(tensor).untyped_storage()._cdata


def _stored_values(tensor: Tensor) -> Tensor:
    return tensor._values() if tensor.is_sparse else tensor


def floating_tensors(tree: Any) -> list[Tensor]:
    """Return the floating-point tensors in a nested structure."""
    return [tensor for tensor in numeric_tensors(tree) if tensor.is_floating_point()]


def is_without_work(func: Any) -> bool:
    """Return whether an op computes nothing: a view, an allocation, a query."""
    if func.namespace != "aten":
        return True
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return is_view or func.overloadpacket.__name__ in WITHOUT_WORK
