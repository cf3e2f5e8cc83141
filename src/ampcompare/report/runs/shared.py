"""Which runs had their machine to themselves: two at once on one card, or one CPU, slow each other down.

Known from what each record says of its machine (hashes of GPUs, of hosts where no GPU computes) and from
when its rows were logged. A sweep's next run starts while the last one finishes, so that moments at the ends
are no matter: what counts is the share of a run's training in which others trained too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.report.runs.cards import before_of, now_of
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.sample import started

MOST = 1e11  # seconds since 1970; what is beyond is no moment
PAUSE = 5.0  # seconds by which the wall clock goes ahead of the run's own where it was stopped and went on
TOUCH = 1.0  # seconds between two log intervals that are still one stretch
LEAST = 1e-6  # seconds that a log interval takes
Spans = np.ndarray  # (begin, end, training seconds) a row of the run, in seconds since 1970
Crowd = tuple[np.ndarray, np.ndarray]  # moments, the seconds up to each in which several runs went on


def with_overlap(figures: Sequence[RunFigures]) -> list[RunFigures]:
    """The runs' figures with their `overlap`: the share of their training in which other runs of the set had
    one of their cards too. None where machine or times are not known.
    """
    placed = [_placed(f) for f in figures]
    busy: dict[str, dict[str, list[Spans]]] = {}  # by card, then by run: one that is there twice is one
    for f, parts in zip(figures, placed, strict=True):
        for cards, spans in parts:
            for card in cards:
                busy.setdefault(card, {}).setdefault(f.run.id, []).append(spans)
    crowds = {
        card: _crowd([_stretches(np.concatenate(spans)) for spans in runs.values()])
        for card, runs in busy.items()
    }
    return [replace(f, overlap=_share(parts, crowds)) for f, parts in zip(figures, placed, strict=True)]


def _placed(figures: RunFigures) -> list[tuple[frozenset[str], Spans]]:
    """The log intervals of a run with the cards that it had during them.

    Of a run that went on elsewhere it is known which part was where if it has two; else the last one alone.
    """
    now, before = now_of(figures), before_of(figures)
    spans = _spans(figures) if now else None
    if spans is None:
        return []
    if not before:
        return [(now, spans)]
    pauses = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > PAUSE) + 1
    if not len(pauses):
        return []
    found = [(now, spans[pauses[-1] :])]
    return [(before[0], spans[: pauses[0]]), *found] if len(before) == len(pauses) == 1 else found


def _spans(figures: RunFigures) -> Spans | None:
    """When each log interval of a run began and ended, and how much of it was training; None if not known.

    A row is stamped when it is written, some time after its interval: the run's own clock has the lengths,
    and the least difference between the two, of this row and all later ones, where they lie. It rises where
    a run was stopped and went on.
    """
    run = figures.run
    clock, stamps = run.numbers(metrics.ELAPSED), run.numbers("_timestamp")
    known = np.isfinite(clock) & (np.abs(clock) < MOST)
    stamped = known & (stamps > 0) & (stamps < MOST)
    if stamped.any():
        known = stamped
        clock = np.maximum.accumulate(clock[known])
        ahead = np.minimum.accumulate((stamps[known] - clock)[::-1])[::-1]
    elif known.any() and np.isfinite(began := started(figures)) and len(run.paths) < 2:
        clock = np.maximum.accumulate(clock[known])
        ahead = np.full(len(clock), began)
    else:
        return None
    lengths = np.diff(clock, prepend=min(0.0, clock[0]))
    if not lengths.sum() > 0:
        return None
    trained = run.numbers(metrics.TRAIN_SECONDS)[known]
    trained = np.where(np.isfinite(trained) & (np.abs(trained) < MOST), trained, 0.0)
    weights = np.diff(np.maximum.accumulate(trained), prepend=0.0).clip(0.0)
    ends = clock + ahead
    if ends[0] >= (began := started(figures)):  # of a record without its beginning the clock says too much
        lengths[0] = min(lengths[0], ends[0] - began)
    return np.stack([ends - lengths, ends, weights if weights.sum() > 0 else lengths], axis=1)


def _stretches(spans: Spans) -> np.ndarray:
    """The intervals of one run as stretches (begin, end) without gaps, none over another."""
    spans = spans[np.argsort(spans[:, 0])]
    ends = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > ends[:-1] + TOUCH)
    last = np.append(first[1:], True)
    return np.stack([spans[first, 0], ends[last]], axis=1)


def _crowd(runs: Sequence[np.ndarray]) -> Crowd:
    """Moments, and for each the seconds up to it in which two runs or more went on at once."""
    every = np.concatenate(list(runs))
    moments = np.concatenate([every[:, 0], every[:, 1]])
    order = np.argsort(moments, kind="stable")
    at_once = np.cumsum(np.repeat([1, -1], len(every))[order])
    moments = moments[order]
    together = np.where(at_once[:-1] > 1, np.diff(moments), 0.0)
    return moments, np.append(0.0, np.cumsum(together))


def _share(parts: Sequence[tuple[frozenset[str], Spans]], crowds: Mapping[str, Crowd]) -> float | None:
    """The share of a run's training in which others went on, each log interval by its part; of several cards
    that it had at once the one that had most.
    """
    together = trained = 0.0
    for cards, spans in parts:
        begins, ends, weights = spans.T
        lengths = np.maximum(ends - begins, LEAST)
        seconds = np.zeros(len(spans))
        for moments, crowded in (crowds[card] for card in cards):
            others = np.interp(ends, moments, crowded) - np.interp(begins, moments, crowded)
            seconds = np.maximum(seconds, others)
        together += float((np.minimum(1.0, seconds / lengths) * weights).sum())
        trained += float(weights.sum())
    return together / trained if trained > 0 else None


def shared_words(groups: Mapping[str, Sequence[RunFigures]]) -> list[str]:
    """`none: 3 of 5 runs` for each group of which runs shared their machine."""
    counts = {label: (sum(f.shares_machine for f in runs), len(runs)) for label, runs in groups.items()}
    return [f"{label}: {k} of {n} run{'' if n == 1 else 's'}" for label, (k, n) in counts.items() if k]
