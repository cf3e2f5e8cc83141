"""What happened to the numbers: the loss scale, underflow, lost updates, activations; a sentence each."""

from collections.abc import Callable, Sequence

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import dtype_16bit_of
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import SKIPPED, STEPS, summary_or_maximum
from ampcompare.analysis.grouping.run_table import RUN, SEED, STARTED
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import is_number
from ampcompare.runtime import formatting

LARGEST_FP16 = 65504.0
WORTH_SAYING = 0.005  # of all elements
NEAR = 16  # of what fp16 can hold, the part from which on an activation is worth a sentence
MAX_NAMED = 4
IN_FP16 = "flushed to zero"
FLUSHED = "An element that is flushed to zero moves no weight."


def describe_numerics(groups: Sequence[Group], looking: str) -> dict[str, str]:
    """Return by phenomenon what it means here, where something happened; under "" what is said of none.

    Args:
        groups: The groups.
        looking: The option that looks at gradients, "" where the program that trained has none.
    """
    told = {}
    for name, (what, of_group, why) in PHENOMENA.items():
        parts = formatting.group_by_reason(
            [(g.label, said) for g in groups if (said := of_group(g))], MAX_NAMED
        )
        if parts:
            shown = f"{what}: {'; '.join(f'{labels} {said}' for labels, said in parts)}{why}"
            told[name] = f"{shown} {FLUSHED}" if IN_FP16 in shown else shown
    if told:
        return told
    looked = any(metrics.UNDERFLOW in run.logged for group in groups for run in group.records)
    if not looked and not looking:
        return {}
    extra = "no gradient underflowed" if looked else f"gradients were not looked at ({looking})"
    is_known = any(group.rows[SKIPPED].notna().any() for group in groups)
    return {"": f"No step was skipped, and {extra}." if is_known else f"{formatting.capital(extra)}."}


def _scale(group: Group) -> str:
    """Say how the loss scale of a group's run with the lowest seed went, and how many steps it skipped."""
    most, run = group.rows[SKIPPED].max(), scaled_run(group)
    steps = group.rows[STEPS].max() if run is None else summary_or_maximum(run, metrics.STEP)
    share = f" of {formatting.count(steps)} steps" if steps == steps else " steps"
    if run is None:
        return f"{formatting.count(float(most))}{share} skipped" if most > 0 else ""
    own = summary_or_maximum(run, metrics.SKIPPED)
    skipped = f"{formatting.count(own)}{share} skipped" if own > 0 else "no step skipped"
    if most > own:
        skipped += f" ({formatting.count(float(most))} in another run)"
    values = run.values(metrics.SCALE)
    values = values[np.isfinite(values) & (values > 0)]
    began = run.option("precision.init_scale")
    is_dynamic = run.option("precision.loss_scale", "dynamic") == "dynamic"
    if is_dynamic and is_number(began) and began > 0:  # the scale may have changed before the first row
        values = np.append(float(began), values)
    grown = int((np.diff(values) > 0).sum())
    first, last = (formatting.count(float(value)) for value in (values[0], values[-1]))
    went = (
        f"from {first} to {last}, {formatting.plural(grown, 'growth')} seen"
        if np.ptp(values)
        else f"at {first}"
    )
    return f"{went}, {skipped}"


def scaled_run(group: Group) -> RunRecord | None:
    """Return the run with the lowest seed of those whose loss scale was ever above 1, None without any.

    Of runs without a seed, and of several with the same seed, it is the one that started first.
    """
    rows = group.rows.sort_values(STARTED, kind="stable")
    scaled = [pair for pair in zip(rows[SEED], rows[RUN], strict=True) if _is_scaled(pair[1])]
    return min(scaled, key=lambda pair: _order(pair[0]), default=(None, None))[1]


def _is_scaled(run: RunRecord) -> bool:
    return bool((run.values(metrics.SCALE) > 1).any())


def _order(seed: str | None) -> tuple[bool, int, str]:
    """Numbers by their value, then other texts, then none."""
    if seed is None:
        return True, 0, ""
    return False, *((int(seed), "") if seed.isdecimal() else (10**20, seed))


def _most(group: Group, key: str) -> float:
    values = np.concatenate([np.empty(0), *(run.values(key) for run in group.records)])
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _underflow(group: Group) -> str:
    with_scale, without = _most(group, metrics.UNDERFLOW), _most(group, metrics.UNDERFLOW_UNSCALED)
    if max(with_scale, without) < WORTH_SAYING:
        return ""
    bare = f" ({formatting.whole_percent(without)} without the loss scale)" if without > with_scale else ""
    in_fp16 = bool(group.records) and all(dtype_16bit_of(run) == "fp16" for run in group.records)
    return f"{formatting.whole_percent(with_scale)} {IN_FP16 if in_fp16 else 'would be lost in fp16'}{bare}"


def _updates(group: Group) -> str:
    ends = [found for run in group.records if (found := _at_peak_and_end(run))]
    if not ends or not _most(group, metrics.LOST_UPDATES):
        return ""
    peak, end = (formatting.whole_percent(float(share)) for share in np.mean(ends, axis=0))
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
    summary_or_maximum = _most(group, metrics.ACTIVATION_LARGEST)
    return formatting.number(summary_or_maximum) if summary_or_maximum >= LARGEST_FP16 / NEAR else ""


# What is said of each, of which groups, and what it means.
PHENOMENA: dict[str, tuple[str, Callable[[Group], str], str]] = {
    "scale": (
        "Loss scale",
        _scale,
        ". A dynamic scale grows until gradients overflow; that step is skipped and the scale halved.",
    ),
    "underflow": ("Gradient elements below fp16's range, at most", _underflow, "."),
    "updates": (
        "Updates lost to rounding",
        _updates,
        ". Adding a small update to a half-precision weight rounds back to the weight; stochastic rounding "
        "keeps it in the mean.",
    ),
    "activations": ("Largest activations", _activations, "; fp16 ends at 65,504."),
}
