"""Describe what happened to the numbers: loss scale, underflow, lost updates, activations."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ampcompare import metrics
from ampcompare.analysis import phrases
from ampcompare.analysis.grouping.backend_info import dtype_16bit_of
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import SKIPPED, STEPS, skipped_steps, summary_or_maximum
from ampcompare.analysis.grouping.run_table import RUN, SEED, STARTED
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import is_number
from ampcompare.runtime import formatting

LARGEST_FP16 = 65504.0
WORTH_SAYING = 0.005  # fraction of all elements below which underflow is not mentioned
NEAR = 16  # activations above 1/16 of fp16's largest number are mentioned
IN_FP16 = ", flushed to zero"
FLUSHED = "A gradient element that is flushed to zero changes no weight."


def describe_numerics(groups: Sequence[Group], diagnostics_option: str) -> dict[str, str]:
    """Return a sentence for each phenomenon that occurred; under "" a sentence if none did.

    Args:
        groups: All groups but the controls.
        diagnostics_option: The option that turns on gradient diagnostics, "" if the training program has
            none.
    """
    sentences = {}
    for name, (title, describe_group, meaning) in PHENOMENA.items():
        reasons = phrases.group_by_text(groups, describe_group)
        if reasons:
            parts = "; ".join(f"with {labels}: {text}" for labels, text in reasons)
            flushed = f" {FLUSHED}" if IN_FP16 in parts else ""
            sentences[name] = f"{title} {parts}{meaning}{flushed}"
    if sentences:
        return sentences
    has_diagnostics = any(metrics.UNDERFLOW in run.logged for group in groups for run in group.records)
    if has_diagnostics:
        gradients = _describe_small_underflow(groups)
    elif diagnostics_option:
        gradients = f"no gradient diagnostics are recorded ({diagnostics_option} records them)"
    else:
        return {}
    is_known = all(group.rows[SKIPPED].notna().any() for group in groups)
    return {"": f"No step was skipped, and {gradients}." if is_known else f"{formatting.capital(gradients)}."}


def _describe_small_underflow(groups: Sequence[Group]) -> str:
    """Return how little underflowed in the measured steps, where it is not worth a sentence of its own."""
    runs = [run for group in groups for run in group.records]
    steps = formatting.plural(sum(len(run.values(metrics.UNDERFLOW)) for run in runs), "measured step")
    largest = max(
        _most(group, key) for group in groups for key in (metrics.UNDERFLOW, metrics.UNDERFLOW_UNSCALED)
    )
    if not largest:
        return f"no gradient element was below fp16's range in {steps}"
    return f"below {100 * WORTH_SAYING:g}% of the gradient elements were below fp16's range in {steps}"


def _scale(group: Group) -> str:
    """Return how the loss scale changed in the run with the lowest seed, and how many steps were skipped."""
    most_skipped = float(group.rows[SKIPPED].max())
    run = scaled_run(group)
    if run is not None:
        return f"{_describe_course(run)}, {_describe_skips(run, most_skipped)}"
    if most_skipped > 0:
        return f"{formatting.count(most_skipped)}{_of_steps(group.rows[STEPS].max())} skipped"
    return ""


def _of_steps(steps: float) -> str:
    return " steps" if np.isnan(steps) else f" of {formatting.count(steps)} steps"


def _describe_course(run: RunRecord) -> str:
    """Return how the loss scale of a run changed: `from 65,536 to 131,072 with 1 logged increase`."""
    values = run.values(metrics.SCALE)
    values = values[np.isfinite(values) & (values > 0)]
    initial = run.option("precision.init_scale")
    is_dynamic = run.option("precision.loss_scale", "dynamic") == "dynamic"
    if is_dynamic and is_number(initial) and initial > 0:  # the scale may have changed before the first row
        values = np.append(float(initial), values)
    first, last = (formatting.count(float(values[index])) for index in (0, -1))
    if np.ptp(values):
        increases = int((np.diff(values) > 0).sum())
        return f"from {first} to {last} with {formatting.plural(increases, 'logged increase')}"
    return f"{first} in each logged row" if math.isnan(skipped_steps(run)) else f"constant at {first}"


def _describe_skips(run: RunRecord, most_skipped: float) -> str:
    """Return how many steps a run skipped, and how many another run did if those were more.

    Args:
        run: The run whose loss scale is described.
        most_skipped: The largest number of skipped steps of a run of its group; NaN if unknown.
    """
    own_skipped = skipped_steps(run)
    text = "number of skipped steps unknown" if math.isnan(own_skipped) else "no step skipped"
    if own_skipped > 0:
        of_steps = _of_steps(summary_or_maximum(run, metrics.STEP))
        text = f"{formatting.count(own_skipped)}{of_steps} skipped"
    is_more = most_skipped > np.nan_to_num(own_skipped)
    return f"{text} ({formatting.count(most_skipped)} in another run)" if is_more else text


def scaled_run(group: Group) -> RunRecord | None:
    """Return the run with the lowest seed among those with a finite loss scale above 1; None without one.

    Among runs without a seed, or with the same seed, it is the run that started first.
    """
    rows = group.rows.sort_values(STARTED, kind="stable")
    pairs = zip(rows[SEED], rows[RUN], strict=True)
    candidates = [
        (seed, run) for seed, run in pairs if (np.nan_to_num(run.values(metrics.SCALE), posinf=0.0) > 1).any()
    ]
    if not candidates:
        return None
    _, first = min(candidates, key=lambda pair: (pair[0] is None, formatting.numeric_sort_key(pair[0] or "")))
    return first


def _most(group: Group, key: str) -> float:
    values = np.concatenate([np.empty(0), *(run.values(key) for run in group.records)])
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _underflow(group: Group) -> str:
    with_scale = _most(group, metrics.UNDERFLOW)
    without = _most(group, metrics.UNDERFLOW_UNSCALED)
    if max(with_scale, without) < WORTH_SAYING:
        return ""
    in_fp16 = bool(group.records) and all(dtype_16bit_of(run) == "fp16" for run in group.records)
    effect = IN_FP16 if in_fp16 else " would be zero in fp16"
    text = f"{formatting.whole_percent(with_scale)}{effect}"
    if without > with_scale:
        text = f"{text} ({formatting.whole_percent(without)} without the loss scale)"
    return text


def _updates(group: Group) -> str:
    fractions = [pair for pair in map(_at_peak_and_end, group.records) if pair is not None]
    if not fractions or not _most(group, metrics.LOST_UPDATES):
        return ""
    peak, end = (formatting.whole_percent(float(fraction)) for fraction in np.mean(fractions, axis=0))
    return f"{peak} at the peak learning rate, {end} at the end"


def _at_peak_and_end(run: RunRecord) -> tuple[float, float] | None:
    """Return the fraction of lost updates at the highest learning rate, and at the end."""
    lost = run.numbers(metrics.LOST_UPDATES)
    rows = np.flatnonzero(np.isfinite(lost))
    if not len(rows):
        return None
    rate = run.numbers(metrics.LEARNING_RATE)
    peak = int(np.nanargmax(rate)) if np.isfinite(rate).any() else int(rows[0])
    nearest = rows[np.abs(rows - peak).argmin()]
    return float(lost[nearest]), float(lost[rows[-1]])


def _activations(group: Group) -> str:
    highest = _most(group, metrics.ACTIVATION_LARGEST)
    return formatting.number(highest) if highest >= LARGEST_FP16 / NEAR else ""


# By phenomenon: its title, the function that describes a group, and what it means.
PHENOMENA: dict[str, tuple[str, Callable[[Group], str], str]] = {
    "scale": (
        "Loss scale",
        _scale,
        ". A dynamic scale grows until gradients overflow. That step is skipped and the scale is halved.",
    ),
    "underflow": ("Largest fraction of gradient elements below fp16's range", _underflow, "."),
    "updates": (
        "Updates lost to rounding",
        _updates,
        ". Adding a small update can leave a 16-bit weight unchanged. Stochastic rounding prevents this on "
        "average.",
    ),
    "activations": ("Largest activations", _activations, ". The largest fp16 number is 65,504."),
}
