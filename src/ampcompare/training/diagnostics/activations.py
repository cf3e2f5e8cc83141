"""What fp16 does to activations: how near the largest comes to its limit, how many fall out of it below.

Looked at is what modules return, by hooks that are there during a forward that is looked at and at no other
time. The forward's own numbers, its graph of gradients and its random numbers stay as they are.
"""

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from ampcompare import metrics
from ampcompare.system.device import widest_float
from ampcompare.training.diagnostics.updates import even_stride

# The largest number below fp16's smallest normal one, 2**-14: from here down fp16 has fewer than 11 bits.
SUBNORMAL = 2.0**-14 * (1 - 2.0**-24)
# The share is that of an even sample of each tensor; the largest magnitude is that of all its elements.
SAMPLE = 2**16
OUTPUT = "output"  # the group of what the network itself returns
KNOWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class ActivationStats:
    """One tensor: its largest magnitude (0-d), and how many of its elements are 0 and how many below 2**-14,
    and there are, as far as the sample tells, [3].
    """

    largest: Tensor
    counts: Tensor


class ActivationRecorder:
    """A look at what the modules of a model return, by the module at its top that they are part of.

    A tensor that several modules return, one behind the other, is seen once. What a module computes on its
    way and returns to nobody is not seen. Modules within a compiled one are left alone (a hook would have it
    compiled anew), and scripted ones; so is what is no dense floating tensor.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._seen: defaultdict[str, list[ActivationStats]] = defaultdict(list)
        # Of the last module that returned: its tensors, and which version of each.
        self._last: list[tuple[weakref.ref[Tensor], int]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The context of a forward that is looked at. Nothing in it waits for the device."""
        with ExitStack() as stack:
            for name, module in visible(self._model):
                group = name.partition(".")[0] or OUTPUT
                stack.callback(module.register_forward_hook(self._hook(group)).remove)
            try:
                yield
            finally:
                self._last = []

    def take(self) -> dict[str, Tensor]:
        """What was seen since the last time, 0-d on the device, by group and over all; `docs/metrics.md`."""
        seen, self._seen = self._seen, defaultdict(list)
        if not seen:
            return {}
        found: dict[str, Tensor] = {}
        everything = [each for group in seen.values() for each in group]
        for name, group in [("", everything), *seen.items()]:
            suffix = f"/{name}" if name else ""
            found[f"{metrics.ACTIVATION_LARGEST}{suffix}"] = torch.stack([x.largest for x in group]).amax()
            zeros, below, elements = torch.stack([x.counts for x in group]).sum(0).unbind()
            share = (below - zeros) / (elements - zeros).clamp(min=1)
            found[f"{metrics.ACTIVATION_SUBNORMAL}{suffix}"] = share
        return found

    def _hook(self, group: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(module: nn.Module, args: Any, output: Any) -> None:
            tensors = [x for x in tensors_in(output) if _is_known(x)]
            for x in tensors:
                if not any(ref() is x and version == x._version for ref, version in self._last):
                    self._seen[group].append(self._look(x.detach()))
            self._last = [(weakref.ref(x), x._version) for x in tensors]

        return see

    @torch.no_grad()
    def _look(self, x: Tensor) -> ActivationStats:
        low, high = torch.aminmax(x)  # reads all of it, and keeps nothing of its size
        wide, stride = widest_float(self._device), even_stride(x.numel() // SAMPLE)
        sample = _in_memory_order(x)[::stride].to(torch.float32, copy=True).abs_()
        counts = [
            (sample == 0).sum(),
            (sample <= SUBNORMAL).sum(),
            torch.full_like(low, 0).long() + sample.numel(),
        ]
        largest = torch.maximum(-low, high).to(self._device, wide)
        return ActivationStats(largest, torch.stack(counts).to(self._device, wide) * stride)


def visible(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a hook may be put on, each once, with their names; the model itself is "".

    What wraps it for several processes is looked through.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return _walk("", model, set())


def _walk(name: str, module: nn.Module, known: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    # `Module.compile` would compile the hook, too.
    if module in known or module._compiled_call_impl is not None:
        return
    known.add(module)
    # What a parametrization returns are weights; a scripted module takes no hooks.
    if isinstance(module, ParametrizationList | torch.jit.ScriptModule):
        return
    yield name, module
    if hasattr(module, "_orig_mod"):  # compiled, hooks within it and all
        return
    for child, inner in module.named_children():
        yield from _walk(f"{name}.{child}" if name else child, inner, known)


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors in what a module returned: in tuples, lists, dicts and dataclasses, at any depth."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name))


def _is_known(x: Tensor) -> bool:
    """Whether it can be looked at: dense and floating, with elements, whole in this process."""
    return (
        x.dtype in KNOWN
        and x.layout is torch.strided
        and x.numel() > 0
        and not x.is_meta
        and not x.is_inference()
        and not hasattr(x, "device_mesh")
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # within vmap: one of many
    )


def _in_memory_order(x: Tensor) -> Tensor:
    """All elements, one behind the other as they lie in memory: with channels last, `flatten` would copy."""
    steps = x.stride()
    return x.permute(sorted(range(x.ndim), key=lambda axis: -steps[axis])).reshape(-1)
