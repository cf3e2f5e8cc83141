"""Random choices of other people's data code: the global generators of Python, NumPy and PyTorch, seeded.

A data set draws its crops from them, a DataLoader its order. Seeded by where in the training they are asked,
they give the same at the same place, in any process. PyTorch's are those of the CPU.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def mix(*words: int) -> int:
    """A seed of 63 bits for a place, such as (seed, epoch, position)."""
    text = "/".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_all(seed: int) -> None:
    """Seed the three of them: 20 us."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, ...]) -> None:
    python, numpy, ours = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(ours)


@contextmanager
def apart() -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves the generators as they were: a model's dropout has them."""
    before = _states()
    try:
        yield
    finally:
        _set_states(before)


class Randomness:
    """The generators as one part of the program has them: it draws inside `on`, the others outside."""

    def __init__(self, seed: int) -> None:
        with apart():
            seed_all(seed)
            self._own = _states()

    @contextmanager
    def on(self) -> Iterator[None]:
        with apart():
            _set_states(self._own)
            try:
                yield
            finally:
                self._own = _states()
