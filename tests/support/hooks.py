"""Faults within a step or an evaluation, by PyTorch's hook for all modules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def before_forward(act: Callable[[nn.Module, Tensor], Tensor | None]) -> Iterator[None]:
    """Call `act` with network and images before each forward of a network that is an `nn.Sequential`.

    It may raise, send a signal, or return images that replace the given ones. The networks of `QUICK` and
    `DROPOUT` are of this kind. A network that is a plug-in first runs in evaluation mode on two samples.
    """

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        if not isinstance(module, nn.Sequential):
            return None
        changed = act(module, *inputs)
        return None if changed is None else (changed,)

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
