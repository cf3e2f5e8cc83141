"""Which runs had their machine to themselves: two at once on one card, or one CPU, slow each other down.

Known from what each record says of its machine (hashes of GPUs, of hosts where no GPU computes) and from
when its rows were logged. A sweep's next run starts while the last one finishes, so that moments at the ends
are no matter: what counts is the share of a run's training in which others trained too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.records.tree import as_text
from ampcompare.report.runs.table import DEVICE_TYPE, OVERLAP, RUN, STARTED, environment_of

MOST = 1e11  # seconds since 1970; what is beyond is no moment
PAUSE = 5.0  # seconds by which the wall clock goes ahead of the run's own where it was stopped and went on
TOUCH = 1.0  # seconds between two log intervals that are still one stretch
LEAST = 1e-6  # seconds that a log interval takes
Spans = np.ndarray  # (begin, end, training seconds) a row of the run, in seconds since 1970
Crowd = tuple[np.ndarray, np.ndarray]  # moments, the seconds up to each in which several runs went on


def with_overlap(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of runs with the share of each one's training in which others of the set had one of its cards
    too. NaN where machine or times are not known.
    """
    placed = [_placed(row) for _, row in rows.iterrows()]
    busy: dict[str, dict[str, list[Spans]]] = {}  # by card, then by run: one that is there twice is one
    for run, parts in zip(rows[RUN], placed, strict=True):
        for cards, spans in parts:
            for card in cards:
                busy.setdefault(card, {}).setdefault(run.id, []).append(spans)
    crowds = {
        card: _crowd([_stretches(np.concatenate(spans)) for spans in runs.values()])
        for card, runs in busy.items()
    }
    return rows.assign(**{OVERLAP: [_share(parts, crowds) for parts in placed]})


def _placed(row: pd.Series) -> list[tuple[frozenset[str], Spans]]:
    """The log intervals of a run with the cards that it had during them.

    Of a run that went on elsewhere it is known which part was where if it has two; else the last one alone.
    """
    now, before = now_of(row), before_of(row)
    spans = _spans(row) if now else None
    if spans is None:
        return []
    if not before:
        return [(now, spans)]
    pauses = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > PAUSE) + 1
    if not len(pauses):
        return []
    found = [(now, spans[pauses[-1] :])]
    return [(before[0], spans[: pauses[0]]), *found] if len(before) == len(pauses) == 1 else found


def _spans(row: pd.Series) -> Spans | None:
    """When each log interval of a run began and ended, and how much of it was training; None if not known.

    A row is stamped when it is written, some time after its interval: the run's own clock has the lengths,
    and the least difference between the two, of this row and all later ones, where they lie. It rises where
    a run was stopped and went on.
    """
    run = row[RUN]
    clock, stamps = run.numbers(metrics.ELAPSED), run.numbers("_timestamp")
    known = np.isfinite(clock) & (np.abs(clock) < MOST)
    stamped = known & (stamps > 0) & (stamps < MOST)
    if stamped.any():
        known = stamped
        clock = np.maximum.accumulate(clock[known])
        ahead = np.minimum.accumulate((stamps[known] - clock)[::-1])[::-1]
    elif known.any() and np.isfinite(began := row[STARTED]) and len(run.paths) < 2:
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
    if ends[0] >= (began := row[STARTED]):  # of a record without its beginning the clock says too much
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


def _share(parts: Sequence[tuple[frozenset[str], Spans]], crowds: Mapping[str, Crowd]) -> float:
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
    return together / trained if trained > 0 else np.nan


# Keys of `environment.machine`: the GPU tells more than the host it is in; a CPU is told by the host alone.
TELLING = ("gpu", "gpu_uuid", "host")
OTHERS, EARLIER = "others", "earlier"  # of a run on several processes, or one that went on elsewhere


def now_of(row: pd.Series) -> frozenset[str]:
    """What a run computed on in the end, without the cards of parts of it that ran elsewhere before: GPUs, or
    the hosts of CPUs. Empty for a GPU that is not named: its host may have others.
    """
    return _computing(row, environment_of(row[RUN]).get("machine"))


def before_of(row: pd.Series) -> list[frozenset[str]]:
    """What earlier parts of a run computed on that ran elsewhere, one after the other."""
    machine = environment_of(row[RUN]).get("machine")
    several = machine.get(EARLIER) if isinstance(machine, Mapping) else None
    return [_computing(row, one) for one in _listed(several)]


def _computing(row: pd.Series, machine: Any) -> frozenset[str]:
    telling = {"cpu": TELLING[-1:], "cuda": TELLING[:-1]}.get(row[DEVICE_TYPE], TELLING)
    return frozenset(_named(machine, (OTHERS,), telling))


def cards_of(row: pd.Series) -> frozenset[str]:
    """What a run computed on: hashes of GPUs, of hosts where no GPU is named; empty if none is recorded."""
    environment = environment_of(row[RUN])
    return frozenset(_named(environment.get("machine"))) or frozenset(_named(environment))


def cards(rows: pd.DataFrame) -> frozenset[str] | None:
    """All cards of the runs; None where one does not tell its own."""
    each = [cards_of(row) for _, row in rows.iterrows()]
    return frozenset().union(*each) if each and all(each) else None


def _named(
    holder: Any, also: Sequence[str] = (OTHERS, EARLIER), telling: Sequence[str] = TELLING
) -> Iterator[str]:
    if not isinstance(holder, Mapping):
        return
    for key in telling:
        if isinstance(said := holder.get(key), str) and said:
            yield as_text(said)
            break
    for key in also:
        for one in _listed(holder.get(key)):
            inner = () if key == OTHERS else (OTHERS,)  # a part that ran elsewhere may have been several too
            yield from _named(one, inner, telling)


def _listed(several: Any) -> Sequence[Any]:
    return several if isinstance(several, list | tuple) else ()
