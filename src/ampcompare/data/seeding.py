"""Other people's data, read: their random choices seeded, and what goes wrong in them in one line.

A data set draws its crops from the global generators of Python, NumPy and PyTorch (the CPU's), a DataLoader
its order. A data set's are seeded by where in the training a sample is asked for: the same at the same place,
in any process. A loader's are seeded as an epoch begins.
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

_END = object()


@contextmanager
def wrap_data_errors(name: str, what: str, file: Path | None, workers: int = 0) -> Iterator[None]:
    """Somebody's code is asked for `what`. UserError as `plugins.blame` words it; RuntimeError for the loss
    of a worker, which is no mistake in the data: it may come of a signal to the whole job, or of a want of
    memory.
    """
    try:
        yield
    except (Exception, SystemExit) as problem:
        if is_worker_loss(problem):
            cause = problem.__cause__  # of two words the one that says of what it died
            raise (cause if cause and is_worker_loss(cause) else problem) from None
        is_from_worker = WORKER_ERROR.match(str(problem))
        if workers and isinstance(problem, ConnectionError | EOFError) and not is_from_worker:
            # A worker died while it sent a batch, and PyTorch has not been told yet.
            what = f"DataLoader worker (pid unknown) exited unexpectedly: {reason(problem)}"
            raise RuntimeError(what) from None
        with plugins.wrap_plugin_errors(plugins.DATA, name, f"no {what}", file):
            raise


def derive_seed(*words: int) -> int:
    """A seed of 63 bits for a place, such as (seed, epoch, position)."""
    text = "/".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_all(seed: int) -> None:
    """Seed the three of them: 20 us."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


class SeparateRandomState:
    """Within, the three are somebody's who goes on where he left them; outside, they are as a model's dropout
    has them: 0.2 ms.
    """

    def __init__(self) -> None:
        self._inside: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        self._outside = _get_states()
        if self._inside is not None:
            _set_states(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _get_states()
        _set_states(self._outside)


def _get_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def read_batches(
    loader: Any, name: str, file: Path | None, epoch: int, *, seed: int | None = None, first: int = 0
) -> Iterator[Batch]:
    """The batches of a loader on the host, the first one called number `first` in messages.

    Of somebody's own loader (`seed`) all random choices of an epoch begin at (seed, epoch). Raises as `asked`
    does.
    """
    workers, apart = (
        getattr(loader, "num_workers", 0),
        SeparateRandomState() if seed is not None else nullcontext(),
    )
    batches: Any = None
    for number in count(first):
        with wrap_data_errors(name, f"batch {number} of epoch {epoch}", file, workers), apart:
            if batches is None:
                if seed is not None:
                    seed_all(mixed := derive_seed(seed, epoch))
                    _seed(loader, mixed, epoch)
                batches = start_iterator(loader)
            found: Any = next(batches, _END)
            batch = found if seed is None or found is _END else to_batch(found)
        if batch is _END:
            return
        yield batch


def _seed(loader: Any, seed: int, epoch: int) -> None:
    """Seed the generators that a DataLoader and its samplers have, and tell them the epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    for part in (*parts, getattr(loader, "dataset", None)):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(epoch)
