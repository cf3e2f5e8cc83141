"""Kernels at PyTorch's dispatcher that are registered while a context needs them."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.library import Library


class ScopedKernels:
    """Kernels for ATen operations, registered for the process while any thread is inside `active`.

    PyTorch's dispatcher may crash where a kernel is registered or unregistered while another thread calls the
    same operation. Therefore a kernel stays registered while any context is open, and the end of the last
    context unregisters kernels only where a single thread has opened contexts. A kernel must hand each call
    on to PyTorch's own kernel unless `is_active` is true.

    Args:
        dispatch_key: The dispatch key of the kernels, such as "CPU".
        make_kernels: Returns the kernels of an operation by the name of their overload ("mm.out"). It is
            called before any of them is registered, so it can look up PyTorch's own.
    """

    def __init__(
        self, dispatch_key: str, make_kernels: Callable[[str], dict[str, Callable[..., object]]]
    ) -> None:
        self._dispatch_key = dispatch_key
        self._make_kernels = make_kernels
        # The lock guards all of the state; a kernel reads the counts without it.
        self._lock = threading.RLock()
        self._contexts: Counter[tuple[str, torch.dtype]] = Counter()  # open ones, by operation and dtype
        self._libraries: dict[str, Library] = {}  # the registration of the kernels of an operation
        self._overloads: dict[str, tuple[str, ...]] = {}  # of each operation that is registered
        self._threads: set[int] = set()  # that have opened a context

    @contextmanager
    def active(self, operations: Iterable[str], dtype: torch.dtype) -> Iterator[None]:
        """Return a context in which the kernels of operations compute calls in a dtype.

        Contexts may be nested and may be open in several threads at once.
        """
        keys = [(operation, dtype) for operation in operations]
        with self._lock:
            self._threads.add(threading.get_ident())
            self._contexts.update(keys)
            for operation, _ in keys:
                if operation not in self._libraries:
                    self._register(operation)
        try:
            yield
        finally:
            with self._lock:
                self._contexts.subtract(keys)
                if not any(self._contexts.values()) and len(self._threads) == 1:
                    self._unregister()

    def is_active(self, operation: str, dtype: torch.dtype) -> bool:
        """Return whether a context is open for an operation in a dtype."""
        return self._contexts[operation, dtype] > 0

    def list_active_overloads(self) -> tuple[str, ...]:
        """Return the overloads of the operations for which a context is open, sorted."""
        with self._lock:
            operations = {operation for (operation, _), count in self._contexts.items() if count}
            return tuple(sorted(name for operation in operations for name in self._overloads[operation]))

    def _register(self, operation: str) -> None:
        kernels = self._make_kernels(operation)
        library = self._libraries[operation] = Library("aten", "IMPL")
        self._overloads[operation] = tuple(kernels)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"[\s\S]*[Oo]verriding a previously registered kernel")
            for overload, kernel in kernels.items():
                library.impl(overload, kernel, self._dispatch_key, with_keyset=True)

    def _unregister(self) -> None:
        while self._libraries:
            _, library = self._libraries.popitem()
            library._destroy()  # the only way to unregister before the process ends
