"""Protection of DataLoader workers from signals that reach every process of a job.

Ctrl-C, a closed terminal and a batch system's signals reach the workers too, while the training still
finishes its step and saves, and may need another batch. So a worker ignores them. It ends with the loader,
with the training's process, or by a SIGTERM that the training itself sends.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from ampcompare.runtime.signals import set_handler

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
BLOCKED_SIGNALS = (*IGNORED_SIGNALS, signal.SIGTERM)


def start_iterator(loader: Any) -> Iterator[Any]:
    """Return `iter(loader)`; the workers of a DataLoader ignore the signals that are for the training."""
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return iter(loader)
    if not isinstance(loader.worker_init_fn, _WorkerInit):
        loader.worker_init_fn = _WorkerInit(loader.worker_init_fn)
    # Block the signals while workers are forked, since a signal before `_WorkerInit` would end the worker.
    # Threads that the worker's libraries start inherit the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _WorkerInit:
    """Sets up the signals of a worker, then calls the loader's own `worker_init_fn` (`then`)."""

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        set_handler(IGNORED_SIGNALS, signal.SIG_IGN)
        blocked = [signal.SIGTERM] if hasattr(signal, "sigwaitinfo") else []  # on macOS any SIGTERM ends it
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        training = multiprocessing.parent_process()  # not os.getppid(), which may be a fork server
        if blocked and training is not None:
            threading.Thread(target=_exit_on_sigterm, args=(training.pid,), daemon=True).start()
        if self.then is not None:
            self.then(number)


def _exit_on_sigterm(training: int) -> None:
    """End the worker on a SIGTERM from the training's process, which Python sends when the training ends."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != training:
        pass
    os._exit(0)  # from this thread, since the main thread may wait for a task for ever


def is_worker_loss(problem: BaseException) -> bool:
    """Return whether PyTorch raised the exception because a worker died, which may happen in any line."""
    return isinstance(problem, RuntimeError) and str(problem).startswith("DataLoader worker (pid")
