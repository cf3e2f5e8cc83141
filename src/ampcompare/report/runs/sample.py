"""The measurements of a group, one by one, under what each is paired by.

The unit differs. Of what the seed decides (accuracy), a seed that was run five times is one measurement, the
mean of the five: they share weights, order and augmentation. Of a machine at work (throughput, memory,
energy, time) every process is a measurement of its own, whatever its seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime

from ampcompare.records.tree import as_text
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.figures import OF_THE_SEED, TIMED, RunFigures
from ampcompare.report.statistics.samples import mean_of_seeds

NOT_ALONE = "it shared its machine with other runs"
Ignored = tuple[str, ...]  # a run's values of the settings that its group ignores


def seed_key(figures: RunFigures) -> Hashable:
    """What runs are paired by. A run without a recorded seed can be paired with none."""
    return ("no seed", figures.run.id) if figures.seed is None else as_text(figures.seed)


def started(figures: RunFigures) -> float:
    """Seconds since 1970 at which a run began, in UTC unless it says otherwise; infinity where that is not
    known.
    """
    began = figures.run.started_at
    if not isinstance(began, datetime):
        return math.inf
    return (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()


def per_process(
    runs: Sequence[RunFigures], ignored: Sequence[Ignored]
) -> list[tuple[tuple[Hashable, Ignored, int], RunFigures]]:
    """Each run under its seed, its values of the settings that are ignored, and its number among those of the
    same by starting time: the second run of a seed is paired with the second of the other side.
    """
    numbers: dict[tuple[Hashable, Ignored], int] = {}
    keyed = []
    order = sorted(range(len(runs)), key=lambda i: (started(runs[i]), runs[i].run.id))
    for i in order:
        alike = (seed_key(runs[i]), ignored[i])
        numbers[alike] = numbers.get(alike, 0) + 1
        keyed.append(((*alike, numbers[alike]), runs[i]))
    return keyed


def with_own_times(runs: Sequence[RunFigures], name: str) -> tuple[RunFigures, ...]:
    """Those of the runs whose measurements of an attribute are their own: of times and energy the runs that
    had their machine to themselves.
    """
    return tuple(run for run in runs if name not in TIMED or not run.shares_machine)


def sample(
    runs: Sequence[RunFigures], ignored: Sequence[Ignored], name: str, factor: float = 1.0
) -> dict[Hashable, float]:
    """One attribute of RunFigures, times `factor`, of the runs that have it: per seed, or per process.

    No failed run has an accuracy, or anything else that the seed decides.
    """
    keyed = [(*key, v) for key, run in per_process(runs, ignored) if (v := _value(run, name)) is not None]
    if name not in OF_THE_SEED:
        return {(seed, unlike, number): value * factor for seed, unlike, number, value in keyed}
    return mean_of_seeds(((seed, unlike), value * factor) for seed, unlike, _, value in keyed)


def lost(runs: Sequence[RunFigures], counted: Sequence[RunFigures], name: str) -> tuple[tuple[str, str], ...]:
    """Each run that a figure lacks, by its seed where that tells it, and why it does."""
    seeds = [seed_key(run) for run in runs]
    counts = {id(run) for run in counted}
    own = {id(run) for run in with_own_times(counted, name) if _value(run, name) is not None} or counts
    found = []
    for run, seed in zip(runs, seeds, strict=True):
        if id(run) not in counts:
            why = _why(run)
        elif _value(run, name) is None:
            why = _missing(run, name)
        elif id(run) not in own:
            why = NOT_ALONE
        else:
            continue
        is_one = run.seed is not None and seeds.count(seed) == 1
        found.append((f"seed {seed}" if is_one else f"run {run.run.name} ({run.run.id})", why))
    return tuple(found)


def _value(run: RunFigures, name: str) -> float | None:
    has_none = name in OF_THE_SEED and run.outcome is Outcome.FAILED
    found: float | None = None if has_none else getattr(run, name)
    return found


def _why(run: RunFigures) -> str:
    return f"{run.outcome.value}: {run.why}" if run.why else run.outcome.value


def _missing(run: RunFigures, name: str) -> str:
    if run.outcome is Outcome.FAILED:
        return _why(run)
    return "it did not reach the target" if name == "seconds_to_target" else "none is recorded"


def countable(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    """The runs whose figures count: those that finished. Where none did, those stopped or going on, as far as
    they came; where all failed, these, but for what a seed decides (`sample`). A refused run has no figures.
    """
    words = ((Outcome.FINISHED,), (Outcome.STOPPED, Outcome.RUNNING), (Outcome.FAILED,))
    by = ([r for r in runs if r.outcome in word and (r.rows or word == words[0])] for word in words)
    return tuple(next(filter(None, by), ()))
