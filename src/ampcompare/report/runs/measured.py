"""What publications give of a run, taken from our records: times, throughput, peak memory, accuracies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from ampcompare import metrics
from ampcompare.report.runs.figures import LARGEST, OF_THE_SEED, RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.sample import per_process, with_own_times
from ampcompare.report.statistics.samples import mean_of_seeds


def measured(group: Group, what: str) -> dict[Hashable, float]:
    """The counted runs' measurements of what publications give (`published.publication.MEASURED`), in its
    unit: per process, accuracies per seed.
    """
    name, take = TAKEN[what]
    runs = with_own_times(group.counted, name)
    known = {id(run): values for run, values in zip(group.runs, group.ignored, strict=False)}
    keyed = [
        (key, value)
        for key, run in per_process(runs, [known.get(id(run), ()) for run in runs])
        if (value := take(run)) is not None
    ]
    if name in OF_THE_SEED:
        return mean_of_seeds((key[:2], value) for key, value in keyed)
    return dict(keyed)


def _final_accuracy(run: RunFigures) -> float | None:
    key = metrics.EVAL_ACCURACY
    value = run.quality if run.metric == key else run.run.summary_number(key)
    if value is None and run.metric != key and len(values := run.run.values(key)):
        value = float(values[-1])
    return None if value is None else 100 * value


def _in_all(run: RunFigures) -> float | None:
    """The wall clock at the last row, evaluations in it; None where the clock went backwards."""
    clock = run.run.values(metrics.ELAPSED)
    clock = clock[(clock >= 0) & (clock <= LARGEST)]
    return float(clock.max()) if len(clock) and not run.clock_jumps else None


def _per_epoch(run: RunFigures) -> float | None:
    if run.train_seconds is None or not run.epochs or run.epochs < 1:
        return None
    return run.train_seconds / run.epochs


# By what a publication measures: the attribute of RunFigures that it is of, and how it is had of a run.
TAKEN: Mapping[str, tuple[str, Callable[[RunFigures], float | None]]] = {
    "seconds": ("train_seconds", lambda run: run.train_seconds),
    "seconds_in_all": ("train_seconds", _in_all),
    "seconds_per_epoch": ("train_seconds", _per_epoch),
    "images_per_second": ("images_per_second", lambda run: run.images_per_second),
    "peak_memory": ("peak_mib", lambda run: run.peak_mib),
    "final_accuracy": ("quality", _final_accuracy),
    "best_accuracy": (
        "best_accuracy",
        lambda run: None if run.best_accuracy is None else 100 * run.best_accuracy,
    ),
}
