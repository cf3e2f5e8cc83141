"""The worker processes of a DataLoader beside signals that reach every process of a job.

Ctrl-C, the end of a terminal and a batch system's warnings and SIGTERM go to the workers too, while the
training still wants to finish its step and to save, and may need a batch for that. So a worker ends when the
training says so: by the loader's end, by a SIGTERM of the training itself, or with it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

FOR_THE_TRAINING = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TELLS_SENDERS = hasattr(signal, "sigwaitinfo")  # not on macOS: there a worker ends by any SIGTERM


def begin(loader: Any) -> Iterator[Any]:
    """`iter(loader)`; if it is a DataLoader with workers, these leave the signals above to the training.

    Workers that somebody's own class of loader begins inside its iteration are as that class has them.
    """
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return iter(loader)
    if not isinstance(loader.worker_init_fn, _WorkOn):
        loader.worker_init_fn = _WorkOn(loader.worker_init_fn)
    with _held():
        return iter(loader)


def is_loss_of_worker(problem: RuntimeError) -> bool:
    """Whether it is PyTorch's word that a worker has died: raised wherever the main thread is by then."""
    return str(problem).startswith("DataLoader worker (pid")


@contextmanager
def _held() -> Iterator[None]:
    """Signals wait, in this thread and in whatever process or thread begins in it.

    A signal to a process is taken by any of its threads that does not hold it. A worker that began to hold
    SIGTERM by itself would still die by one that came earlier, or that a library's thread took.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*FOR_THE_TRAINING, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _WorkOn:
    """What a worker does first, before what its loader asks for (`then`). It begins with its signals held."""

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        for signum in FOR_THE_TRAINING:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_TRAINING)
        if TELLS_SENDERS:
            threading.Thread(target=_end_when_told, args=(os.getppid(),), daemon=True).start()
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if self.then is not None:
            self.then(number)


def _end_when_told(parent: int) -> None:
    """Wait for a SIGTERM of the training itself: PyTorch sends it to a worker that does not end."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)
