"""The random numbers that a step draws: are they the same in two steps, and which modules draw them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.system.device import random_states
from ampcompare.training.torch_compile import uses_compile


def eager_draws(config: Config, *, is_random: bool) -> AbstractContextManager[Any]:
    """Return a context in which a compiled step draws the random numbers of the eager step.

    The compiler normally has a random generator of its own.
    """
    if not is_random or not uses_compile(config.execution):
        return nullcontext()
    import torch._inductor.config as inductor

    return inductor.patch(fallback_random=True)


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two states of random generators are equal."""
    if isinstance(a, dict):
        return all(are_equal(value, b[key]) for key, value in a.items())
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


class RandomModules:
    """Finds the modules that draw random numbers in a forward pass.

    Attributes:
        names: Their names, "" for the network itself.
    """

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self._device = device

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the modules of a network."""
        open_modules: list[str] = []
        state: Any = None

        def note() -> None:
            nonlocal state
            now = random_states(self._device)
            if open_modules and not are_equal(state, now) and open_modules[-1] not in self.names:
                self.names.append(open_modules[-1])
            state = now

        def enter(name: str) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                note()
                open_modules.append(name)

            return hook

        def leave(*_: Any) -> None:
            note()
            open_modules.pop()

        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
