"""The step as it really is here, to lay beside the forecast: its time in interleaved rounds, its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch
from ampcompare.machine.device import is_cuda, wait_for
from ampcompare.train.step import Trainer
from ampcompare.why.explain.setting import Shapes, real


@dataclass(frozen=True)
class Measured:
    """Seconds of a step in each round, backend by backend; the allocator's peak in bytes, if it has one."""

    rounds: tuple[tuple[float, ...], ...]
    peaks: tuple[int | None, ...]

    @property
    def medians(self) -> tuple[float, ...]:
        """The median round of each backend, in seconds."""
        return tuple(statistics.median(rounds) for rounds in self.rounds)


def measure(configs: Sequence[Config], shapes: Shapes, device: torch.device, rounds: int) -> Measured:
    """Run `rounds` steps of each setting in turn, after some that are not timed. The data are made up."""
    with ExitStack() as stack:
        parts, peaks = [], []
        for config in configs:
            others = _allocated(device)
            trainer, batches = real(config, shapes, device)
            stack.enter_context(trainer.precision.session())
            trainer.compute(batches)  # makes the optimizer's states
            peaks.append(_peak(trainer, batches, device, others))
            parts.append((trainer, batches))
        seconds: list[list[float]] = [[] for _ in parts]
        for _ in range(rounds):
            for known, (trainer, batches) in zip(seconds, parts, strict=True):
                wait_for(device)  # sync: the clock starts on an idle device
                began = time.perf_counter()
                trainer.compute(batches)
                wait_for(device)  # sync: the clock stops when the work is done
                known.append(time.perf_counter() - began)
    return Measured(tuple(map(tuple, seconds)), tuple(peaks))


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if is_cuda(device) else 0


def _peak(trainer: Trainer, batches: Sequence[Batch], device: torch.device, others: int) -> int | None:
    """The allocator's peak in a step, in bytes, without what was allocated before; None on a CPU, whose
    allocator counts none. A GPU must still confirm it.
    """
    if not is_cuda(device):
        trainer.compute(batches)
        return None
    wait_for(device)  # sync: what was queued before is none of the step's
    torch.cuda.reset_peak_memory_stats(device)
    trainer.compute(batches)
    wait_for(device)  # sync: the peak is known when the step is done
    return torch.cuda.max_memory_allocated(device) - others
