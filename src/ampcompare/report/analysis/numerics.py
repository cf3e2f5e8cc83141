"""What happened to the numbers: the loss scale, underflow, lost updates, activations; a sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.report import words
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.table import SKIPPED, STEPS

SCALE, UNDERFLOW, UPDATES, ACTIVATIONS = "scale", "underflow", "updates", "activations"
LARGEST_FP16 = 65504.0
WORTH_SAYING = 0.005  # of all elements
NEAR = 16  # of what fp16 can hold, the part from which on an activation is worth a sentence
MOST_NAMED = 4


def sentences(groups: Sequence[Group]) -> dict[str, str]:
    """By phenomenon what it means here, where something happened; under "" what is said of none."""
    found = {
        SCALE: _scale(groups),
        UNDERFLOW: _underflow(groups),
        UPDATES: _updates(groups),
        ACTIVATIONS: _activations(groups),
    }
    told = {name: text for name, text in found.items() if text}
    if told:
        return told
    looked = any(metrics.UNDERFLOW in run.logged for group in groups for run in group.records)
    extra = "no gradient underflowed" if looked else "gradients were not looked at (diagnostics.every)"
    known = [n for group in groups for n in group.rows[SKIPPED] if n == n]
    return {"": f"No step was skipped, and {extra}." if known else f"{words.capital(extra)}."}


def _scale(groups: Sequence[Group]) -> str:
    skipping = []
    for group in groups:
        skipped, steps = group.rows[SKIPPED].max(), group.rows[STEPS].max()
        if skipped > 0:
            share = f" of {words.count(steps)}" if steps == steps else ""
            skipping.append(f"{group.label} {words.count(float(skipped))}{share}")
    why = (
        ". A step whose gradients overflow is left out and the loss scale halved: that is how a dynamic "
        "scale finds its height."
    )
    return _told("Skipped steps, at most in one run", skipping, why)


def _told(what: str, parts: Sequence[str], why: str) -> str:
    """A sentence on those of whom there is something to say; nothing where that is nobody."""
    return f"{what}: {words.some(parts, MOST_NAMED)}{why}" if parts else ""


def _most(group: Group, key: str) -> float:
    values = [float(v) for run in group.records for v in run.values(key) if math.isfinite(v)]
    return max(values, default=0.0)


def _underflow(groups: Sequence[Group]) -> str:
    parts = []
    for group in groups:
        with_scale, without = _most(group, metrics.UNDERFLOW), _most(group, metrics.UNDERFLOW_UNSCALED)
        if max(with_scale, without) >= WORTH_SAYING:
            bare = f" ({words.of_all(without)} without the loss scale)" if without > with_scale else ""
            parts.append(f"{group.label} {words.of_all(with_scale)}{bare}")
    what = "Gradient elements flushed to zero, at most"
    return _told(what, parts, ". What is flushed moves no weight.")


def _updates(groups: Sequence[Group]) -> str:
    parts = []
    for group in groups:
        ends = [found for run in group.records if (found := _at_peak_and_end(run))]
        if ends and _most(group, metrics.LOST_UPDATES) > 0:
            peak, end = (words.of_all(float(np.mean([pair[i] for pair in ends]))) for i in (0, 1))
            parts.append((group.label, f"{peak} at the peak of the learning rate, {end} at the end"))
    each = "; ".join(f"{names} {shares}" for names, shares in words.by_reason(parts, MOST_NAMED))
    why = (
        ". Adding a small update to a half-precision weight rounds back to the weight; stochastic rounding "
        "keeps it in the mean."
    )
    return _told("Updates lost to rounding", [each] if each else [], why)


def _at_peak_and_end(run: RunRecord) -> tuple[float, float] | None:
    """The share of lost updates nearest to the highest learning rate, and at the end."""
    lost, rate = run.numbers(metrics.LOST_UPDATES), run.numbers(metrics.LEARNING_RATE)
    rows = np.flatnonzero(np.isfinite(lost))
    if not len(rows):
        return None
    peak = int(np.nanargmax(rate)) if np.isfinite(rate).any() else int(rows[0])
    nearest = rows[np.abs(rows - peak).argmin()]
    return float(lost[nearest]), float(lost[rows[-1]])


def _activations(groups: Sequence[Group]) -> str:
    found = {group.label: _most(group, metrics.ACTIVATION_LARGEST) for group in groups}
    near = [f"{label} {words.number(most)}" for label, most in found.items() if most >= LARGEST_FP16 / NEAR]
    return _told("Largest activations", near, "; fp16 ends at 65,504.")
