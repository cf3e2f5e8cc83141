"""Find runs that shared their machine: two runs at once on one card, or on one CPU, slow each other down.

Each record has hashes of its GPUs, or of its host if no GPU computes, and the time of each row. The next run
of a sweep starts while the last one finishes, so short overlaps at the ends do not matter. What counts is the
fraction of a run's time in which other runs were active, too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.runs import RunRecord

MAX_TIMESTAMP = 1e11  # seconds since 1970; larger values are no timestamps
PAUSE = 5.0  # a larger jump of the wall clock means that the run was interrupted and resumed
# Keys of `environment.machine` that identify the device of a run: the host for a CPU. The host does not
# identify a GPU, because it may have several.
TELLING = {"cpu": ("host",), "cuda": ("gpu", "gpu_uuid")}


def measure_contention(
    runs: Sequence[RunRecord], kinds: Iterable[str], starts: Iterable[float]
) -> tuple[list[float], list[frozenset[str]]]:
    """Return the fraction of each run's time in which other runs used one of its cards, and its cards.

    Args:
        kinds: Their device types.
        starts: Their start times in seconds since 1970.

    Returns:
        The fractions, NaN if machine or times are unknown; and the cards.
    """
    cards = [_cards_of(run, kind) for run, kind in zip(runs, kinds, strict=True)]
    spans = [_spans(run, start) for run, start in zip(runs, starts, strict=True)]
    on_card: dict[str, dict[str, np.ndarray]] = {}  # by card, then by run id
    for run, own_cards, own_spans in zip(runs, cards, spans, strict=True):
        for card in own_cards:
            on_card.setdefault(card, {})[run.id] = own_spans
    shared_time = {card: _crowd(np.concatenate([*by_run.values()])) for card, by_run in on_card.items()}
    fractions = []
    for own_cards, own_spans in zip(cards, spans, strict=True):
        duration = float(np.diff(own_spans).sum())
        shared = [float(np.diff(np.interp(own_spans, *shared_time[card])).sum()) for card in own_cards]
        fractions.append(max(shared) / duration if shared and duration > 0 else math.nan)
    return fractions, cards


def _cards_of(run: RunRecord, kind: str) -> frozenset[str]:
    """Return hashes of the devices of all processes of a run; empty if none is recorded.

    They are GPUs, or hosts if no GPU computes.
    """
    machine = run.environment.get("machine")
    keys = TELLING.get(kind, ("gpu", "gpu_uuid", "host"))
    entries = [entry for entry in (machine, *_listed(machine, "others")) if isinstance(entry, Mapping)]
    names = [next((entry[key] for key in keys if isinstance(entry.get(key), str)), "") for entry in entries]
    return frozenset(filter(None, names))


def _listed(machine: Any, key: str) -> list[Any]:
    several = machine.get(key) if isinstance(machine, Mapping) else None
    return several if isinstance(several, list) else []


def _spans(run: RunRecord, start: float) -> np.ndarray:
    """Return when a run was active, as (begin, end) of each row in seconds since 1970.

    Times come from the timestamps of the rows, or else from the start of the run and its own clock. If a run
    continued on another machine, only its time there is returned.

    Returns:
        Array of shape (rows, 2).
    """
    clock = run.numbers(metrics.ELAPSED)
    ends = run.numbers("_timestamp")
    has_clock = np.abs(clock) < MAX_TIMESTAMP
    is_known = has_clock & (ends > 0) & (ends < MAX_TIMESTAMP)
    if not is_known.any():
        # The start of a run in several parts is not that of its clock.
        ends = clock + (start if len(run.paths) < 2 else np.nan)
        is_known = has_clock & np.isfinite(ends)
    if not is_known.any():
        return np.empty((0, 2))
    clock = np.maximum.accumulate(clock[is_known])
    ends = np.maximum.accumulate(ends[is_known])
    begins = ends - np.diff(clock, prepend=min(0.0, clock[0]))
    is_resumed = np.append(False, begins[1:] > ends[:-1] + PAUSE)
    begins[1:] = np.where(is_resumed[1:], begins[1:], ends[:-1])
    spans = np.stack([begins, ends], axis=1)
    began_elsewhere = bool(_listed(run.environment.get("machine"), "earlier"))
    if began_elsewhere and is_resumed.any():
        last_resumed = np.flatnonzero(is_resumed)[-1]
        return spans[last_resumed:]
    return spans


def _crowd(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments, and for each the seconds up to it in which two or more runs were active."""
    moments = spans.T.ravel()
    order = np.argsort(moments, kind="stable")
    active = np.cumsum(np.repeat([1, -1], len(spans))[order])
    shared = np.where(active[:-1] > 1, np.diff(moments[order]), 0.0)
    return moments[order], np.append(0.0, np.cumsum(shared))
