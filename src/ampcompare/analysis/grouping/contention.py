"""Which runs had their machine to themselves: two at once on one card, or one CPU, slow each other down.

Known from what each record says of its machine (hashes of GPUs, of hosts where no GPU computes) and from
when its rows were logged. A sweep's next run starts while the last one finishes, so that moments at the ends
are no matter: what counts is the share of a run's time in which others went on too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text

MAX_TIMESTAMP = 1e11  # seconds since 1970; what is beyond is no moment
PAUSE = 5.0  # seconds by which the wall clock goes ahead of the run's own where it was stopped and went on
# Keys of `environment.machine` that tell what a run of this device computed on: a CPU by its host, a GPU not
# by it, as the host may have others.
TELLING = {"cpu": ("host",), "cuda": ("gpu", "gpu_uuid")}


def measure_contention(
    runs: Sequence[RunRecord], kinds: Iterable[str], starts: Iterable[float]
) -> tuple[list[float], list[frozenset[str]]]:
    """The share of each run's time in which others of the set had one of its cards too, NaN where machine or
    times are not known; and its cards. `kinds` are the types of their devices, `starts` seconds since 1970.
    """
    cards = [_cards_of(run, kind) for run, kind in zip(runs, kinds, strict=True)]
    spans = [_spans(run, start) for run, start in zip(runs, starts, strict=True)]
    on_card: dict[str, dict[str, np.ndarray]] = {}  # by card, then by run: one that is there twice is one
    for run, own, when in zip(runs, cards, spans, strict=True):
        for card in own:
            on_card.setdefault(card, {})[run.id] = when
    crowds = {card: _crowd(np.concatenate([*those.values()])) for card, those in on_card.items()}
    shares = []
    for own, when in zip(cards, spans, strict=True):
        lasted = float((when[:, 1] - when[:, 0]).sum())
        crowded = [float(np.diff(np.interp(when, *crowds[card])).sum()) for card in own if lasted > 0]
        shares.append(max(crowded) / lasted if crowded else np.nan)
    return shares, cards


def _cards_of(run: RunRecord, kind: str) -> frozenset[str]:
    """What a run, all its processes, computed on in the end: hashes of GPUs, of hosts where no GPU computes;
    empty if none is recorded.
    """
    machine = run.environment.get("machine")
    telling = TELLING.get(kind, ("gpu", "gpu_uuid", "host"))
    every = [one for one in (machine, *_listed(machine, "others")) if isinstance(one, Mapping)]
    told = (next((one[key] for key in telling if isinstance(one.get(key), str)), "") for one in every)
    return frozenset(as_text(name) for name in told if name)


def _listed(machine: Any, key: str) -> list[Any]:
    several = machine.get(key) if isinstance(machine, Mapping) else None
    return several if isinstance(several, list) else []


def _spans(run: RunRecord, start: float) -> np.ndarray:
    """When a run was at work, (begin, end) of each row in seconds since 1970, by their stamps, else by its
    start and its own clock; of one that went on elsewhere, when it was there.
    """
    clock, ends = run.numbers(metrics.ELAPSED), run.numbers("_timestamp")
    if not (known := (np.abs(clock) < MAX_TIMESTAMP) & (ends > 0) & (ends < MAX_TIMESTAMP)).any():
        ends = clock + (start if len(run.paths) < 2 else np.nan)
        known = (np.abs(clock) < MAX_TIMESTAMP) & np.isfinite(ends)
    if not known.any():
        return np.empty((0, 2))
    clock, ends = np.maximum.accumulate(clock[known]), np.maximum.accumulate(ends[known])
    begins = ends - np.diff(clock, prepend=min(0.0, clock[0]))
    went_on = np.append(False, begins[1:] > ends[:-1] + PAUSE)
    begins[1:] = np.where(went_on[1:], begins[1:], ends[:-1])
    is_elsewhere = went_on.any() and _listed(run.environment.get("machine"), "earlier")
    return np.stack([begins, ends], axis=1)[np.flatnonzero(went_on)[-1] if is_elsewhere else 0 :]


def _crowd(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments, and for each the seconds up to it in which two runs or more went on at once."""
    moments = spans.T.ravel()
    order = np.argsort(moments, kind="stable")
    at_once = np.cumsum(np.repeat([1, -1], len(spans))[order])
    together = np.where(at_once[:-1] > 1, np.diff(moments[order]), 0.0)
    return moments[order], np.append(0.0, np.cumsum(together))
