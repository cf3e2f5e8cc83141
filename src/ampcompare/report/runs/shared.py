"""Which runs had their machine to themselves: two at once on one card, or one CPU, slow each other down.

Known from what each record says of its machine (hashes of GPUs, of hosts where no GPU computes) and from
when its rows were logged. A sweep's next run starts while the last one finishes, so that moments at the ends
are no matter: what counts is the share of a run's time in which others went on too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.records.tree import as_text
from ampcompare.report.runs.table import CARDS, DEVICE_TYPE, OVERLAP, RUN, STARTED, environment_of

MOST = 1e11  # seconds since 1970; what is beyond is no moment
PAUSE = 5.0  # seconds by which the wall clock goes ahead of the run's own where it was stopped and went on
Spans = np.ndarray  # (begin, end) of each stretch of a run without a pause, in seconds since 1970

# Keys of `environment.machine`: the GPU tells more than the host it is in; a CPU is told by the host alone.
TELLING = ("gpu", "gpu_uuid", "host")
OTHERS, EARLIER = "others", "earlier"  # of a run on several processes, or one that went on elsewhere


def with_overlap(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of runs with their cards, and with the share of each one's time in which others of the set
    had one of its cards too. NaN where machine or times are not known.
    """
    placed = [(_cards_of(row, at_end=True), _spans(row)) for _, row in rows.iterrows()]
    busy: dict[str, dict[str, Spans]] = {}  # by card, then by run: one that is there twice is one
    for run, (cards, spans) in zip(rows[RUN], placed, strict=True):
        for card in cards if len(spans) else ():
            busy.setdefault(card, {})[run.id] = spans
    crowds = {card: _crowd(np.concatenate(list(runs.values()))) for card, runs in busy.items()}
    shares = []
    for cards, spans in placed:
        together = [_within(spans, *crowds[card]) for card in cards if len(spans)]
        shares.append(max(together, default=np.nan))
    return rows.assign(**{OVERLAP: shares, CARDS: [_cards_of(row) for _, row in rows.iterrows()]})


def _cards_of(row: pd.Series, *, at_end: bool = False) -> frozenset[str]:
    """What a run computed on: hashes of GPUs, of hosts where no GPU is named; empty if none is recorded.

    `at_end`: without the cards of parts of it that ran elsewhere before; empty for a GPU that is not named,
    as its host may have others.
    """
    machine = environment_of(row[RUN]).get("machine")
    parts = [machine, *(() if at_end else _listed(machine, EARLIER))]
    telling = {"cpu": TELLING[-1:], "cuda": TELLING[:-1]}.get(row[DEVICE_TYPE], TELLING)
    every = [one for part in parts for one in (part, *_listed(part, OTHERS)) if isinstance(one, Mapping)]
    names = [[one.get(key) for key in (telling if at_end else TELLING)] for one in every]
    told = (next((name for name in keys if isinstance(name, str) and name), "") for keys in names)
    return frozenset(as_text(name) for name in told if name)


def cards_of(rows: pd.DataFrame) -> frozenset[str]:
    """All cards of the runs; none where one does not tell its own."""
    return frozenset().union(*rows[CARDS]) if len(rows) and all(rows[CARDS]) else frozenset()


def _listed(machine: Any, key: str) -> Sequence[Any]:
    several = machine.get(key) if isinstance(machine, Mapping) else None
    return several if isinstance(several, list | tuple) else ()


def _spans(row: pd.Series) -> Spans:
    """When a run was at work, by the moments of its rows: their stamps, else its start and its own clock."""
    run = row[RUN]
    clock, ends = run.numbers(metrics.ELAPSED), run.numbers("_timestamp")
    if not (known := np.isfinite(clock) & (np.abs(clock) < MOST) & (ends > 0) & (ends < MOST)).any():
        ends = clock + (row[STARTED] if len(run.paths) < 2 else np.nan)
        known = np.isfinite(ends) & (np.abs(clock) < MOST)
    if not known.any():
        return np.empty((0, 2))
    clock, ends = np.maximum.accumulate(clock[known]), np.maximum.accumulate(ends[known])
    begins = ends - np.diff(clock, prepend=min(0.0, clock[0]))
    first = np.append(True, begins[1:] > ends[:-1] + PAUSE)
    spans = np.stack([begins[first], ends[np.append(first[1:], True)]], axis=1)
    went_on_elsewhere = bool(_listed(environment_of(run).get("machine"), EARLIER))
    return spans[-1:] if went_on_elsewhere else spans


def _crowd(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Moments, and for each the seconds up to it in which two runs or more went on at once."""
    moments = spans.T.ravel()
    order = np.argsort(moments, kind="stable")
    at_once = np.cumsum(np.repeat([1, -1], len(spans))[order])
    together = np.where(at_once[:-1] > 1, np.diff(moments[order]), 0.0)
    return moments[order], np.append(0.0, np.cumsum(together))


def _within(spans: Spans, moments: np.ndarray, crowded: np.ndarray) -> float:
    """The share of a run's seconds that was crowded."""
    lasted = float((spans[:, 1] - spans[:, 0]).sum())
    ends = np.interp(spans, moments, crowded)
    return float((ends[:, 1] - ends[:, 0]).sum()) / lasted if lasted > 0 else np.nan
