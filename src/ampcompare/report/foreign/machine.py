"""Memory and energy from what W&B's client samples of a machine, where a program logged none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampcompare.records import RunRecord
from ampcompare.records.machine import STAMP

OF_PROCESS = re.compile(r"gpu\.process\.\d+\.memoryAllocatedBytes")
OF_CARD = re.compile(r"gpu\.\d+\.memoryAllocatedBytes")
RESIDENT = re.compile(r"proc\.memory\.rssMB")
POWER = re.compile(r"gpu\.process\.\d+\.powerWatts"), re.compile(r"gpu\.\d+\.powerWatts")
LEAST_BYTES = 64 * 2**20  # of a GPU's memory; what has less computes on the CPU
MIB = 2**20


@dataclass(frozen=True)
class Kind:
    """A kind of sample: its keys, what makes MiB of it, and what it is in words."""

    keys: re.Pattern[str]
    factor: float
    words: str
    least: float = 0.0


KINDS = (
    Kind(OF_PROCESS, 1 / MIB, "W&B's own samples of the process on its GPUs", LEAST_BYTES),
    Kind(OF_CARD, 1 / MIB, "W&B's own samples of the GPUs, whatever else ran there", LEAST_BYTES),
    Kind(RESIDENT, 1.0, "W&B's own samples of the process's resident memory"),
)


def sampled_memory(runs: Sequence[RunRecord]) -> tuple[Kind, list[float | None]] | None:
    """Peak memory of each run in MiB, of the best kind of sample that all runs with samples have."""
    every = [run.machine.samples for run in runs]
    known = [samples for samples in every if _has_any(samples)]
    for kind in KINDS:
        peaks = [_peak(samples, kind) for samples in every]
        if known and sum(peak is not None for peak in peaks) == len(known):
            return kind, peaks
    return None


def watts_of(run: RunRecord) -> float | None:
    """Mean power of a run's GPUs; None where it was not sampled."""
    samples = run.machine.samples
    for keys in POWER:
        if (total := _total(samples, keys)) is not None:
            mean = float(np.mean(total))
            return mean if 0 < mean < 1e6 else None
    return None


def _has_any(samples: Mapping[str, np.ndarray]) -> bool:
    return any(kind.keys.fullmatch(key) for key in samples for kind in KINDS)


def _peak(samples: Mapping[str, np.ndarray], kind: Kind) -> float | None:
    total = _total(samples, kind.keys)
    if total is None or not kind.least <= total.max() < 1e18:
        return None
    return float(total.max()) * kind.factor


def _total(samples: Mapping[str, np.ndarray], keys: re.Pattern[str]) -> np.ndarray | None:
    """The sum over GPUs, sample by sample; None without one. W&B writes a sample of all GPUs at once."""
    columns = [samples[key] for key in samples if key != STAMP and keys.fullmatch(key)]
    columns = [c for c in columns if np.isfinite(c).any()]
    if not columns:
        return None
    every = np.stack(columns)
    every = every[:, np.isfinite(every).any(axis=0)]
    return np.nansum(every, axis=0)
