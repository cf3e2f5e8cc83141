"""The worker processes of a DataLoader beside signals that reach every process of a job.

Ctrl-C, the end of a terminal and a batch system's warnings and SIGTERM go to the workers too, while the
training still wants to finish its step and to save, and may need a batch for that. So a worker ends when the
training says so: by the loader's end, by a SIGTERM of the training itself, or with it.
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
    """`iter(loader)`; if it is a DataLoader with workers, these leave the signals above to the training."""
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return iter(loader)
    if not isinstance(loader.worker_init_fn, _WorkerInit):
        loader.worker_init_fn = _WorkerInit(loader.worker_init_fn)
    # The signals are blocked while workers are forked: one that comes before `_WorkOn` has run would end the
    # worker, and threads that its libraries start inherit the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _WorkerInit:
    """What a worker does first, before what its loader asks for (`then`)."""

    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        set_handler(IGNORED_SIGNALS, signal.SIG_IGN)
        held = [signal.SIGTERM] if hasattr(signal, "sigwaitinfo") else []  # on macOS it ends by any SIGTERM
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        training = multiprocessing.parent_process()  # not os.getppid(), which may be a fork server
        if held and training is not None:
            threading.Thread(target=_exit_on_sigterm, args=(training.pid,), daemon=True).start()
        if self.then is not None:
            self.then(number)


def _exit_on_sigterm(training: int) -> None:
    """Wait for a SIGTERM of the training: Python, which joins its workers as it ends, sends it first."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != training:
        pass
    os._exit(0)  # only this thread receives SIGTERM, and the main thread waits for a task that does not come


def is_worker_loss(problem: BaseException) -> bool:
    """Whether it is PyTorch's word that a worker has died: raised wherever the main thread is by then."""
    return isinstance(problem, RuntimeError) and str(problem).startswith("DataLoader worker (pid")
