"""What fp16 does to activations: their largest magnitude, and the fraction that is subnormal.

Hooks on modules read what they return. The hooks exist only during a diagnostic forward. They change neither
numbers nor gradients nor random numbers of the forward.
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
from ampcompare.training.update_probe import even_stride

# The largest number below fp16's smallest normal one, 2**-14: from here down fp16 has fewer than 11 bits.
SUBNORMAL = 2.0**-14 * (1 - 2.0**-24)
# Fractions are those of an even sample of each tensor; the largest magnitude is that of all its elements.
SAMPLE = 2**16
OUTPUT = "output"  # the group of the network's own output
SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class ActivationStats:
    """Statistics of one tensor.

    Attributes:
        largest: The largest magnitude of all elements, 0-d.
        counts: Counts of an even sample, scaled to all elements, [3]: zeros, elements below 2**-14, all
            elements.
    """

    largest: Tensor
    counts: Tensor


class ActivationRecorder:
    """Records statistics of what modules return, grouped by the top-level module they belong to.

    If several modules return the same tensor one after another, it counts once. Intermediate results that a
    module does not return are not seen. Modules inside a compiled one are left out (a hook would make PyTorch
    compile it again), and so are scripted modules and anything but dense floating tensors.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._stats: defaultdict[str, list[ActivationStats]] = defaultdict(list)
        # The tensors that the last module returned, with their versions.
        self._last: list[tuple[weakref.ref[Tensor], int]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward that runs in this context. Nothing in it waits for the device."""
        with ExitStack() as stack:
            for name, module in hookable_modules(self._model):
                group = name.partition(".")[0] or OUTPUT
                stack.callback(module.register_forward_hook(self._hook(group)).remove)
            try:
                yield
            finally:
                self._last = []

    def take(self) -> dict[str, Tensor]:
        """Return the statistics since the last call by metric key, for each group and over all.

        The values are 0-d tensors on the device; `docs/metrics.md` describes them.
        """
        stats = self._stats
        self._stats = defaultdict(list)
        if not stats:
            return {}
        values: dict[str, Tensor] = {}
        everything = [each for group in stats.values() for each in group]
        for name, group in [("", everything), *stats.items()]:
            suffix = f"/{name}" if name else ""
            values[f"{metrics.ACTIVATION_LARGEST}{suffix}"] = torch.stack([x.largest for x in group]).amax()
            zeros, below, elements = torch.stack([x.counts for x in group]).sum(0).unbind()
            fraction = (below - zeros) / (elements - zeros).clamp(min=1)
            values[f"{metrics.ACTIVATION_SUBNORMAL}{suffix}"] = fraction
        return values

    def _hook(self, group: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tensors = [x for x in tensors_in(output) if _is_supported(x)]
            for x in tensors:
                if not any(ref() is x and version == x._version for ref, version in self._last):
                    self._stats[group].append(self._measure(x.detach()))
            self._last = [(weakref.ref(x), x._version) for x in tensors]

        return hook

    @torch.no_grad()
    def _measure(self, x: Tensor) -> ActivationStats:
        low, high = torch.aminmax(x)  # reads all elements, and allocates nothing of that size
        wide = widest_float(self._device)
        stride = even_stride(x.numel() // SAMPLE)
        sample = _in_memory_order(x)[::stride].to(torch.float32, copy=True).abs_()
        counts = [
            (sample == 0).sum(),
            (sample <= SUBNORMAL).sum(),
            torch.full_like(low, 0).long() + sample.numel(),
        ]
        largest = torch.maximum(-low, high).to(self._device, wide)
        return ActivationStats(largest, torch.stack(counts).to(self._device, wide) * stride)


def hookable_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module that may have a hook, once, with its name; the model itself is "".

    A DistributedDataParallel wrapper is skipped.
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
    """Yield the tensors in what a module returned: in tuples, lists, dicts and dataclasses."""
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


def _is_supported(x: Tensor) -> bool:
    """Return whether statistics can be computed: dense and floating, with elements, not sharded."""
    return (
        x.dtype in SUPPORTED_DTYPES
        and x.layout is torch.strided
        and x.numel() > 0
        and not x.is_meta
        and not x.is_inference()
        and not hasattr(x, "device_mesh")
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # within vmap: one of many
    )


def _in_memory_order(x: Tensor) -> Tensor:
    """Return all elements in the order of memory; `flatten` would copy a channels_last tensor."""
    steps = x.stride()
    return x.permute(sorted(range(x.ndim), key=lambda axis: -steps[axis])).reshape(-1)
