"""What happened to the numbers: the loss scale, underflow, lost updates, activations; a sentence each."""

from collections.abc import Callable, Sequence

import numpy as np

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.report import numbers, words
from ampcompare.report.runs.figures import SKIPPED, STEPS
from ampcompare.report.runs.groups import Group

LARGEST_FP16 = 65504.0
WORTH_SAYING = 0.005  # of all elements
NEAR = 16  # of what fp16 can hold, the part from which on an activation is worth a sentence
MOST_NAMED = 4


def sentences(groups: Sequence[Group]) -> dict[str, str]:
    """By phenomenon what it means here, where something happened; under "" what is said of none."""
    told = {}
    for name, (what, of_group, why) in PHENOMENA.items():
        parts = words.by_reason([(g.label, said) for g in groups if (said := of_group(g))], MOST_NAMED)
        if parts:
            told[name] = f"{what}: {'; '.join(f'{labels} {said}' for labels, said in parts)}{why}"
    if told:
        return told
    looked = any(metrics.UNDERFLOW in run.logged for group in groups for run in group.records)
    extra = "no gradient underflowed" if looked else "gradients were not looked at (diagnostics.every)"
    is_known = any(group.rows[SKIPPED].notna().any() for group in groups)
    return {"": f"No step was skipped, and {extra}." if is_known else f"{words.capital(extra)}."}


def _skipped(group: Group) -> str:
    skipped, steps = group.rows[SKIPPED].max(), group.rows[STEPS].max()
    share = f" of {numbers.count(steps)}" if steps == steps else ""
    return f"{numbers.count(float(skipped))}{share}" if skipped > 0 else ""


def _most(group: Group, key: str) -> float:
    values = np.concatenate([np.empty(0), *(run.values(key) for run in group.records)])
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _underflow(group: Group) -> str:
    with_scale, without = _most(group, metrics.UNDERFLOW), _most(group, metrics.UNDERFLOW_UNSCALED)
    bare = f" ({numbers.of_all(without)} without the loss scale)" if without > with_scale else ""
    return f"{numbers.of_all(with_scale)}{bare}" if max(with_scale, without) >= WORTH_SAYING else ""


def _updates(group: Group) -> str:
    ends = [found for run in group.records if (found := _at_peak_and_end(run))]
    if not ends or not _most(group, metrics.LOST_UPDATES):
        return ""
    peak, end = (numbers.of_all(float(share)) for share in np.mean(ends, axis=0))
    return f"{peak} at the peak of the learning rate, {end} at the end"


def _at_peak_and_end(run: RunRecord) -> tuple[float, float] | None:
    """The share of lost updates nearest to the highest learning rate, and at the end."""
    lost, rate = run.numbers(metrics.LOST_UPDATES), run.numbers(metrics.LEARNING_RATE)
    rows = np.flatnonzero(np.isfinite(lost))
    if not len(rows):
        return None
    peak = int(np.nanargmax(rate)) if np.isfinite(rate).any() else int(rows[0])
    return float(lost[rows[np.abs(rows - peak).argmin()]]), float(lost[rows[-1]])


def _activations(group: Group) -> str:
    largest = _most(group, metrics.ACTIVATION_LARGEST)
    return numbers.number(largest) if largest >= LARGEST_FP16 / NEAR else ""


# What is said of each, of which groups, and what it means.
PHENOMENA: dict[str, tuple[str, Callable[[Group], str], str]] = {
    "scale": (
        "Skipped steps, at most in one run",
        _skipped,
        ". A step whose gradients overflow is left out and the loss scale halved: that is how a dynamic "
        "scale finds its height.",
    ),
    "underflow": (
        "Gradient elements flushed to zero, at most",
        _underflow,
        ". What is flushed moves no weight.",
    ),
    "updates": (
        "Updates lost to rounding",
        _updates,
        ". Adding a small update to a half-precision weight rounds back to the weight; stochastic rounding "
        "keeps it in the mean.",
    ),
    "activations": ("Largest activations", _activations, "; fp16 ends at 65,504."),
}
