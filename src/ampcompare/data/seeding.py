"""Reading of users' data sets and loaders: seeds for their random choices, and one-line errors.

A data set draws its crops from the global CPU generators of Python, NumPy and PyTorch, and a DataLoader draws
its order from them. For a data set, the generators are seeded before each sample by its position in the
training, so a sample is the same in any process. For a loader, they are seeded at the beginning of an epoch.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampcompare import plugins
from ampcompare.data.batch import Batch, to_batch
from ampcompare.data.worker_signals import is_worker_loss, start_iterator
from ampcompare.errors import WORKER_ERROR, reason
from ampcompare.system.device import random_states, set_random_states

HOST = torch.device("cpu")
_END = object()


@contextmanager
def wrap_data_errors(name: str, expected: str, file: Path | None, workers: int = 0) -> Iterator[None]:
    """Turn exceptions of a data plug-in into UserErrors, as `plugins.wrap_plugin_errors` does.

    The death of a worker is no mistake in the data: its cause may be a signal to the whole job, or a lack of
    memory.

    Args:
        name: The name of the plug-in.
        expected: What it has to return, for the message.
        file: The file of the plug-in.
        workers: The number of DataLoader workers.

    Raises:
        UserError: The plug-in raised an exception.
        RuntimeError: A worker has died.
    """
    try:
        yield
    except (Exception, SystemExit) as problem:
        if is_worker_loss(problem):
            cause = problem.__cause__
            if cause is not None and is_worker_loss(cause):  # its message has the cause of death
                raise cause from None
            raise problem from None
        is_from_worker = WORKER_ERROR.match(str(problem))
        if workers and isinstance(problem, ConnectionError | EOFError) and not is_from_worker:
            # A worker died while it sent a batch, and PyTorch has not noticed yet.
            raise RuntimeError(
                f"DataLoader worker (pid unknown) exited unexpectedly: {reason(problem)}"
            ) from None
        with plugins.wrap_plugin_errors(plugins.DATA, name, f"cannot get {expected}", file):
            raise


def derive_seed(*words: int) -> int:
    """Return a 63-bit seed derived from numbers, such as (seed, epoch, position)."""
    text = "/".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch (CPU), which takes 20 us."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


class SeparateRandomState:
    """A context with separate states of the three global generators; entering takes 0.2 ms.

    The state continues each time the context is entered again. Outside, the generators continue as if the
    context had not been entered, for example for a model's dropout.
    """

    def __init__(self) -> None:
        self._inside: dict[str, Any] | None = None

    def __enter__(self) -> None:
        self._outside = random_states(HOST)
        if self._inside is not None:
            set_random_states(HOST, self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = random_states(HOST)
        set_random_states(HOST, self._outside)


def read_batches(
    loader: Any, name: str, file: Path | None, epoch: int, *, seed: int | None = None, first: int = 0
) -> Iterator[Batch]:
    """Yield the batches of an epoch on the host.

    Args:
        loader: Our DataLoader, or a loader of the user's.
        name: The name of the plug-in, for messages.
        file: The file of the plug-in.
        epoch: From 0.
        seed: For a loader of the user's, the seed of the run: random choices depend on (seed, epoch). None
            for our own, which yields batches and seeds its samples itself.
        first: The number of the first batch, for messages.

    Raises:
        UserError: The plug-in raised an exception.
        RuntimeError: A worker has died.
    """
    workers = getattr(loader, "num_workers", 0)
    is_users = seed is not None
    random_state = SeparateRandomState() if is_users else nullcontext()
    batches: Any = None
    for number in count(first):
        with wrap_data_errors(name, f"batch {number} of epoch {epoch}", file, workers), random_state:
            if batches is None:
                if seed is not None:
                    seed_of_epoch = derive_seed(seed, epoch)
                    seed_all(seed_of_epoch)
                    _seed(loader, seed_of_epoch, epoch)
                batches = start_iterator(loader)
            batch: Any = next(batches, _END)
            if is_users and batch is not _END:
                batch = to_batch(batch)
        if batch is _END:
            return
        yield batch


def _seed(loader: Any, seed: int, epoch: int) -> None:
    """Seed the generators of a DataLoader and its samplers, and set their epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
    )
    for part in parts:
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        set_epoch = getattr(part, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
