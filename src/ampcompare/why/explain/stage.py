"""Tensors without data, on any device, and what of PyTorch has to be told that they are as good as others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils import _foreach_utils

from ampcompare.train import build
from ampcompare.why.explain.attention import attention
from ampcompare.why.explain.walk import walking


class NoData(FakeTensorMode):
    """A fake mode that asks no driver for anything: the device need not be there."""

    avoid_device_init = True


@contextmanager
def staged(device: torch.device) -> Iterator[FakeTensorMode]:
    """Inside, all tensors that are made have a shape and a type and no data; `device` may be a GPU that is
    not there, and code that asks PyTorch is told that it is.
    """
    mode = NoData(allow_non_fake_inputs=True, allow_fallback_kernels=not is_absent(device))
    with ExitStack() as stack:
        if is_absent(device):  # autograd's engine would ask its driver
            stack.enter_context(walking())
        for owner, name, value in _replacements(device):
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(patch.object(build, "build_model", without_data(build.build_model, mode)))
        yield stack.enter_context(mode)


def without_data(make: Callable[..., nn.Module], mode: FakeTensorMode) -> Callable[..., nn.Module]:
    """A function that builds a network without data; one that looks at values while it is built (a truncated
    normal drawn by SciPy, rates of `linspace` read as numbers) is built with data, which are then taken away.
    """

    def built(*args: Any, **kwargs: Any) -> nn.Module:
        try:
            return make(*args, **kwargs)
        except Exception:  # if that was not the reason, it comes again
            with unset_fake_temporarily():
                model = make(*args, **kwargs)
            take_away(model, mode)
            return model

    return built


def take_away(model: nn.Module, mode: FakeTensorMode) -> None:
    """Put tensors without data in the place of parameters and buffers, one for all that share one."""
    taken: dict[int, Any] = {}

    def of(tensor: Tensor) -> Any:
        if id(tensor) not in taken:
            bare = mode.from_tensor(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            taken[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare
        return taken[id(tensor)]

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = of(tensor)


def _replacements(device: torch.device) -> Iterator[tuple[Any, str, Any]]:
    # PyTorch's optimizers and norms take lists of plain tensors only; here a fake one is the plain one.
    kinds = [*_foreach_utils._foreach_supported_types, FakeTensor]
    yield _foreach_utils, "_foreach_supported_types", kinds
    # Converting a module swaps its fake parameters; PyTorch refuses, as its fake mode holds weak references.
    yield torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda tensor: [])
    if is_absent(device):
        yield from _a_gpu()


def is_absent(device: torch.device) -> bool:
    """Whether it is a GPU that is not there."""
    return device.type == "cuda" and not torch.cuda.is_available()


def _a_gpu() -> Iterator[tuple[Any, str, Any]]:
    """What code asks of `torch.cuda` while a step is built and run, of a GPU that is not there."""
    answers: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        **dict.fromkeys(("_lazy_init", "_lazy_call", "set_device", "manual_seed", "manual_seed_all"), None),
        **dict.fromkeys(("synchronize", "reset_peak_memory_stats"), None),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0),
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
    }
    for name, value in answers.items():
        yield torch.cuda, name, _answer(value)
    yield fake_tensor, "init_gpu_context", _answer(None)
    yield torch._C, "_select_conv_backend", _convolution_kernel
    yield F, "scaled_dot_product_attention", attention


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _convolution_kernel(
    input: Any, weight: Any, *args: Any, _choose: Any = torch._C._select_conv_backend, **kwargs: Any
) -> Any:
    """PyTorch asks the driver whether it has bfloat16 convolutions; the answer is that for float16."""
    if input.dtype is torch.bfloat16:
        input, weight = input.to(torch.float16), weight.to(torch.float16)
        kwargs["bias"] = None if kwargs.get("bias") is None else kwargs["bias"].to(torch.float16)
    return _choose(input, weight, *args, **kwargs)
