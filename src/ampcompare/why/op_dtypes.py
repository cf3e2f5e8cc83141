"""In which types the ops of a forward run, and why: watched in a real step.

Above autocast a PyTorch function has the tensors that the network gave it, below it the op has those that it
computes with. What lies between is the reason, as it was observed; O1, which casts before PyTorch is called,
is asked for its own rule.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampcompare.data.batch import Batch, list_tensors
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.cast_lists import list_entries
from ampcompare.training.losses_and_metrics import call
from ampcompare.training.trainer import Trainer
from ampcompare.why.step_capture import floats

LOSS, NETWORK = "(loss)", "(network)"
LOW, FP32, WIDEST, GIVEN = (
    "cast to the low type",
    "kept in fp32",
    "the widest of its inputs",
    "as it is given",
)
OF_O1 = {"half": LOW, "attention": LOW, "recurrent": LOW, "float": FP32, "banned": FP32, "refuse": FP32}
ATTENTION = "scaled_dot_product_attention"
PARTS = ("multi_head_attention_forward",)  # one call of many ops, which are told one by one
FREE = ("empty", "empty_like", "empty_strided", "detach", "new_empty")  # allocate, and write nothing
# What a kernel is called by the function that one writes.
KERNELS = {"convolution": "conv2d", "addmm": "linear", "mm": "matmul", "bmm": "matmul"}


@dataclass(frozen=True)
class Op:
    """An op of the forward: the function that one writes (`conv2d`), the module that called it, the type that
    it computed in, and why.
    """

    name: str
    module: str
    dtype: str
    why: str


@dataclass
class Watched:
    """A forward as it was seen. `casts` are how many tensors were cast, `cast_bytes` what was made so.

    `saved` are the bytes that autograd keeps for the backward, each storage once, by the module that left
    them; `copies` those of them that are weights in another type.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Batch
    ops: list[Op] = field(default_factory=list)
    casts: int = 0
    cast_bytes: int = 0
    saved: Counter[str] = field(default_factory=Counter)
    copies: int = 0


def watch_forward(trainer: Trainer, batch: Batch) -> Watched:
    """Watch forward and loss of a real step on a batch, on the trainer's device."""
    model, precision = trainer.model.train(), trainer.precision
    found = Watched(model, trainer.optimizer, batch)
    rules = _o1_rules()
    watch = _Watch(found, rules)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(watch.enter(name or NETWORK)).remove)
            stack.callback(module.register_forward_hook(watch.leave, always_call=True).remove)
        for context in (
            precision.training_context(),
            precision.forward_context(),
            saved_tensors_hooks(watch.keep, lambda tensor: tensor),
            watch.above,
            watch,
        ):
            stack.enter_context(context)
        inputs, targets = batch
        outputs = call(model, inputs)
        watch.where.append(LOSS)
        trainer.task.loss(outputs, targets)
    return found


class _Watch(TorchDispatchMode):
    """Notes each op below autocast, with the function above it that led to it."""

    def __init__(self, found: Watched, rules: dict[int | str, str]) -> None:
        super().__init__()
        self.found, self.rules, self.above = found, rules, _Above()
        self.where = [NETWORK]
        self._weights = {_storage(p) for p in found.model.parameters()}
        # What the backward keeps of these is there anyway.
        standing = [*found.model.parameters(), *found.model.buffers(), *_tensors_of(found.batch)]
        self._known = {_storage(tensor): tensor for tensor in standing}
        self._copies: dict[int, Tensor] = {}

    def enter(self, name: str) -> Callable[..., None]:
        return lambda module, args: self.where.append(name)

    def leave(self, *_: Any) -> None:
        self.where.pop()

    def keep(self, tensor: Tensor) -> Tensor:
        """What autograd keeps: its storage, the first time."""
        key, size = _storage(tensor), tensor.untyped_storage().nbytes()
        if key not in self._known:
            self._known[key] = tensor  # with it, so that the key stays its own
            self.found.saved[self.where[-1]] += size
            self.found.copies += size if key in self._copies else 0
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = (floats(x) for x in ((args, kwargs), result))
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            if given and made and given[0].dtype is not made[0].dtype:
                self.found.casts += 1
                self.found.cast_bytes += made[0].numel() * made[0].element_size()
                if _storage(given[0]) in self._weights:
                    self._copies[_storage(made[0])] = made[0]
        elif not is_free(func) and (given or made):
            self._note(name, given, made)
        return result

    def _note(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        above = self.above
        function = getattr(above.function, "__name__", "").strip("_")
        function = "" if function in PARTS else function
        plain = name.strip("_").removeprefix("native_").removesuffix("_forward")
        plain = ATTENTION if plain.startswith("scaled_dot_product") else plain
        largest = max(given or made, key=lambda tensor: tensor.numel())
        wide = made and made[0].element_size() > largest.element_size()
        dtype = made[0].dtype if wide else largest.dtype
        if function and dtype in above.noted:  # the rest of what one call comes to
            return
        above.noted.add(dtype)
        shown = function or KERNELS.get(plain, plain)
        why = self._why({dtype} if wide else {t.dtype for t in given}, shown)
        self.found.ops.append(Op(shown, self.where[-1], str(dtype).removeprefix("torch."), why))

    def _why(self, below: set[torch.dtype], name: str) -> str:
        above = self.above.types
        if STATE.on:
            function = self.above.function
            rule = self.rules.get(id(getattr(function, "__wrapped__", function)), "")
            if not rule and (name == ATTENTION or getattr(function, "__name__", "") in PARTS):
                rule = self.rules.get(name, "")
            return OF_O1.get(rule, WIDEST) if rule else GIVEN
        if not above or not below or above == below:
            return GIVEN
        widest, most = (max(kinds, key=lambda kind: kind.itemsize) for kinds in (above, below))
        if most.itemsize != widest.itemsize:
            return LOW if most.itemsize < widest.itemsize else FP32
        return WIDEST


class _Above(TorchFunctionMode):
    """The PyTorch function that was called last, and the types that it was given."""

    function: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self.noted: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.function, self.noted = func, set()
        self.types = {tensor.dtype for tensor in floats((args, kwargs))}
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.function = None


def _o1_rules() -> dict[int | str, str]:
    """The rules of O1's lists by function, which is known by its identity, and by name."""
    found: dict[int | str, str] = {}
    for namespace, name, rule in list_entries():
        function = getattr(namespace, name)
        found.setdefault(id(getattr(function, "__wrapped__", function)), rule)
        found.setdefault(name, rule)
    return found


def _tensors_of(batch: Batch) -> list[Tensor]:
    return [tensor for part in batch for tensor in list_tensors(part)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_free(func: Any) -> bool:
    """Whether an op computes nothing: a view, an allocation, a question."""
    if func.namespace != "aten":
        return True
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return is_view or func.overloadpacket.__name__ in FREE
