"""Other people's loaders, read: their random choices seeded, and what goes wrong in them in one line.

A data set draws its crops from the global generators of Python, NumPy and PyTorch (the CPU's), a DataLoader
its order. Seeded by where in the training they are asked, they give the same at the same place, in any
process.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampcompare import plugins
from ampcompare.data.batch import Batch, Unfit, as_batch
from ampcompare.data.workers import begin, loss_of_worker

END = object()


def mix(*words: int) -> int:
    """A seed of 63 bits for a place, such as (seed, epoch, position)."""
    text = "/".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_all(seed: int) -> None:
    """Seed the three of them: 20 us."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


class Randomness:
    """The generators as one part of the program has them: it draws inside `on`, the others outside, as a
    model's dropout does. Each `on` goes on where the last one ended; to enter and leave takes 0.4 ms.
    """

    def __init__(self, seed: int) -> None:
        self._states: tuple[Any, ...] = ()
        with self.on():
            seed_all(seed)

    @contextmanager
    def on(self) -> Iterator[None]:
        outside = _states()
        if self._states:
            _set_states(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set_states(outside)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def read(
    loader: Any, name: str, file: Path | None, epoch: int, *, seed: int | None = None, first: int = 0
) -> Iterator[Batch]:
    """The batches of a loader on the host, the first one called number `first` in messages.

    Of somebody's own loader (`seed`) the random choices are those of (seed, epoch): samplers and in-process
    loaders draw from the global generators while they are read. Raises UserError for whatever it raises, and
    for what is no batch; RuntimeError for the loss of a worker, which is no mistake in the data: it may come
    of a signal to the whole job, or of a want of memory.
    """
    randomness = Randomness(mix(seed or 0, epoch))
    draws_here = seed is not None or not loader.num_workers
    batches, number = None, first
    while True:
        try:
            with randomness.on() if draws_here else nullcontext():
                if batches is None:
                    if seed is not None:
                        _seed(loader, mix(seed, epoch), epoch)
                    batches = begin(loader)
                found = next(batches, END)
            if found is END:
                return
            batch: Any = found if seed is None else as_batch(found)
        except (Exception, SystemExit) as problem:
            if lost := loss_of_worker(problem, getattr(loader, "num_workers", 0)):
                raise lost from None
            what, words = f"batch {number} of epoch {epoch}", _words(problem, file)
            said = f"{what}: {words}" if isinstance(problem, Unfit) else f"no {what} ({words})"
            raise plugins.DATA.refusal(name, said) from None
        yield batch
        number += 1


def _seed(loader: Any, seed: int, epoch: int) -> None:
    """Seed the generators that a DataLoader and its samplers have, and tell them the epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    for part in (*parts, getattr(loader, "dataset", None)):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(epoch)


def _words(problem: BaseException, file: Path | None) -> str:
    """What happened, in a worker too: PyTorch puts the traceback from there in the message."""
    text = str(problem)
    if not (caught := re.match(r"Caught (\w+) in ", text)):
        return text if isinstance(problem, Unfit) else plugins.what_happened(problem, file)
    places = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', text)
    said = [line for line in text.splitlines() if re.match(rf"(\w+\.)*{caught[1]}\b", line)]
    what = said[-1][:300] if said else caught[1]
    if isinstance(problem, Unfit):
        return what.partition(": ")[2]
    return f"line {places[-1]}: {what}" if places else what
