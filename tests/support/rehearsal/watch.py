"""Records where a program on (fake) CUDA tensors touches the host: each op, and its place in the source.

The mode is below autograd, so it sees every op that PyTorch would give to the device, also those of the
backward and of in-place writes. Inside a capture any contact with the host is an error. So is what a capture
freezes or refuses: work on the CPU, a learning rate that is a Python number, lists of tensors with different
strides.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from support.quick import ROOT
from support.rehearsal.walk import are_strides_alike

aten = torch.ops.aten

# What may be noted.
READ = "host read"  # the host asks for a value of the device, and waits
TO_HOST, TO_DEVICE = "copy to host", "copy to device"  # from or to memory that is not pinned: the host waits
QUEUED_TO_HOST, QUEUED_TO_DEVICE = "queued copy to host", "queued copy to device"  # pinned: it does not
MIX = "mix"  # an op has tensors of both
WAIT = "wait"  # the host waits until the device has done all that is queued
LATE_WAIT = "late wait"  # for something that has other work queued behind it: where that is enough, no wait
EARLY = "read too early"  # a value of a queued copy, for which the host has not waited
CPU_WORK = "work on the CPU"  # inside a capture only: it would be done once, not at each launch
FROZEN_RATE = "learning rate is a Python number"  # inside a capture only
STRIDES = "unlike strides"  # of lists of one op: more launches, or an error

OURS = tuple(str(ROOT / part) for part in ("src", "tests"))


class RehearsalError(Exception):
    """Something inside a capture that a capture does not allow."""


@dataclass(frozen=True)
class Contact:
    """A contact of host and device: what kind, by which op or call, and the callers, innermost first."""

    kind: str
    what: str
    trail: tuple[str, ...]
    behind: int = 0  # of a late wait: how many ops were queued behind what it waited for

    @property
    def place(self) -> str:
        """Where it was done: `file qualified.name`."""
        return self.trail[0] if self.trail else "?"

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} at {' < '.join(self.trail)}"


class Watch(TorchDispatchMode):
    """Notes contacts while it is the innermost mode. `capturing` tells of a capture under way."""

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()
        self.fakes = fakes
        self.contacts: list[Contact] = []
        self.capturing = False
        self.queued = self.known = 0  # ops that the device was given; that the host knows to be done

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Treat the body as a capture: contacts in it raise RehearsalError."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def note(self, kind: str, what: str, behind: int = 0) -> None:
        """Note a contact where the program is. Raises RehearsalError inside a capture."""
        if kind in (READ, TO_HOST, TO_DEVICE):
            self.known = self.queued
        contact = Contact(kind, what, trail(sys._getframe(1)), behind)
        self.contacts.append(contact)
        if self.capturing:
            raise RehearsalError(f"inside a capture: {contact}")

    def note_rate(self, optimizer: Any, *_: Any) -> None:
        """Check, before an optimizer's step, that the learning rates of a captured step are tensors."""
        if self.capturing and not all(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
            self.note(FROZEN_RATE, f"{type(optimizer).__name__}.step")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket not in _LIFTS:
            args, kwargs = tree_map(self._without_data, (args, kwargs))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_device = any(x.device.type == "cuda" for x in tensors)
        if on_device:
            self._look(func, args, kwargs, tensors)
            self.queued += 1
        elif func.overloadpacket is aten._to_copy:
            self._look_at_copy(func, args, kwargs)  # what it makes may be the device's
        elif func.overloadpacket is aten._local_scalar_dense:
            self.look_at_read(args[0], str(func))
        if self.capturing and tensors and not on_device:
            self.note(CPU_WORK, str(func))
        if func.overloadpacket in _WRITERS:
            return args[0] if func._schema.returns else None
        if func.overloadpacket in _ANSWERS:
            return _ANSWERS[func.overloadpacket](func, args, kwargs)
        result = func(*args, **kwargs)
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not on_device:
            self.queued += any(x.device.type == "cuda" for x in made)
        on_host = [x for x in made if x.device.type == "cpu"]
        if self.capturing and on_host:
            self.note(CPU_WORK, str(func))
        pinned = kwargs.get("pin_memory") or (_is_view(func) and any(is_pinned(x) for x in tensors))
        arrives = self.queued if on_device else max(map(_arrival, tensors), default=0)
        for tensor in on_host:
            tensor._arrives = arrives  # type: ignore[attr-defined]
            if pinned:
                mark_pinned(tensor)
        return result

    def _without_data(self, x: Any) -> Any:
        """Tensors with data come from NumPy: PyTorch would take them to a real device."""
        return self.fakes.from_tensor(x) if isinstance(x, Tensor) and not isinstance(x, FakeTensor) else x

    def _look(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> None:
        """Check an op that has tensors of the device."""
        packet = func.overloadpacket
        if packet in (aten._to_copy, aten.copy_):
            self._look_at_copy(func, args, kwargs)
            return
        if packet is aten._local_scalar_dense:
            self.note(READ, str(func))
        if any(x.device.type == "cpu" for x in tensors):
            shapes = ", ".join(f"{x.device.type}{list(x.shape)}" for x in tensors)
            self.note(MIX, f"{func} of {shapes}")
        if packet.__name__.startswith(("_foreach_", "_fused_")):
            self._look_at_lists(func, args)

    def _look_at_copy(self, func: Any, args: Any, kwargs: Any) -> None:
        if func.overloadpacket is aten._to_copy:
            source, queued = args[0], bool(kwargs.get("non_blocking"))
            end = torch.device(kwargs.get("device") or source.device).type
            # PyTorch pins the memory of a copy to the host that may be queued.
            pinned = end == "cpu" or is_pinned(source)
        else:
            target, source = args[:2]
            queued = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            end, pinned = target.device.type, is_pinned(target) or is_pinned(source)
        start = source.device.type
        if start == end:
            return
        quietly = queued and pinned
        if end == "cpu":
            self.note(QUEUED_TO_HOST if quietly else TO_HOST, str(func))
        else:
            self.note(QUEUED_TO_DEVICE if quietly else TO_DEVICE, str(func))

    def look_at_read(self, tensor: Tensor, what: str) -> None:
        """Check a read of a tensor's values."""
        if tensor.device.type == "cuda":
            self.note(READ, what)
        elif _arrival(tensor) > self.known:
            self.note(EARLY, what)

    def _look_at_lists(self, func: Any, args: Any) -> None:
        """Check lists of tensors: different strides cost a launch per tensor, and a fused op refuses them."""
        lists = [x for x in args if isinstance(x, list | tuple) and x and isinstance(x[0], Tensor)]
        for others in lists[1:]:
            for one, other in zip(lists[0], others, strict=False):
                if one.shape == other.shape and not are_strides_alike(one, other):
                    self.note(STRIDES, f"{func}: {one.stride()} and {other.stride()}, {list(one.shape)}")
                    return


def trail(frame: FrameType | None) -> tuple[str, ...]:
    """Return the callers in the package or a test, as `file qualified.name`, innermost first."""
    found: list[str] = []
    while frame is not None and len(found) < 3:
        path = frame.f_code.co_filename
        if path.startswith(OURS) and not path.startswith(str(Path(__file__).parent)):
            found.append(f"{Path(path).name} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(found)


def mark_pinned(tensor: Tensor) -> None:
    tensor._pinned = True  # type: ignore[attr-defined]


def is_pinned(tensor: Tensor) -> bool:
    """Whether a host tensor of the rehearsal is in pinned memory."""
    return bool(vars(tensor).get("_pinned"))


def _arrival(tensor: Tensor) -> int:
    """Which op of the device a host tensor's values come from."""
    return vars(tensor).get("_arrives", 0)


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def number(tensor: Tensor) -> Any:
    """Return the value of a one-element tensor.

    Without data it is 0 for the device (an overflow that was not found) and 1 for the host (what has arrived
    there).
    """
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        with _disable_current_modes():
            return constant.item()
    value = tensor.device.type == "cpu"
    return value if tensor.dtype is torch.bool else float(value) if tensor.is_floating_point() else int(value)


def _pinned_copy(func: Any, args: Any, kwargs: Any) -> Tensor:
    copy = torch.empty_like(args[0])
    mark_pinned(copy)
    return copy


# What makes a tensor of Python numbers.
_LIFTS = {aten.lift, aten.lift_fresh, aten.lift_fresh_copy}

# What writes into its arguments and changes no shape, and has no rule for tensors without data in every
# PyTorch.
_WRITERS = {
    aten._fused_sgd_,
    aten._fused_adam_,
    aten._fused_adamw_,
    aten._amp_update_scale_,
    aten._amp_foreach_non_finite_check_and_unscale_,
}

# Ops that tensors without data cannot answer. PyTorch itself refuses those whose result has as many elements
# as values of the device say (a mask as an index): nothing in a step may have one.
_ANSWERS: dict[Any, Any] = {
    aten._local_scalar_dense: lambda func, args, kwargs: number(args[0]),
    aten.is_pinned: lambda func, args, kwargs: is_pinned(args[0]),
    aten._pin_memory: _pinned_copy,
}
